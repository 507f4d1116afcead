"""A job on three nodes of a real Slurm, which preempts it and loses nodes: it goes on with the next
sample.

Slurm must be installed (scripts/setup slurm), and PREEMPTIONS say how often the job is preempted:
make slurm-test sets it.
"""

import json
import os
import re
import subprocess
import sys
import time
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "bench" / "sched"))
from slurm import Slurm  # noqa: E402

TIMES = int(os.environ.get("PREEMPTIONS", "0"))
pytestmark = pytest.mark.skipif(TIMES < 1, reason="make slurm-test runs this")

SAMPLES, BATCH = 997, 20


def write_job(folder):
    """Write the spec of a job that keeps its files in a folder, and trains until it is ended."""
    (folder / "epochs").write_text("100000")
    (folder / "job.yaml").write_text(json.dumps({
        "name": "counted",
        "command": [sys.executable, str(ROOT / "bench" / "sched" / "counted.py"), str(folder)],
        "env": {"PYTHONPATH": str(ROOT / "python"), "OMP_NUM_THREADS": "1"}}))


def wait_until(condition, what, said, seconds=120):
    """Wait until a condition holds; it fails with what the function `said` returns."""
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, f"not {what}: {said()}"
        time.sleep(0.1)


class Preempted:
    """A job of Slurm that trains on three nodes, in a folder, and what it has done."""

    def __init__(self, slurm, folder, *options):
        """Submit the job to `slurm`, with these options of sbatch and srun."""
        self.slurm, self.folder = slurm, folder
        write_job(folder)
        words = " ".join(options)
        script = f"#!/bin/bash\nexec srun {words} {ROOT}/bin/shoal run -f job.yaml --slurm\n"
        self.number = slurm.submit(
            script, "--nodes=3", "--ntasks-per-node=1", "--requeue", "--open-mode=append",
            f"--chdir={folder}", f"--output={folder}/out", *options, folder=folder)

    def steps(self):
        """All lines that workers have written: a number of a step, and its samples."""
        lines = [line for file in self.folder.glob("steps-*") for line in file.open()]
        return [json.loads(line) for line in lines if line.endswith("\n")]

    def state(self):
        """Return what Slurm says of the job."""
        return self.slurm.state(self.number)

    def until(self, condition, what, seconds=120):
        """Wait until a condition holds; it fails with what the job has said."""
        wait_until(condition, what, lambda: f"{self.state()}\n{self.said()[-4000:]}", seconds)

    def said(self):
        """Return the output of the job so far."""
        out = self.folder / "out"
        return out.read_text() if out.exists() else ""

    def has_size(self, workers):
        """Whether so many workers are members."""
        done = subprocess.run([str(ROOT / "bin" / "shoal"), "ps", "--json"],
                              stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
        return any(json.loads(line)["size"] == workers for line in done.stdout.splitlines())

    def preempt(self, restarts, epochs=0):
        """Have another job take all nodes, and wait until this one has been put back for the time
        that `restarts` says and is started again: for so many epochs more; 0 = without an end.
        """
        urgent = self.slurm.submit("#!/bin/bash\ntrue\n", "--partition=urgent", "--nodes=3",
                                   f"--output={self.folder}/urgent")
        self.until(lambda: self.state()["Restarts"] == str(restarts), "put back into the queue")
        assert self.state()["JobState"] not in ("COMPLETED", "FAILED"), self.said()
        self.until(lambda: self.slurm.state(urgent)["JobState"] == "COMPLETED", "preempted")
        if epochs:
            last = max(number for number, _ in self.steps())
            (self.folder / "epochs").write_text(str(last * BATCH // SAMPLES + epochs))
        # Slurm waits for two minutes with a job that was put back. At once would be too early: the
        # end of its first start would count for the next one.
        self.slurm.call("scontrol", "update", f"JobId={self.number}", "StartTime=now+5")
        self.until(lambda: self.state()["JobState"] == "RUNNING", "started again")

    def finish(self, restarts):
        """Preempt the job once more, so that it reads how many epochs there are, and wait until it
        has made them.
        """
        self.preempt(restarts, epochs=2)
        self.until(lambda: self.state()["JobState"] == "COMPLETED", "done", 600)


@pytest.fixture(name="slurm", scope="module")
def start_slurm(tmp_path_factory):
    """Three nodes of one processor each, and folders for the sockets and files of runs."""
    home = tmp_path_factory.mktemp("home")
    for name, variable in ("run", "XDG_RUNTIME_DIR"), ("state", "XDG_STATE_HOME"):
        (home / name).mkdir(0o700)
        os.environ[variable] = str(home / name)
    with Slurm(nodes=3, cpus=1, grace=30, node_timeout=30) as slurm:
        yield slurm


def test_preempted_job_goes_on_with_the_next_sample(slurm, tmp_path):
    """Each step and each sample is made once, whatever Slurm takes away and when."""
    job = Preempted(slurm, tmp_path)
    for turn in range(TIMES):
        before = len({number for number, _ in job.steps()})
        if turn % 2 == 0:  # in every other turn it has not grown yet
            job.until(lambda: job.has_size(3), "of three workers")
        job.until(lambda: len({number for number, _ in job.steps()}) > before + 3, "training")
        job.preempt(turn + 1)
    job.finish(restarts=TIMES + 1)
    check_samples(job.steps())


def check_samples(lines, unwritten=0):
    """Check that no step and no sample of an epoch was left out, or was made twice; workers
    that were killed may have made up to so many samples that they have not written down.
    """
    steps = {}
    for number, indices in lines:
        steps.setdefault(number, []).extend(indices)
    assert sorted(steps) == list(range(min(steps), min(steps) + len(steps)))
    made = [sample for number in sorted(steps) for sample in steps[number]]
    assert set(made) <= set(range(SAMPLES))
    missing, epoch = 0, set()
    for sample in made:
        if sample in epoch:
            missing, epoch = missing + SAMPLES - len(epoch), set()
        epoch.add(sample)
    assert missing + SAMPLES - len(epoch) <= unwritten


def test_cancelled_job_stays_cancelled(slurm, tmp_path):
    """A job that a person cancels is not put back into the queue."""
    job = Preempted(slurm, tmp_path)
    job.until(job.steps, "training")
    slurm.call("scancel", str(job.number))
    job.until(lambda: job.state()["JobState"] == "CANCELLED", "cancelled")
    assert "is not put back into the queue" in job.said()


def test_a_node_that_is_lost_without_notice(slurm, tmp_path):
    """The job trains on with the nodes that are left. When the node is back another job of Slurm
    lends it; and the job has all nodes itself when it is started again. No step is left out or made
    twice.
    """
    job = Preempted(slurm, tmp_path, "--no-kill")
    job.until(lambda: job.has_size(3), "of three workers")
    job.until(lambda: len(job.steps()) > 20, "training")
    slurm.lose("n3")
    job.until(lambda: job.has_size(2), "of two workers")
    job.until(lambda: slurm.node_state("n3").startswith("DOWN"), "known to have lost a node")
    made = len(job.steps())
    job.until(lambda: len(job.steps()) > made + 20, "training on")
    assert job.state()["JobState"] == "RUNNING" and job.state()["Restarts"] == "0"
    slurm.bring_back("n3")
    name = re.findall(r"shoal: job (\S+), \d+ worker", job.said())[-1]
    said = subprocess.run([str(ROOT / "bin" / "shoal"), "token", name, "--for", "1h",
                           "--token-file", str(tmp_path / "token")],
                          check=True, stderr=subprocess.PIPE, text=True).stderr
    words = said[said.index("--join"):].strip() + " --slots 1"
    script = f"#!/bin/bash\nexec srun {ROOT}/bin/shoal agent {words}\n"
    slurm.submit(script, "--nodes=1", "--no-requeue", f"--chdir={tmp_path}", "--output=lent")
    job.until(lambda: job.has_size(3), "of three workers, on a node that another job has")
    job.preempt(1)
    job.until(lambda: job.has_size(3), "of three workers again")
    job.finish(restarts=2)
    # Slurm's SIGTERM ends the worker of the node that is lent.
    check_samples(job.steps(), unwritten=2 * (BATCH // 3 + 1))


def test_an_element_of_an_array_is_put_back_alone(slurm, tmp_path):
    """The number of an array is also that of one of its elements: when Slurm takes the node of that
    one, the other trains on.
    """
    for element in "01":
        (tmp_path / element).mkdir()
        write_job(tmp_path / element)
    script = (f"#!/bin/bash\ncd {tmp_path}/$SLURM_ARRAY_TASK_ID\n"
              f"exec srun {ROOT}/bin/shoal run -f job.yaml --slurm\n")
    number = slurm.submit(script, "--array=0-1", "--nodes=1", "--requeue", "--open-mode=append",
                          f"--output={tmp_path}/out-%a", folder=tmp_path)
    names = [f"{number}_{element}" for element in "01"]

    def until(condition, what):
        """Wait until a condition holds; it fails with what the elements have said."""
        wait_until(condition, what,
                   lambda: [file.read_text()[-2000:] for file in tmp_path.glob("out-*")])

    until(lambda: all(any(file.stat().st_size for file in (tmp_path / element).glob("steps-*"))
                      for element in "01"), "training")
    states = {name: slurm.state(name) for name in names}
    taken = next(name for name in names if states[name]["JobId"] == str(number))
    other = next(name for name in names if name != taken)
    urgent = slurm.submit("#!/bin/bash\ntrue\n", "--partition=urgent", "--output=/dev/null",
                          f"--nodelist={states[taken]['NodeList']}")
    until(lambda: slurm.state(taken)["Restarts"] == "1", "put back")
    until(lambda: slurm.state(urgent)["JobState"] == "COMPLETED", "preempted")
    assert slurm.state(other)["Restarts"] == "0" and slurm.state(other)["JobState"] == "RUNNING"
    slurm.call("scancel", str(number))
    until(lambda: slurm.idle() == 3, "ended")
