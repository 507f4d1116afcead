"""Interference: four hosts average gradients, and then the cable of one carries a tenth.

Hosts are network namespaces of this machine, as in bench/hosts: it needs root.
"""

from __future__ import annotations

import json
import os
import pathlib
import statistics
import subprocess
import sys
import tempfile
import time

import jobs

sys.path += [str(jobs.HERE.parent / "hosts"), str(jobs.HERE.parent / "peers")]

from network import Network  # noqa: E402
from programs import Processes, json_lines  # noqa: E402

HOSTS, RATE, SLOW, MTU = 4, "400mbit", "40mbit", 1500
OPTIONS = dict(
    jobs.DEFAULTS, kind="still", a=0.01, b=0, batch=HOSTS * 8, elements=1 << 18, epochs=1 << 20
)
# Routes that stay, by the host whose cable becomes slow: those of KungFu and of shoal, and those in
# which the slow host is a leaf. RULES change routes, and have these flags: the tuner, and KungFu's.
COMMON = ["ring/256", "clique/64", "star/64", "double-tree/64"]
RULES = {"the tuner’s": [], "KungFu’s": ["--auto", "--policy", "kungfu"]}
LEAVES = {
    0: ["star/64@1", "tree/64@1"],
    1: ["double-tree/64@1", "tree/64@2"],  # KungFu's alternative has this host in the middle
    2: ["double-tree/64@2", "tree/64@3"],
}
BEFORE, AFTER, WITHIN = 100, 30, 12  # steps before the cable is slow, after it, and to adapt in
BAR = 0.95


def measure(args):
    """What each route takes under the disturbance, a dict each, in turns."""
    found = []
    with tempfile.TemporaryDirectory() as folder:
        for turn in range(args.turns):
            for slow, leaves in LEAVES.items():
                for route in [*RULES, *COMMON, *leaves]:
                    shoal = build_binary(pathlib.Path(folder), route)
                    found.append(dict(run_job(shoal, route, slow), turn=turn))
    return found


def build_binary(folder, route):
    """The path of a binary in which all-reduces take a route; it is built once."""
    if route in RULES:
        return str(jobs.SHOAL)
    path = folder / route.replace("/", "-")
    if not path.exists():
        linked = f"-X github.com/shoal-ml/shoal/agent.benchRoute={route}"
        subprocess.run(
            ["go", "build", "-trimpath", "-ldflags", linked, "-o", str(path), "./cmd/shoal"],
            cwd=jobs.HERE.parents[1],
            env=dict(os.environ, CGO_ENABLED="0"),
            check=True,
        )
    return str(path)


def run_job(shoal, route, slow):
    """Run a job by a route, and make the cable of a host slow: the seconds of the steps that began
    afterwards, and the changes of the ledger.
    """
    before = BEFORE if route in RULES else 20
    net = Network(HOSTS, RATE, MTU)
    try:
        with Processes(300) as running:
            start(net, running, shoal, RULES.get(route, ["--fixed-routes"]))

            def steps():
                """What rank 0 has told of its steps so far."""
                return lines(running, "metrics.jsonl")

            while len(steps()) < before and running.running():
                pass
            net.set_rate(slow, SLOW)
            at = time.time()
            while len(steps()) < before + AFTER and running.running():
                pass
            seconds = [m["metrics"] for m in steps()]
            changes = [e["change"] for e in lines(running, "events.jsonl") if "change" in e]
    finally:
        net.close()
    after = [m["seconds"] for m in seconds if m["ended"] - m["seconds"] > at]
    return dict(part="interference", route=route, slow=slow, seconds=after, changes=changes)


def start(net, running, shoal, flags, worker=None):
    """Start a job of a worker on each host; does not wait for its first step. `worker` is the
    command of one; None = a paced worker with the OPTIONS.
    """
    home, token = str(running.folder), running.folder / "token"
    env = {"XDG_RUNTIME_DIR": home, "XDG_STATE_HOME": home}
    place = ["--slots", "1", "--token-file", str(token), "--log-dir", home]
    worker = worker or [sys.executable, str(jobs.WORKER), json.dumps(OPTIONS)]
    address = f"{net.address[0]}:7077"
    flags = flags if "-n" in flags else ["-n", str(len(net.hosts)), *flags]
    job = [shoal, "run", "--name", "bench", "--listen", address, *flags]
    running.start(net.command(0, *job, *place, "--", *worker), **env)
    said = running.folder / "said0"
    while not token.exists() and running.running():
        pass
    for h in net.hosts[1:]:
        running.start(net.command(h, shoal, "agent", "--join", address, *place), **env)
        # One after the other, so that ranks are in the order of hosts.
        while f"host h{h} has joined" not in said.read_text() and running.running():
            pass


def lines(running, name):
    """The objects in the files of a name of all hosts."""
    found = running.folder.glob(f"*/{name}")
    return [line for path in found for line in json_lines(path.read_text())]


def text(results):
    """The table of the routes; "" where none were measured."""
    rows = [r for r in results if r["part"] == "interference"]
    if not rows:
        return ""
    out = [
        "| slow cable | route | step under the disturbance | speed, of the best that stays |",
        "|---|---|---|---|",
    ]
    for slow in LEAVES:
        some = [r for r in rows if r["slow"] == slow]
        took = {(r["turn"], r["route"]): settled_median(r) for r in some}
        best = {
            t: min(s for (turn, route), s in took.items() if turn == t and route not in RULES)
            for t in {r["turn"] for r in some}
        }
        for route in sorted({r["route"] for r in some}, key=lambda x: median_of(took, x)):
            ratios = [best[t] / s for (t, r), s in took.items() if r == route]
            out.append(
                f"| host {slow + 1} | {route} |"
                f" {1e3 * median_of(took, route):.0f} ms |"
                f" {100 * statistics.median(ratios):.0f} %"
                f" ({100 * min(ratios):.0f} to {100 * max(ratios):.0f}) |"
            )
        reached = [steps_to_settle(r, best[r["turn"]]) for r in some if r["route"] == "the tuner’s"]
        out.append(f"\nThe tuner gets there after {', '.join(map(str, reached))} steps.\n")
    return "\n".join(out)


def settled_median(result):
    """The median of the steps after those in which a route may be looked for."""
    return statistics.median(result["seconds"][WITHIN:])


def median_of(took, route):
    """The median of what a route took in all turns."""
    return statistics.median(s for (_, r), s in took.items() if r == route)


def steps_to_settle(result, best):
    """After how many steps the median of three is as good as the bar asks; all if it never is."""
    s = result["seconds"]
    for i in range(len(s) - 2):
        if statistics.median(s[i : i + 3]) * BAR <= best:
            return i
    return len(s)
