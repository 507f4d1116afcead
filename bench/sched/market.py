#!/usr/bin/env python3
"""Two jobs of a pool share the cable of a host, 200 Mbit/s: as TCP divides it, and with the limits
that the pool gives them. Hosts are network namespaces of this machine, so it needs root.

usage: make build && sudo .venv/bin/python bench/sched/market.py [--turns N] [--steps N]
"""

from __future__ import annotations

import argparse
import json
import os
import pathlib
import statistics
import subprocess
import sys
import time

HERE = pathlib.Path(__file__).resolve().parent
BENCH = HERE.parent
sys.path += [str(BENCH / name) for name in ("hosts", "peers", "loop")]

import jobs  # noqa: E402
from network import Network, bits  # noqa: E402
from programs import Processes, json_lines  # noqa: E402

RATE, MTU = "200mbit", 1500
LINK = bits(RATE) / 8 * 1448 / 1514  # bytes of data a second
COMPUTES = 0.01  # seconds of a step
SIZES = {"small": 1 << 20, "large": 1 << 22}  # elements of four bytes that a step averages
# Two workers of each job are on a host of its own, and one is on the host between them. With two
# hosts each sends the gradient once a step.
HOSTS, SLOTS, WORKERS = 3, 2, 3
BYTES = {name: 4 * elements for name, elements in SIZES.items()}
WEIGHTS = [(1, 1), (4, 1), (1, 4)]  # of the small job and the large one: schedule.value
LIMIT = 3000  # seconds of all
PATIENCE = 240  # seconds until limits are decided and measured


class Pool:
    """A pool of three hosts, which `running` ends."""

    def __init__(self, net, running):
        """Start its keepers, and wait until all hosts are there."""
        self.running, self.homes = running, []
        for host in net.hosts:
            self.homes.append(running.folder / f"home{host}")
            self.homes[-1].mkdir()
        token, address = running.folder / "token", f"{net.address[0]}:7070"
        flags = ["--slots", str(SLOTS), "--bandwidth", RATE.replace("mbit", "Mbit/s")]
        head = ["pool", "start", "--listen", address, "--token-file", str(token), *flags]
        running.start(net.command(0, str(jobs.SHOAL), *head), **self.env(0))
        while not token.exists() and running.running():
            time.sleep(0.1)
        for host in net.hosts[1:]:
            join = ["pool", "join", "--join", address, "--token-file", str(token)]
            join += ["--name", f"host{host}", "--listen", f"{net.address[host]}:0", *flags]
            running.start(net.command(host, str(jobs.SHOAL), *join), **self.env(host))
        while len(self.state()["hosts"]) < HOSTS:
            time.sleep(0.2)

    def env(self, host):
        """The folders of a host."""
        return {"XDG_RUNTIME_DIR": str(self.homes[host]), "XDG_STATE_HOME": str(self.homes[host])}

    def shoal(self, *words):
        """The output of a command on the host that keeps the pool."""
        env = {**os.environ, **self.env(0)}
        return subprocess.run(
            [str(jobs.SHOAL), *words], env=env, check=True, stdout=subprocess.PIPE, text=True
        ).stdout

    def state(self):
        """What shoal queue --json says; nothing yet where no keeper answers."""
        try:
            return json.loads(self.shoal("queue", "--json"))
        except subprocess.CalledProcessError:
            time.sleep(0.2)
            return {"hosts": [], "jobs": []}

    def submit(self, name, weight):
        """Give it a job; returns the name that the job has."""
        options = dict(
            jobs.DEFAULTS, kind="still", a=COMPUTES, b=0, elements=SIZES[name], epochs=1 << 20
        )
        spec = dict(
            name=name,
            workers=WORKERS,
            fixed_routes=True,  # no job judges its routes by what the other one sends
            command=[sys.executable, str(jobs.WORKER), json.dumps(options)],
            schedule=dict(value=weight, preempt="never"),
        )
        path = self.running.folder / f"{name}.yaml"
        path.write_text(json.dumps(spec))
        return self.shoal("submit", "-f", str(path)).split()[0]

    def jobs(self):
        """The jobs that are not over, by the names that were wanted."""
        return {job["job"].split("-")[0]: job for job in self.state()["jobs"]}


def last_step_seconds(job, count):
    """The seconds of the last steps of a job."""
    lines = json_lines((pathlib.Path(job["run"]) / "metrics.jsonl").read_text())
    return [m["metrics"]["seconds"] for m in lines][-count:]


def measure_weights(pool, weights, steps):
    """What two jobs of these weights come to, as a dict."""
    names = [pool.submit(name, weight) for name, weight in zip(SIZES, weights)]
    end, found = time.monotonic() + PATIENCE, {}
    while pool.running.running() and time.monotonic() < end:
        time.sleep(1)
        found = pool.jobs()
        shares = [found.get(name, {}).get("share") or {} for name in SIZES]
        if all(share.get("measured") for share in shares):
            break
    time.sleep(steps * 1.5)
    took = [statistics.median(last_step_seconds(found[name], steps)) for name in SIZES]
    for name in names:
        pool.shoal("stop", name, "--now")
    while pool.jobs():
        time.sleep(0.5)
    roots = [(w * b) ** 0.5 for w, b in zip(weights, BYTES.values())]
    return dict(
        weights=weights,
        hosts=[found[name]["hosts"] for name in SIZES],
        shares=shares,
        took=took,
        best=[LINK * root / sum(roots) for root in roots],
    )


def weighted_sum(weights, values):
    """Σ weight · value."""
    return sum(w * v for w, v in zip(weights, values))


def text(results):
    """The table."""
    out = [
        "| weights | limits, of the best | expected s | measured s | off by | before s |"
        " weighted sum, of before |",
        "|---|---|---|---|---|---|---|",
    ]
    for r in results:
        weights, shares, took = r["weights"], r["shares"], r["took"]
        cells = [f"{weights[0]}:{weights[1]}"]
        if all(share.get("limit") for share in shares):
            expected = [share["expected"] for share in shares]
            before = [share["before"] for share in shares]
            cells += [
                ", ".join(f"{s['limit'] / b:.3f}" for s, b in zip(shares, r["best"])),
                ", ".join(f"{x:.3f}" for x in expected),
                ", ".join(f"{x:.3f}" for x in took),
                ", ".join(f"{t / x - 1:+.1%}" for t, x in zip(took, expected)),
                ", ".join(f"{x:.3f}" for x in before),
                f"{weighted_sum(weights, took) / weighted_sum(weights, before):.3f}",
            ]
        else:
            cells += ["none", "-", ", ".join(f"{x:.3f}" for x in took), "-", "-", "-"]
        out.append("| " + " | ".join(cells) + " |")
    return "\n".join(out)


def main() -> None:
    """Measure, and print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--turns", type=int, default=5, help="how often all is measured")
    parser.add_argument("--steps", type=int, default=12, help="steps of each job")
    parser.add_argument("--json", help="also keep all results in this file")
    args = parser.parse_args()
    if os.geteuid() != 0:
        raise SystemExit("hosts are network namespaces, which need root")
    load = os.getloadavg()[0]
    results = []
    net = Network(HOSTS, RATE, MTU)
    try:
        with Processes(LIMIT) as running:
            pool = Pool(net, running)
            for _ in range(args.turns):
                for weights in WEIGHTS:
                    results.append(measure_weights(pool, weights, args.steps))
                    print(results[-1], file=sys.stderr, flush=True)
    finally:
        net.close()
    print(text(results) + f"\nLoad of the machine before: {load:.1f}.")
    if args.json:
        pathlib.Path(args.json).write_text(json.dumps(results, indent=1) + "\n")


if __name__ == "__main__":
    main()
