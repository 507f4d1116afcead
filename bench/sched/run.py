#!/usr/bin/env python3
"""What a pool does with real jobs on this machine: how soon an urgent job has its slots, and how
long ten jobs take under two policies. Prints tables; --urgent N and --turns N say how often.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "python"))
import shoal  # noqa: E402

SHOAL = str(ROOT / "bin" / "shoal")
DIGITS = str(ROOT / "examples" / "digits" / "numpy_digits.py")
PACED = str(ROOT / "bench" / "sched" / "paced.py")
THREADS = {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
# Of each of the ten jobs: when it is submitted, its steps, ms of a step of one worker, and the most
# workers that it can use.
JOBS = [(0.0, 150, 80, 4), (0.5, 40, 80, 4), (1.0, 40, 80, 2), (2.0, 120, 60, 4), (3.0, 20, 80, 1)]
JOBS += [(4.0, 60, 80, 4), (5.0, 30, 60, 2), (6.0, 100, 40, 4), (8.0, 20, 80, 2), (9.0, 40, 80, 4)]


class Pool:
    """A pool of four slots with a policy, in folders of its own, until the end of the block."""

    def __init__(self, policy):
        """A pool that decides by `policy`."""
        self.policy = policy

    def __enter__(self):
        """Start the pool, and return its `shoal.Pool`."""
        self.folder = tempfile.TemporaryDirectory(prefix="shoal-sched-")
        for name in ("run", "state"):
            os.mkdir(f"{self.folder.name}/{name}", 0o700)
        os.environ["XDG_RUNTIME_DIR"] = f"{self.folder.name}/run"
        os.environ["XDG_STATE_HOME"] = f"{self.folder.name}/state"
        os.environ["PYTHONPATH"] = str(ROOT / "python")
        start = [SHOAL, "pool", "start", "--slots", "4", "--policy", self.policy, "--background"]
        subprocess.run(start, check=True, stdout=subprocess.DEVNULL)
        return shoal.Pool()

    def __exit__(self, *_):
        """End its jobs, and then the pool."""
        pool = shoal.Pool()
        for job in pool.jobs():
            job.stop(now=True)
        while pool.jobs():
            time.sleep(0.1)
        subprocess.run([SHOAL, "pool", "stop"], check=True)
        self.folder.cleanup()


def quantile(values, q):
    """The q-quantile of values, the nearest one that there is above."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(q * len(ordered)))]


def urgent(times):
    """The ms from the submission of an urgent job of two workers to the moment at which the pool
    knows two slots to be free, `times` times, the median step of the victim in ms, and the samples
    that it lost.
    """
    waits = []
    with Pool("elastic") as pool:
        big = pool.submit([sys.executable, DIGITS, "1000000"], (1, 4), name="big", env=THREADS)
        while not big.view()["speeds"]:
            time.sleep(0.1)
        steps = 1000 / max(big.view()["speeds"].values())
        while len(waits) < times:
            while big.workers < 4 or big.state != "running":
                time.sleep(0.05)
            before = len(big.view()["changes"])
            job = pool.submit([sys.executable, "-c", ""], 2, name="urgent", priority=10)
            job.wait()
            view = job.view()
            for change in big.view()["changes"]:
                if change["at"] >= view["submitted"] and change["to"] == 2 and change["done"]:
                    waits.append(change["done"] - view["submitted"])
                    break
            else:
                print(f"no change among {before}: {view['because']}", file=sys.stderr)
        run = Path(big.view()["run"])
        big.stop()
        big.wait()
        result = json.loads((run / "result.json").read_text())
        ledger = [json.loads(line) for line in (run / "events.jsonl").read_text().splitlines()]
    lost = result.get("lost_samples", 0)
    crashed = sum(len(event.get("lost", [])) for event in ledger)
    return waits, steps, lost, crashed


def ten(policy, rigid):
    """The mean completion time and the makespan of the ten jobs in seconds."""
    with Pool(policy) as pool:
        began, jobs = time.monotonic(), []
        for at, steps, work, most in JOBS:
            time.sleep(max(0, began + at - time.monotonic()))
            command = [sys.executable, PACED, str(steps), str(work)]
            jobs.append(pool.submit(command, most if rigid else (1, most), env=THREADS))
        for job in jobs:
            job.wait()
        views = [job.view() for job in jobs]
    times = [(v["over"] - v["submitted"]) / 1000 for v in views]
    span = (max(v["over"] for v in views) - min(v["submitted"] for v in views)) / 1000
    return statistics.mean(times), span


def main():
    """Measure, and print."""
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--urgent", type=int, default=200, help="urgent jobs; 0 = none")
    options.add_argument("--turns", type=int, default=5, help="turns of the ten jobs; 0 = none")
    args = options.parse_args()
    if args.urgent:
        waits, step, lost, crashed = urgent(args.urgent)
        print(f"urgent job into a full pool of 4 slots, {len(waits)} times; load {os.getloadavg()}")
        p50, p99 = quantile(waits, 0.5), quantile(waits, 0.99)
        print(f"submit to slots free: p50 {p50} ms, p99 {p99} ms")
        print(f"one step of the victim with 4 workers: {step:.1f} ms")
        print(f"samples lost: {lost}; workers lost: {crashed}")
    rows = {"elastic": [], "fifo, rigid": []}
    for _ in range(args.turns):
        rows["elastic"].append(ten("elastic", rigid=False))
        rows["fifo, rigid"].append(ten("fifo", rigid=True))
    for name, turns in rows.items():
        if turns:
            jct, span = ([turn[i] for turn in turns] for i in (0, 1))
            print(
                f"ten jobs, {name}: mean JCT {statistics.median(jct):.2f} s "
                f"({min(jct):.2f} to {max(jct):.2f}), makespan {statistics.median(span):.2f} s"
            )
    if args.turns:
        ratio = [a[0] / b[0] for a, b in zip(rows["elastic"], rows["fifo, rigid"])]
        print(f"elastic / rigid: {statistics.median(ratio):.2f}")


main()
