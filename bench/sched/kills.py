#!/usr/bin/env python3
"""A pool of three hosts, each a network namespace, of which something is killed again and again:
the head, the keeper of another host, or everything that runs on a host. What jobs and processes
there are is compared with what the pool says, and at the end with the steps that jobs have written
down. Needs root. Exits with 1 if a promise of docs/design/pool.md is broken.
"""

import argparse
import collections
import contextlib
import json
import os
import random
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path += [str(ROOT / "python"), str(ROOT / "bench" / "hosts")]
from network import Network  # noqa: E402
from shoal.pool import _http_request  # noqa: E402

SHOAL = str(ROOT / "bin" / "shoal")
MARKED = str(ROOT / "bench" / "sched" / "marked.py")
HOSTS, SLOTS = 3, 2
PATIENCE = 120  # seconds for which something is waited for that must come
# The two jobs whose steps are audited: least and most workers, what others may do to it, and the
# milliseconds of a step of one worker. Three workers never fit on one host.
JOBS = {"wide": (3, 6, "shrink", 60), "low": (1, 4, "park", 60)}
THREADS = {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}


class Host:
    """A host of the pool: its namespace, the folder of its files, and its keeper. The methods are
    for one thread at a time.
    """

    def __init__(self, net, number, folder):
        """Host `number` of a network, whose files are in a folder."""
        self.net, self.number, self.name = net, number, f"h{number}"
        self.home, self.folder = folder / self.name, folder
        self.home.mkdir(mode=0o700)
        self.keeper, self.joined = None, False
        self.space = os.stat(f"/run/netns/{net.namespace(number)}").st_ino
        self.socket = str(self.home / "shoal" / "pool-main.sock")

    def start(self):
        """Start the keeper: of the head on the first host, else one that joins."""
        address, token = f"{self.net.address[0]}:7070", str(self.folder / "token")
        if self.number == 0:
            words = ["start", "--listen", address, "--token-file", token, "--name", self.name]
        elif self.joined:
            words = ["join"]  # as before, and it needs no token any more
        else:
            words = ["join", "--join", address, "--token-file", token, "--name", self.name]
        words = [SHOAL, "pool", *words, "--slots", str(SLOTS)]
        env = dict(os.environ, XDG_RUNTIME_DIR=str(self.home), XDG_STATE_HOME=str(self.home))
        env.update(THREADS, PYTHONPATH=str(ROOT / "python"))
        with open(self.home / "said", "a") as out:
            self.keeper = subprocess.Popen(
                self.net.command(self.number, *words), env=env, stdout=out, stderr=out,
                stdin=subprocess.DEVNULL, start_new_session=True,
            )

    def kill_keeper(self):
        """Kill the keeper."""
        self.keeper.send_signal(signal.SIGKILL)
        self.keeper.wait()

    def processes(self):
        """The processes of the host."""
        space = self.net.namespace(self.number)
        found = subprocess.run(["ip", "netns", "pids", space], capture_output=True, text=True)
        return [int(word) for word in found.stdout.split()]

    def kill(self):
        """Kill everything that runs on the host."""
        while pids := self.processes():
            for pid in pids:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            self.keeper.poll()  # one that has ended is a process until somebody asks
            time.sleep(0.002)
        self.keeper.wait()

    def ask(self, path, body=None):
        """The answer of the keeper to a request; None where it does not answer or refuses."""
        request = f"GET {path}" if body is None else f"POST {path}"
        try:
            text = "" if body is None else json.dumps(body)
            status, answer = _http_request(self.socket, request, text)
            return json.loads(answer) if status == 200 else None
        except (OSError, IndexError, ValueError):
            return None


def workers_now(hosts):
    """The workers that live at one moment, by host and job. A worker is a process that has a rank;
    those that are there both before and after are counted.
    """
    before = find_workers(hosts)
    after = find_workers(hosts)
    counts = collections.defaultdict(collections.Counter)
    for key, (host, job) in before.items():
        if key in after:
            counts[host][job] += 1
    return counts


def find_workers(hosts):
    """The host and job of each worker that lives, by its number and when it was started."""
    spaces, found = {host.space: host.name for host in hosts}, {}
    for entry in os.listdir("/proc"):
        try:
            if not entry.isdigit() or os.stat(f"/proc/{entry}/ns/net").st_ino not in spaces:
                continue
            rest = Path(f"/proc/{entry}/stat").read_text().rpartition(")")[2].split()
            variables = Path(f"/proc/{entry}/environ").read_bytes().split(b"\0")
            space = os.stat(f"/proc/{entry}/ns/net").st_ino
        except (OSError, IndexError):
            continue  # it has ended
        env = dict(x.decode(errors="replace").split("=", 1) for x in variables if b"=" in x)
        if rest[0] not in "ZX" and "SHOAL_RANK" in env and space in spaces:
            found[entry, rest[19]] = spaces[space], env.get("POOL_JOB", env["SHOAL_JOB"])
    return found


class Watch(threading.Thread):
    """Looks again and again whether more workers live on a host than it has slots, and whether the
    pool says of more workers than live that they are held. `faults` is for after `end`.
    """

    def __init__(self, hosts):
        """Watch these hosts from now on."""
        super().__init__(daemon=True)
        self.hosts, self.faults, self.looks = hosts, [], 0
        self._end = threading.Event()
        self.start()

    def run(self):
        """Look until the end."""
        while not self._end.wait(0.03):
            first = self.hosts[0].ask("/v1/queue?all")
            there = workers_now(self.hosts)
            second = self.hosts[0].ask("/v1/queue?all")
            self.looks += 1
            for host, jobs in there.items():
                if sum(jobs.values()) > SLOTS:
                    self.faults.append(f"Q1: {dict(jobs)} live on {host} of {SLOTS} slots")
            if not first or not second:
                continue
            held = [{j["job"]: j["hosts"] for j in x["jobs"]} for x in (first, second)]
            for host, jobs in there.items():
                for job, n in jobs.items():
                    says = [x.get(job, {}).get(host, 0) for x in held]
                    if n > max(says):
                        changes = [j["changes"] for j in second["jobs"] if j["job"] == job]
                        self.faults.append(f"Q1: at {time.time()} {n} of {job} live on {host}, "
                                           f"held are {says}: {changes}")

    def end(self):
        """Look no more, and return what was wrong."""
        self._end.set()
        self.join()
        return self.faults


def wait_for(what, holds, patience=PATIENCE):
    """Wait until holds() is true and return that; a RuntimeError if it does not come."""
    end = time.monotonic() + patience
    while not (found := holds()):
        if time.monotonic() > end:
            raise RuntimeError(f"it does not come: {what}")
        time.sleep(0.02)
    return found


class Trial:
    """A pool, its jobs, and what is wrong with them."""

    def __init__(self, hosts, folder, seed):
        """A pool on these hosts, which is to start."""
        self.hosts, self.folder, self.draw = hosts, folder, random.Random(seed)
        self.wrong, self.kept, self.kills, self.backs = [], set(), [], []
        self.urgent = 0

    def begin(self):
        """Start the pool, and the jobs whose steps are audited."""
        self.hosts[0].start()
        wait_for("a token", (self.folder / "token").exists)
        wait_for("an answer of the head", lambda: self.hosts[0].ask("/v1/queue"))
        for host in self.hosts[1:]:
            host.start()
        self.settle(jobs=False)
        for host in self.hosts:
            host.joined = True
        for name, (least, most, preempt, work) in JOBS.items():
            (self.folder / name).mkdir()
            command = [sys.executable, MARKED, str(self.folder / name), str(work)]
            self.submit(0, name, command, least, most, preempt=preempt)
        self.settle()

    def submit(self, host, name, command, least, most, **schedule):
        """Submit a job by a host, and remember it if the pool has said that it has it."""
        spec = dict(name=name, command=command, workers=most, min=least, max=most)
        env = dict(THREADS, PYTHONPATH=str(ROOT / "python"), POOL_JOB=name)
        spec.update(schedule=schedule, env=env)
        body = dict(spec=json.dumps(spec), dir=str(self.folder), who="bench")
        body["env"] = [f"PATH={os.environ['PATH']}"]
        answer = self.hosts[host].ask("/v1/submit", body)
        if answer:
            self.kept.add(answer["job"])

    def queue(self):
        """All jobs as the head has them, by name; None while it does not answer."""
        state = self.hosts[0].ask("/v1/queue?all")
        return state and {job["job"]: job for job in state["jobs"]}

    def settle(self, jobs=True):
        """Wait until all hosts are in the pool, the wide job has its workers again, and it has
        made some steps.
        """
        made = []  # steps when the rest was so first

        def settled():
            """Whether it is so."""
            state = self.hosts[0].ask("/v1/queue?all")
            if not state or sum(h["up"] for h in state["hosts"]) < HOSTS:
                return False
            if not jobs:
                return True
            there = workers_now(self.hosts)
            for job in state["jobs"]:
                live = sum(there[host][job["job"]] for host in list(there))
                if job["state"] == "running" and live != job["workers"]:
                    return False
            job = next(j for j in state["jobs"] if j["job"] == "wide")
            if job["state"] != "running" or job["workers"] < 3:
                return False
            made.append(job["steps"])
            return made[-1] >= made[0] + 20

        try:
            wait_for("all hosts, and the wide job", settled)
        except RuntimeError as error:
            raise RuntimeError(f"{error}: {json.dumps(self.hosts[0].ask('/v1/queue'))}") from None

    def kill(self):
        """Kill something, start it again, and see what became of jobs."""
        draw = self.draw
        kind = draw.choice(["head", "keeper", "host"])
        host = draw.choice({"head": [0], "keeper": [1, 2], "host": [0, 1, 2]}[kind])
        before, submit = self.queue(), None
        if draw.random() < 0.5:
            self.urgent += 1
            command = [sys.executable, "-c", "import time; time.sleep(0.5)"]
            args = (draw.randrange(HOSTS), f"urgent-{self.urgent}", command, 2, 2)
            submit = threading.Thread(target=self.submit, args=args, kwargs=dict(priority=9))
            submit.start()
            time.sleep(draw.uniform(0, 0.6))
        since = time.time()
        if kind == "host":
            self.hosts[host].kill()
        else:
            self.hosts[host].kill_keeper()
        gone = time.time()
        time.sleep(draw.uniform(0, 1.5))
        self.hosts[host].start()
        self.kills.append((kind, host, since, gone))
        if submit:
            submit.join()
        self.settle()
        self.backs.append(time.time() - gone)
        self.check(kind, host, before)

    def check(self, kind, host, before):
        """See what a kill has done to jobs."""
        now = self.queue()
        label = f"kill {len(self.kills)}, {kind} of h{host}"
        for name in self.kept - set(now):
            self.wrong.append(f"Q3: {label}: the job {name} is forgotten")
        for name in self.kept & set(now):
            job = now[name]
            if job["state"] in ("failed", "stopped"):
                self.wrong.append(f"Q7: {label}: {name} has {job['state']}: {job.get('error')}")
            self.kept -= {name} if job["state"] in ("failed", "stopped") else set()  # said once
            if name in JOBS and job["state"] == "ended":
                self.wrong.append(f"Q7: {label}: {name} has ended")
            if kind == "host" or name not in JOBS or before[name]["state"] != "running":
                continue
            parks = [c for c in job["changes"] if c["at"] >= self.kills[-1][2] * 1000 - 1000]
            if job["attempt"] != before[name]["attempt"] and not any(c["to"] == 0 for c in parks):
                self.wrong.append(f"Q7: {label}: {name} was started again: {parks}")

    def end(self):
        """Have all jobs end, and see whether they do."""
        for name in JOBS:
            (self.folder / name / "end").touch()
        over = ("ended", "failed", "stopped")

        def done():
            """Whether all jobs are over."""
            jobs = self.queue()
            return jobs and all(job["state"] in over for job in jobs.values())

        try:
            wait_for("the end of all jobs", done)
        except RuntimeError as error:
            self.wrong.append(f"Q5: {error}: {json.dumps(self.hosts[0].ask('/v1/queue'))}")
        jobs = self.queue() or {}
        for name, job in jobs.items():
            if job["state"] != "ended":
                self.wrong.append(f"{name} is {job['state']}: {job.get('error')}")
        for name in self.kept - set(jobs):
            self.wrong.append(f"Q3: {name} is forgotten")
        return jobs

    def read(self, name):
        """The steps that a job has made, by number: by who made it, a list of lines."""
        steps = collections.defaultdict(lambda: collections.defaultdict(list))
        for file in (self.folder / name).glob("steps-*"):
            for text in file.read_text().splitlines():
                with contextlib.suppress(ValueError):  # of a worker that was killed
                    line = json.loads(text)
                    steps[line[0]][line[2]].append(line)
        return steps

    def audit(self, name, job):
        """See whether a job has made each step and each sample once, and return a text: steps,
        those that were made again, and the longest pauses.
        """
        steps, again, epochs = self.read(name), 0, collections.defaultdict(collections.Counter)
        gaps, last = [], None
        missing = set(range(max(steps, default=0) + 1)) - set(steps)
        if missing:
            self.wrong.append(f"{name}: steps {sorted(missing)[:9]} were never made")
        for number in sorted(steps):
            ways = sorted(steps[number].values(), key=lambda lines: min(x[4] for x in lines))
            for lines in ways:
                if any(x[1] != lines[0][1] or x[5:] != lines[0][5:] for x in lines):
                    self.wrong.append(f"{name}: workers differ about step {number}: {lines}")
                if lines[0][6]:
                    self.wrong.append(f"{name}: a sample came twice in step {number}")
            for a, b in zip(ways, ways[1:]):
                again += 1
                first, second = (max(x[4] for x in lines) for lines in (a, b))
                if name == "wide" or not any(k == "host" and first - 1 <= gone and since <= second
                                             for k, _, since, gone in self.kills):
                    self.wrong.append(f"Q8: {name}: step {number} was made at {first} and {second}")
            line = ways[-1][0]
            epochs[line[1]].update(line[5])
            now = min(x[4] for x in ways[-1])
            if last is not None:
                gaps.append((now - last, last, now))
            last = now
        epochs.pop(max(epochs, default=0), None)  # in which the job was told to end
        for epoch, counter in epochs.items():
            if counter != collections.Counter(range(997)):
                lost, most = 997 - len(counter), counter.most_common(2)
                self.wrong.append(f"{name}: epoch {epoch}: {lost} missing, most: {most}")
        lost = [(since, gone) for kind, _, since, gone in self.kills if kind == "host"]
        lost += [(change["at"] / 1000,) * 2 for change in job["changes"]]
        pauses = [max((g for g, a, b in gaps if a <= gone + 2 and b >= since), default=0)
                  for kind, _, since, gone in self.kills
                  if kind != "host" and not any(since - 15 < b and a < gone + 2 for a, b in lost)]
        text = f"{name}: {len(steps)} steps, {len(epochs)} epochs, {again} steps made again"
        if pauses and gaps:
            usual = statistics.median(g for g, _, _ in gaps)
            text += (f"; between two steps {usual * 1000:.0f} ms in the median, around the kill of "
                     f"a keeper {statistics.median(pauses) * 1000:.0f} ms in the median, at most "
                     f"{max(pauses) * 1000:.0f} ms")
        return text


def main():
    """Kill, and print what came of it."""
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--kills", type=int, default=100)
    options.add_argument("--seed", type=int, default=1)
    options.add_argument("--keep", action="store_true", help="leave the files, and say where")
    args = options.parse_args()
    net = Network(HOSTS, "1gbit", 1500)
    folder = Path(tempfile.mkdtemp(prefix="shoal-kills-"))
    hosts, watch, began = [], None, time.monotonic()
    try:
        hosts += [Host(net, h, folder) for h in range(HOSTS)]
        trial = Trial(hosts, folder, args.seed)
        try:
            trial.begin()
            watch = Watch(hosts)
            for _ in range(args.kills):
                trial.kill()
            jobs = trial.end()
        except RuntimeError as error:
            trial.wrong.append(str(error))
            jobs = trial.queue() or {}
        trial.wrong += watch.end() if watch else []
        texts = [trial.audit(name, jobs[name]) for name in JOBS if name in jobs]
    finally:
        for host in hosts:
            if host.keeper:
                host.kill()
        net.close()
    kinds = collections.Counter(kind for kind, _, _, _ in trial.kills)
    print(f"{sum(kinds.values())} kills, seed {args.seed}: " + ", ".join(
        f"{n} of a {kind}" for kind, n in sorted(kinds.items())))
    parked = sum(c["to"] == 0 and bool(c["done"]) for j in jobs.values() for c in j["changes"])
    print(f"{len(trial.kept)} jobs, of which {sum(j['state'] == 'ended' for j in jobs.values())} "
          f"have ended; changes to 0 workers among the last 64 of each: {parked}; "
          f"{watch.looks if watch else 0} looks at the processes of all hosts")
    if trial.backs:
        print(f"all hosts and workers back after {statistics.median(trial.backs):.1f} s in the "
              f"median, {max(trial.backs):.1f} s at most")
    for text in texts:
        print(text)
    print(f"{time.monotonic() - began:.0f} s; load {os.getloadavg()}")
    for text in trial.wrong:
        print("WRONG:", text)
    if args.keep or trial.wrong:
        print(f"files: {folder}")
    else:
        subprocess.run(["rm", "-rf", str(folder)], check=True)
    return bool(trial.wrong)


sys.exit(main())
