#!/usr/bin/env python3
"""What a pool does with real jobs on this machine: how soon an urgent job has its slots, whether a
job that is made smaller and parked makes each step and sample once, and how long ten jobs take
under two policies and in Slurm. Prints a line for each figure; --help lists the parts.
"""

import argparse
import collections
import contextlib
import json
import os
import random
import signal
import socket
import statistics
import struct
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "python"))
import shoal  # noqa: E402
from slurm import Slurm  # noqa: E402

SHOAL = str(ROOT / "bin" / "shoal")
DIGITS = str(ROOT / "examples" / "digits" / "numpy_digits.py")
PACED = str(ROOT / "bench" / "sched" / "paced.py")
COUNTED = str(ROOT / "bench" / "sched" / "counted.py")
THREADS = {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
# Of each of the ten jobs: when it is submitted, its steps, ms of a step of one worker, and the most
# workers that it can use.
JOBS = [(0.0, 150, 80, 4), (0.5, 40, 80, 4), (1.0, 40, 80, 2), (2.0, 120, 60, 4), (3.0, 20, 80, 1)]
JOBS += [(4.0, 60, 80, 4), (5.0, 30, 60, 2), (6.0, 100, 40, 4), (8.0, 20, 80, 2), (9.0, 40, 80, 4)]


def pool_start(policy):
    """The command that starts a pool of four slots."""
    return [SHOAL, "pool", "start", "--slots", "4", "--policy", policy, "--background"]


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
        subprocess.run(pool_start(self.policy), check=True, stdout=subprocess.DEVNULL)
        return shoal.Pool()

    def __exit__(self, *_):
        """End its jobs, and then the pool."""
        pool = shoal.Pool()
        for job in pool.jobs():
            with contextlib.suppress(shoal.PoolError):  # it may have ended
                job.stop(now=True)
        while pool.jobs():
            time.sleep(0.1)
        until(lambda: not any(Path(self.folder.name).glob("run/shoal/*.ctl")), 30)
        subprocess.run([SHOAL, "pool", "stop"], check=True)
        self.folder.cleanup()


def quantile(values, q):
    """The q-quantile of values, the nearest one that there is above."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(q * len(ordered)))]


def until(condition, seconds):
    """Wait until a condition holds, and say whether it does within so many seconds."""
    end = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > end:
            return False
        time.sleep(0.01)
    return True


def measure_urgent(times):
    """Submit urgent jobs of two workers while a job has all four slots, and print how soon the
    pool knows two slots to be free. Where four workers do not pay for themselves once two were
    measured, as on a busy machine, another job of that kind has the four slots next.
    """
    waits, steps, samples, crashed, jobs = [], [], 0, 0, 0
    with Pool("elastic") as pool:
        while len(waits) < times:
            big = pool.submit([sys.executable, DIGITS, "1000000"], (1, 4), name="big", env=THREADS)
            jobs += 1
            while not big.view()["speeds"]:
                time.sleep(0.1)
            steps.append(1000 / max(big.view()["speeds"].values()))
            had = len(waits)
            while len(waits) < times and until(
                lambda big=big: big.workers == 4 and big.state == "running", 5
            ):
                job = pool.submit([sys.executable, "-c", ""], 2, name="urgent", priority=10)
                job.wait()
                since = job.view()["submitted"]
                changes = [c for c in big.view()["changes"] if c["at"] >= since and c["to"] == 2]
                if changes and changes[0]["done"]:
                    waits.append(changes[0]["done"] - since)
            if len(waits) == had:
                raise SystemExit(f"big never has four workers: {big.view()['because']}")
            run = Path(big.view()["run"])
            big.stop()
            big.wait()
            result = json.loads((run / "result.json").read_text())
            samples += result.get("lost_samples", 0)
            ledger = (run / "events.jsonl").read_text().splitlines()
            crashed += sum(len(json.loads(line).get("lost", [])) for line in ledger)
    print(
        f"urgent job into a full pool of 4 slots, {len(waits)} times in {jobs} jobs; "
        f"load {os.getloadavg()}"
    )
    p50, p99 = quantile(waits, 0.5), quantile(waits, 0.99)
    print(f"submit to slots free: p50 {p50} ms, p99 {p99} ms")
    print(f"one step of the victim with 4 workers: {statistics.median(steps):.1f} ms")
    print(f"samples lost: {samples}; workers lost: {crashed}")


def measure_lost_steps(times):
    """Have urgent jobs take two slots of a job of four, and all four, by turns, and print how many
    steps and samples of it were lost or came twice.
    """
    tries, done, parked = 0, 0, 0
    with Pool("elastic") as pool, tempfile.TemporaryDirectory(prefix="shoal-counted-") as folder:
        folder = Path(folder)
        (folder / "epochs").write_text("1000000")
        command = [sys.executable, COUNTED, str(folder)]
        low = pool.submit(command, (2, 4), name="low", preempt="park", env=THREADS)
        while done < times:
            if not until(lambda: low.workers > 0 and low.state == "running", 60):
                raise SystemExit(f"low is {low.state}: {low.view()['because']}")
            least = low.view()["steps"]
            until(lambda: low.view()["steps"] > least + 5, 60)
            take = 4 if tries % 2 else 2  # the second kind parks it, whatever it has
            tries += 1
            urgent = pool.submit([sys.executable, "-c", ""], take, name="urgent", priority=10)
            urgent.wait()
            since = urgent.view()["submitted"]
            changes = [c for c in low.view()["changes"] if c["at"] >= since]
            done += bool(changes)
            parked += any(c["to"] == 0 for c in changes)
        if not until(lambda: low.state == "running", 60):
            raise SystemExit(f"low is {low.state}: {low.view()['because']}")
        epochs = low.view()["steps"] // 50 + 200  # which is 20 s from now at least
        (folder / "epochs").write_text(str(epochs))
        pool.submit([sys.executable, "-c", ""], 4, name="urgent", priority=10).wait()
        low.wait()
        samples, steps = read_steps(folder)
    lost = sum(max(0, epochs - samples[i]) for i in range(997))
    twice = sum(max(0, samples[i] - epochs) for i in range(997))
    missing = len(set(range(max(steps) + 1)) - steps)
    print(f"{done} changes, {parked} of them parked: {len(steps)} steps; lost {missing}")
    print(f"samples of {epochs} epochs: lost {lost}, twice {twice}; load {os.getloadavg()}")


def read_steps(folder):
    """How often each sample was trained on, and all steps of a counted job."""
    samples, steps = collections.Counter(), set()
    for file in folder.glob("steps-*"):
        for line in file.read_text().splitlines():
            if line.endswith("]"):
                number, some = json.loads(line)
                samples.update(some)
                steps.add(number)
    return samples, steps


def paced_command(steps, work):
    """The command of one of the ten jobs."""
    return [sys.executable, PACED, str(steps), str(work)]


def run_ten_jobs(policy, rigid):
    """The mean completion time and the makespan of the ten jobs in seconds."""
    with Pool(policy) as pool:
        began, jobs = time.monotonic(), []
        for at, steps, work, most in JOBS:
            time.sleep(max(0, began + at - time.monotonic()))
            workers = most if rigid else (1, most)
            jobs.append(pool.submit(paced_command(steps, work), workers, env=THREADS))
        for job in jobs:
            job.wait()
        views = [job.view() for job in jobs]
    times = [(v["over"] - v["submitted"]) / 1000 for v in views]
    span = (max(v["over"] for v in views) - min(v["submitted"] for v in views)) / 1000
    return statistics.mean(times), span


def run_ten_jobs_in_slurm():
    """The same of the ten jobs in Slurm with backfill, on one node of four CPUs. Each job asks for
    the most workers that it can use, and for a quarter more time than it needs.
    """
    with Slurm(cpus=4) as cluster, tempfile.TemporaryDirectory(prefix="shoal-ends-") as ends:
        began, submitted = time.time(), []
        for i, (at, steps, work, most) in enumerate(JOBS):
            time.sleep(max(0, began + at - time.time()))
            command = " ".join([SHOAL, "run", "-n", str(most), "--", *paced_command(steps, work)])
            script = f"#!/bin/sh\n{command} && touch {ends}/{i}\n"
            seconds = 1.25 * (steps * work / 1000 / most + 2)
            submitted.append(time.time())
            cluster.submit(script, f"--cpus-per-task={most}", f"--time=0:{seconds:.0f}",
                           "--output=/dev/null", f"--chdir={ends}")
        paths = [Path(ends) / str(i) for i in range(len(JOBS))]
        while not all(path.exists() for path in paths):
            time.sleep(0.1)
        over = [path.stat().st_mtime for path in paths]
    times = [end - start for end, start in zip(over, submitted)]
    return statistics.mean(times), max(over) - submitted[0]


def measure_end_predictions(jobs, seed):
    """Run so many paced jobs of eight kinds, that come at random, and print how near the end of
    each was to what the pool expected: when its slots were last decided, and half-way from there.
    """
    draw = random.Random(seed)
    kinds = [(draw.randint(60, 300), draw.randint(20, 60), draw.randint(1, 4)) for _ in range(8)]
    seen = {}  # by job: the expectations that were seen, with their times
    with Pool("elastic") as pool:
        began, at, submitted = time.monotonic(), 0.0, []
        while len(submitted) < jobs or pool.jobs():
            if len(submitted) < jobs and time.monotonic() >= began + at:
                steps, work, most = draw.choice(kinds)
                submitted.append(pool.submit(paced_command(steps, work), (1, most), env=THREADS))
                at += draw.expovariate(0.8)
            for job in pool.jobs():
                view = job.view()
                if view["state"] == "running" and view["expect"]["end"]:
                    seen.setdefault(job.name, []).append((time.time() * 1000, view["expect"]))
            time.sleep(0.05)
        views = [job.view() for job in submitted]
    last, half = [], []
    for view in views:
        if view["state"] != "ended":
            print(f"{view['job']} is {view['state']}: {view['error']}")
            continue
        change, over = view["changes"][-1], view["over"]
        if change["expected"]["end"]:
            last.append((change["at"], change["expected"], over))
        since = (change["done"] or change["at"]) / 2 + over / 2
        later = [x for x in seen.get(view["job"], []) if x[0] >= since]
        if later:
            half.append((later[0][0], later[0][1], over))
    print(f"{len(views)} jobs, seed {seed}; load {os.getloadavg()}")
    for name, list_ in ("when its slots were last decided", last), ("half-way from there", half):
        if list_:
            off = [abs(x["end"] - over) / max(over - at, 1) for at, x, over in list_]
            bias = statistics.median((x["end"] - at) / max(over - at, 1) for at, x, over in list_)
            within = sum(x["low"] <= over <= x["high"] for _, x, over in list_) / len(list_)
            print(f"expected end, {name}, of {len(list_)} jobs: error {statistics.median(off):.1%}"
                  f" of the time to go in the median, expected / measured {bias:.2f};"
                  f" {within:.0%} end in the interval of 80 %")


class Client(threading.Thread):
    """Submits jobs at given times, one after the other, on one of several threads. Their answers
    are for after `join`.
    """

    def __init__(self, pool, jobs):
        """Submit to a pool; `jobs` are times, names and priorities."""
        super().__init__()
        self.pool, self.jobs, self.answers = pool, jobs, []

    def run(self):
        """Submit, and note for each job when it should have been sent, was sent, was answered."""
        for at, name, priority in self.jobs:
            time.sleep(max(0, at - time.monotonic()))
            sent = time.monotonic()
            job = self.pool.submit([sys.executable, "-c", ""], 1, name=name, priority=priority)
            self.answers.append((job.name, at, sent, time.monotonic()))


def submit_many(pool, names, seconds, threads):
    """Submit jobs of random priorities, spread evenly over so many seconds, and return their
    answers, as a Client has them.
    """
    draw, begin = random.Random(1), time.monotonic() + 0.2
    jobs = [(begin + i * seconds / len(names), name, draw.randint(0, 3))
            for i, name in enumerate(names)]
    clients = [Client(pool, jobs[i::threads]) for i in range(threads)]
    for client in clients:
        client.start()
    for client in clients:
        client.join()
    return [answer for client in clients for answer in client.answers]


def keeper_of(pool):
    """The process that answers for a pool."""
    with socket.socket(socket.AF_UNIX) as link:
        link.connect(f"{os.environ['XDG_RUNTIME_DIR']}/shoal/pool-{pool.name}.sock")
        told = link.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i"))
    return struct.unpack("3i", told)[0]


def measure_submit_latency(count, waiting):
    """Submit so many jobs in a second while others wait, and print how soon each was answered,
    whether another keeper has them all, and whether they start in the order of the policy.
    """
    with Pool("fifo") as pool:
        most = [sys.executable, "-c", "import time; time.sleep(3600)"]
        blocker = pool.submit(most, 4, name="blocker", priority=9)
        if not until(lambda: blocker.state == "running", 60):
            raise SystemExit(f"blocker is {blocker.state}")
        began = time.monotonic()
        submit_many(pool, [f"waits-{i}" for i in range(waiting)], 0.002 * waiting, 64)
        if waiting:
            print(f"{waiting} jobs that wait: submitted in {time.monotonic() - began:.1f} s")
        answers = submit_many(pool, [f"job-{i}" for i in range(count)], 1, 200)
        waits = [1000 * (answered - at) for _, at, _, answered in answers]
        span = max(a[3] for a in answers) - min(a[1] for a in answers)
        asked = [1000 * (answered - sent) for _, _, sent, answered in answers]
        print(f"{count} submits in a second beside {waiting} jobs that wait, load "
              f"{os.getloadavg()}: all are answered after {span:.2f} s. From when each was sent to "
              f"its answer: p50 {quantile(asked, 0.5):.1f}, p99 {quantile(asked, 0.99):.1f} ms; "
              f"from when it should have been: {quantile(waits, 0.5):.1f}, "
              f"{quantile(waits, 0.99):.1f} ms")
        os.kill(keeper_of(pool), signal.SIGKILL)
        if not until(lambda: not pool._names(), 30):
            raise SystemExit("the keeper was killed, and answers")
        began = time.monotonic()
        subprocess.run(pool_start("fifo"), check=True, stdout=subprocess.DEVNULL)
        views = {job["job"]: job for job in pool._state()["jobs"]}
        lost = [answer[0] for answer in answers if answer[0] not in views]
        print(f"after kill -9 the pool is back in {time.monotonic() - began:.1f} s, and has lost "
              f"{len(lost)} of {len(answers)} jobs")
        blocker.stop(now=True)
        time.sleep(20)
        jobs = [job for job in pool._state(over=True)["jobs"] if job["job"] != "blocker"]
        turns = [((-job["priority"], job["submitted"]), job.get("began", 0)) for job in jobs]
        started = [turn for turn in turns if turn[1]]
        last = max(started)  # of equal times of submission, any may be first
        wrong = sum(turn < last[0] and not began for turn, began in turns)
        wrong += sum(any(turn < other and at < began for other, at in started)
                     for turn, began in started)
        print(f"{len(started)} jobs were started in 20 s, {wrong} jobs were passed by a later one")


def main():
    """Measure, and print."""
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--urgent", type=int, default=200, help="urgent jobs; 0 = none")
    options.add_argument("--counted", type=int, default=200, help="changes of a job; 0 = none")
    options.add_argument("--submits", type=int, default=1000, help="in a second; 0 = none")
    options.add_argument("--waiting", type=int, default=10_000, help="jobs that wait meanwhile")
    options.add_argument("--turns", type=int, default=5, help="turns of the ten jobs; 0 = none")
    options.add_argument("--ends", type=int, default=120, help="jobs whose end is expected")
    options.add_argument("--seed", type=int, default=1, help="of the jobs of --ends")
    args = options.parse_args()
    os.environ.update(THREADS)
    if args.urgent:
        measure_urgent(args.urgent)
    if args.counted:
        measure_lost_steps(args.counted)
    if args.submits:
        measure_submit_latency(args.submits, 0)
        measure_submit_latency(args.submits, args.waiting)
    if args.ends:
        measure_end_predictions(args.ends, args.seed)
    ways = {
        "elastic": lambda: run_ten_jobs("elastic", rigid=False),
        "fifo, rigid": lambda: run_ten_jobs("fifo", rigid=True),
        "Slurm, backfill": run_ten_jobs_in_slurm,
    }
    rows = {name: [] for name in ways}
    for _ in range(args.turns):
        for name, way in ways.items():
            rows[name].append(way())
    for name, turns in rows.items():
        if turns:
            jct, span = ([turn[i] for turn in turns] for i in (0, 1))
            print(
                f"ten jobs, {name}: mean JCT {statistics.median(jct):.2f} s "
                f"({min(jct):.2f} to {max(jct):.2f}), makespan {statistics.median(span):.2f} s"
            )
            ratio = [b[0] / a[0] for a, b in zip(turns, rows["elastic"])]
            if turns is not rows["elastic"]:
                print(f"elastic / {name}: {statistics.median(ratio):.2f}")


main()
