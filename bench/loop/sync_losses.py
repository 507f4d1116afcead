"""What a loss amid a round costs on hosts with slow cables: a worker is killed, on shoal, torchft
and hivemind; and on shoal a worker joins, one is killed and then the host that leads is, each amid
a round of one job, whose samples must all count once.
"""

from __future__ import annotations

import collections
import os
import signal
import subprocess
import sys
import time

import jobs

sys.path += [str(jobs.HERE.parent / "hosts"), str(jobs.HERE.parent / "peers")]

from network import Network  # noqa: E402
from programs import Processes, json_lines  # noqa: E402
from sync_jobs import (  # noqa: E402
    COMMON,
    LIMIT,
    MTU,
    RATE,
    ROUND,
    WORKERS,
    commits,
    start,
)

WITHIN_S = 0.4  # after a commit a worker is killed: half of the local steps are made
LIMIT_S = 180  # for the next commit


def measure_kill(system, way):
    """Kill one of four workers amid a round; returns how long the others take to the next commit,
    and how many samples of rounds of theirs did not count.
    """
    net = Network(WORKERS, RATE, MTU)
    try:
        with Processes(LIMIT) as running:
            options = dict(COMMON, system=system, sync=way)
            start(net, running, system, options, ["--min", "1"])
            wait_for(running, lambda: len(commits_of_first(running)) > 3 and commits(running, 3))
            wait_for(running, lambda: commits_of_first(running)[-1]["size"] == WORKERS)
            victim = commits(running, 3)[-1]["pid"]
            before = wait_until_mid_round(running)
            at = time.time()
            os.kill(victim, signal.SIGKILL)
            after = wait_for(
                running,
                lambda: [x for x in commits_of_first(running) if x["samples"] > before["samples"]],
            )[0]
            failed = None if system == "hivemind" else sum(
                x["own"]
                for n in range(3)
                for x in commits(running, n)
                if at < x["at"] <= after["at"] + 1 and x.get("done") is False
            )
            usual = [
                b["at"] - a["at"]
                for a, b in zip(commits_of_first(running)[1:], commits_of_first(running)[2:])
            ]
    finally:
        net.close()
    return dict(
        part="sync losses", system=system, sync=way, seconds=after["at"] - at,
        since=after["at"] - before["at"], usual=min(usual), failed=failed, left=after["size"],
    )


def commits_of_first(running):
    """The commits that worker 0 has written down."""
    return commits(running, 0)


def wait_until_mid_round(running, number=0):
    """Wait until a round is half over; returns the commit before it."""
    count = len(commits(running, number))
    found = wait_for(running, lambda: commits(running, number)[count:])
    time.sleep(WITHIN_S)
    return found[0]


def wait_for(running, holds):
    """Wait until holds() is true, and return that; ends the benchmark where it does not come."""
    until = time.monotonic() + LIMIT_S
    while not (found := holds()):
        if time.monotonic() > until:
            said = sorted(running.folder.glob("said*"))
            sys.exit("no commit comes:\n" + "\n".join(p.read_text()[-1500:] for p in said))
        time.sleep(0.02)
    return found


def measure_disturbances():
    """Have a worker join, kill one, and kill the host that leads, each amid a round of a job;
    returns the seconds to the commit after each, and what is wrong with the samples.
    """
    net, seconds = Network(WORKERS, RATE, MTU), {}
    try:
        with Processes(LIMIT) as running:
            options = dict(
                COMMON, system="shoal", sync=f"diloco:every={ROUND}", samples=2560
            )
            flags = ["-n", "3", "--min", "1", "--max", "4"]
            start(net, running, "shoal", options, flags)
            wait_for(running, lambda: len(commits_of_first(running)) > 2)
            home = str(running.folder)
            env = dict(os.environ, XDG_RUNTIME_DIR=home, XDG_STATE_HOME=home)
            wait_until_mid_round(running)
            at = time.time()
            subprocess.run([str(jobs.SHOAL), "resize", "bench", "4"], env=env, check=True)
            joined = wait_for(running, lambda: [x for x in all_lines(running) if x.get("late")])
            seconds["a worker joins"] = joined[0]["at"] - at
            wait_until_mid_round(running)
            seconds["a worker is killed"] = seconds_to_next_commit(
                running, lambda: os.kill(commits(running, 1)[-1]["pid"], signal.SIGKILL), 2
            )
            wait_until_mid_round(running, 2)
            head = running.process(0).pid
            seconds["the leading host is killed"] = seconds_to_next_commit(
                running, lambda: os.killpg(head, signal.SIGKILL), 2
            )
            epoch = commits(running, 2)[-1]["epoch"]
            wait_for(running, lambda: commits(running, 2)[-1]["epoch"] > epoch)
            wrong, epochs = check(all_lines(running), options["samples"])
    finally:
        net.close()
    return dict(part="sync shaken", seconds=seconds, wrong=wrong, epochs=epochs)


def seconds_to_next_commit(running, act, number):
    """Do something amid a round, and return the seconds to the next commit of a worker."""
    count, at = len(commits(running, number)), time.time()
    act()
    return wait_for(running, lambda: commits(running, number)[count:])[0]["at"] - at


def all_lines(running):
    """The commits that all workers have written down."""
    return [
        line
        for path in running.folder.glob("worker*.jsonl")
        for line in json_lines(path.read_text())
        if "samples" in line
    ]


def check(lines, samples):
    """What is wrong with the samples of the epochs that are over, a list, and their number."""
    times = collections.defaultdict(collections.Counter)
    for line in lines:
        times[line["epoch"]].update(line["own"])
    times.pop(max(times))
    wrong = [
        f"epoch {epoch}: {samples - len(seen)} samples are missing, {seen.most_common(1)}"
        for epoch, seen in times.items()
        if seen != collections.Counter(range(samples))
    ]
    return wrong, len(times)


def text(results):
    """The lines on what losses cost; none where that was not measured."""
    rows = [r for r in results if r["part"] == "sync losses"]
    out = []
    if rows:
        out += [
            "A worker is killed amid a round, on the hosts with slow cables:",
            "",
            "| system | `sync` | from the kill to the next commit | from the commit before |"
            " usual | samples of the other three that do not count |",
            "|---|---|---|---|---|---|",
        ]
    for r in rows:
        out.append(
            f"| {r['system']} | `{r['sync']}` | {r['seconds']:.1f} s | {r['since']:.1f} s |"
            f" {r['usual']:.1f} s | {'not told' if r['failed'] is None else r['failed']} |"
        )
    for r in results:
        if r["part"] == "sync shaken":
            times = ", ".join(f"{what}: {s:.1f} s" for what, s in r["seconds"].items())
            wrong = "; ".join(r["wrong"]) or "each sample counted once in each"
            out.append(f"\nTo the next commit: {times}. Of {r['epochs']} epochs, {wrong}.")
    return out
