"""A worker, or the host that leads, is killed while a job goes to the mesh of a plan: no step is
lost, and the losses are those of an undisturbed training.

    $ go build -trimpath -o bin/shoal ./cmd/shoal
    $ python3 bench/plan/kills.py --kills 20 --seed 1 -o kills.json

Three launchers beside each other are the hosts of a job of four workers, two on each of the first
two; the third is a witness. Every worker writes its steps into a file, so they are known whoever is
killed. In every second kill another worker stands still meanwhile (SIGSTOP), so that the reshape
surely waits for it; in the others the kill comes at a random time since the job was asked. A kill
that comes when a step was made on the mesh of the plan is told, and does not count.
"""

from __future__ import annotations

import argparse
import collections
import contextlib
import json
import os
import pathlib
import random
import re
import signal
import subprocess
import sys
import tempfile
import time

ROOT = pathlib.Path(__file__).resolve().parents[2]
SHOAL, TESTS = ROOT / "bin/shoal", ROOT / "python/tests"
sys.path[:0] = [str(ROOT / "python"), str(TESTS)]

import live_stages  # noqa: E402

FROM, TO = "dp=2,pp=2", "dp=2,pp=2(4/1;micro=3;ahead=3/1)"
AFTER = 20  # steps that are to follow a kill
PATIENCE = 300  # seconds; reached only by a hang


class Job:
    """A job on hosts a, which leads, b and c, in a folder. Use it in a with statement, whose end
    kills what is left of it.
    """

    def __init__(self, folder):
        """Start it, and wait for its first steps."""
        self.folder, self.steps = folder, folder / "steps"
        self.steps.touch()
        self.launchers = {}
        lent = ["--token-file", folder / "token"]
        self.start(
            "a", "run", "-n", 4, "--name", "train", "--redundant", "--listen", "127.0.0.1:0",
            "--slots", 2, *lent, "--", sys.executable, TESTS / "live_stages.py", FROM, 1 << 20,
        )
        place = self.wait_for(lambda: re.search(r"--join (\S+) ", self.output("a")))[1]
        for host, slots in (("b", 2), ("c", 0)):
            self.start(host, "agent", "--join", place, "--name", host, "--slots", slots, *lent)

    def start(self, host, *words):
        """Start the launcher of a host."""
        home = self.folder / host
        home.mkdir()
        env = self.environment(host)
        env.update(PYTHONPATH=str(ROOT / "python"), OMP_NUM_THREADS="1", STEPS=str(self.steps))
        with open(home / "said", "w") as out:
            self.launchers[host] = subprocess.Popen(
                [str(SHOAL), *map(str, words)], env=env, stdout=out, stderr=out
            )

    def environment(self, host):
        """The environment of commands on a host."""
        home = str(self.folder / host)
        return dict(os.environ, XDG_RUNTIME_DIR=home, XDG_STATE_HOME=home)

    def shoal(self, host, *words):
        """Run a command of shoal on a host; returns its exit code and what it says."""
        done = subprocess.run(
            [str(SHOAL), *map(str, words)], env=self.environment(host), stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT, text=True, timeout=PATIENCE,
        )
        return done.returncode, done.stdout

    def output(self, host):
        """What the launcher of a host has printed."""
        return (self.folder / host / "said").read_text()

    def wait_for(self, holds):
        """Wait until holds() is true, and return that."""
        until = time.monotonic() + PATIENCE
        while not (found := holds()):
            if time.monotonic() > until:
                said = "\n".join(f"{h}: {self.output(h)[-1500:]}" for h in self.launchers)
                raise TimeoutError(f"the job does not get there:\n{said}")
            time.sleep(0.01)
        return found

    def lines(self):
        """The steps that workers have written: number, mesh and loss, each as often as told."""
        found = re.findall(r"STEP (\d+) on (\S+) loss (\S+)\n", self.steps.read_text())
        return [(int(n), mesh, float(loss)) for n, mesh, loss in found]

    def step_count(self):
        """How many steps were made."""
        return max((n + 1 for n, _, _ in self.lines()), default=0)

    def members(self):
        """The members, as shoal ps lists them."""
        code, said = self.shoal("a", "ps", "train", "--json")
        listed = [json.loads(line) for line in said.splitlines()] if code == 0 else []
        return [w for w in listed if w["rank"] >= 0]

    def __enter__(self):
        """The job, which has its members on both hosts and has made some steps."""
        self.wait_for(lambda: self.step_count() > 5)
        hosts = collections.Counter(w["host"] for w in self.members())
        assert sorted(hosts.values()) == [2, 2], hosts
        return self

    def __exit__(self, *_):
        """Kill what is left."""
        for launcher in self.launchers.values():
            with contextlib.suppress(ProcessLookupError):
                launcher.kill()
            launcher.wait()


def plan_file(job, folder):
    """Have shoal plan judge the mesh for the hosts of the job; returns the file of the plan."""
    names = [f"layers.{i}" for i in range(live_stages.LAYERS)]
    took = {"forward": 1e-4, "backward": 2e-4, "update": 1e-5, "kept": 1000}
    model = {
        "shoal": "model/1", "name": "stages",
        "layers": [{"id": name, "params": 1152, "state": 3456, "out": 96} for name in names],
        "points": [{"device": "cpu", "micro": 3, "layers": {name: took for name in names}}],
    }
    (folder / "model.json").write_text(json.dumps(model))
    file = folder / "deployment.json"
    words = ("plan", folder / "model.json", "--job", "train")
    code, said = job.shoal("a", *words, "--mesh", TO, "-o", file)
    assert code == 0, said
    return file


def calibrate():
    """How many seconds a reshape by the plan takes when nobody is killed, since it was asked for;
    and the text of the plan.
    """
    with tempfile.TemporaryDirectory(prefix="kills") as name, Job(pathlib.Path(name)) as job:
        file = plan_file(job, job.folder)
        code, said = job.shoal("a", "reshape", "train", "--plan", file, "--no-wait")
        began = time.monotonic()
        assert code == 0, said
        job.wait_for(lambda: any(mesh == TO for _, mesh, _ in job.lines()))
        return time.monotonic() - began, file.read_text()


def one_kill(victim, held, part, seconds, plan):
    """Kill a worker (its number) or "head" in a reshape by a plan: `part` of so many seconds after
    it was asked for; `held` has a worker of host b stand still meanwhile. Returns what came of it.
    """
    with tempfile.TemporaryDirectory(prefix="kills") as name, Job(pathlib.Path(name)) as job:
        (job.folder / "deployment.json").write_text(plan)
        members = job.members()
        frozen = [w["pid"] for w in members if w["host"] == "b" and w["worker"] != victim][:1]
        gone = [w["pid"] for w in members if w["worker"] == victim]
        if victim == "head":
            gone = [job.launchers["a"].pid, *(w["pid"] for w in members if w["host"] != "b")]
        for pid in frozen * held:
            os.kill(pid, signal.SIGSTOP)
        code, said = job.shoal(
            "a", "reshape", "train", "--plan", job.folder / "deployment.json", "--no-wait"
        )
        assert code == 0, said
        time.sleep(part * seconds)
        late = any(mesh == TO for _, mesh, _ in job.lines())
        for pid in gone:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        for pid in frozen * held:
            os.kill(pid, signal.SIGCONT)
        killed = job.step_count()
        job.wait_for(lambda: job.step_count() > killed + AFTER)
        alive = "bc" if victim == "head" else "a"
        job.wait_for(lambda: any(job.shoal(host, "stop", "train")[0] == 0 for host in alive))
        left = [p for host, p in job.launchers.items() if host != "a" or victim != "head"]
        job.wait_for(lambda: all(p.poll() is not None for p in left))
        return dict(
            victim="head" if victim == "head" else "worker",
            held=held,
            late=late,
            made=killed,
            steps=job.step_count(),
            wrong=find_errors(job.lines()),
            meshes=meshes_of(job.lines()),
        )


def find_errors(lines):
    """What is wrong with the steps of a job, a list; empty = each was made, and with the loss of an
    undisturbed training.
    """
    told, wrong = collections.defaultdict(set), []
    for n, mesh, loss in lines:
        told[n].add((mesh, loss))
    for n, want in zip(range(max(told) + 1), live_stages.reference_losses()):
        if n not in told:
            wrong.append(f"step {n} is missing")
        elif len(told[n]) > 1:
            wrong.append(f"step {n} was told differently: {told[n]}")
        elif any(abs(loss - want) > 1e-9 * want for _, loss in told[n]):
            wrong.append(f"step {n}: {told[n]}, undisturbed {want}")
    return wrong


def meshes_of(lines):
    """The meshes of the steps of a job, in their order."""
    return list(dict.fromkeys(mesh for _, mesh, _ in sorted(lines)))


def text(rows):
    """What came of the kills: a table, and what was wrong."""
    lines = ["| killed | when | times | wrong | then on |", "|---|---|---|---|---|"]
    whens = {
        "while a worker holds the reshape up": lambda r: r["held"],
        "at a random time of the reshape": lambda r: not r["held"] and not r["late"],
        "just after it": lambda r: r["late"],
    }
    for victim in ("worker", "head"):
        for when, fits in whens.items():
            some = [r for r in rows if r["victim"] == victim and fits(r)]
            if some:
                ends = collections.Counter(r["meshes"][-1] for r in some)
                meshes = ", ".join(f"`{mesh}` {n}" for mesh, n in ends.most_common())
                wrong = sum(len(r["wrong"]) for r in some)
                lines.append(f"| {victim} | {when} | {len(some)} | {wrong} | {meshes} |")
    return "\n".join(lines + [w for r in rows for w in r["wrong"]])


def main():
    """Measure as the command line says."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--kills", type=int, default=20)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("-o", "--out", help="a file for what came of each kill")
    args = parser.parse_args()
    draws, rows = random.Random(args.seed), []
    seconds, plan = calibrate()
    print(f"a reshape that nobody disturbs takes {seconds:.2f} s until a step was made", flush=True)
    while sum(not r["late"] for r in rows) < args.kills and len(rows) < 3 * args.kills:
        n = sum(not r["late"] for r in rows)
        victim = "head" if n % 2 else draws.randrange(4)
        rows.append(one_kill(victim, n % 4 >= 2, draws.random(), seconds, plan))
        print(json.dumps(rows[-1]), flush=True)
        if args.out:
            pathlib.Path(args.out).write_text(json.dumps(rows, indent=1))
    print(text(rows))
    sys.exit(any(r["wrong"] for r in rows))


if __name__ == "__main__":
    main()
