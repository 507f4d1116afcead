"""A job on three nodes of a real Slurm, which preempts it: it goes on with the next sample.

Slurm must be installed (scripts/setup slurm), and PREEMPTIONS say how often the job is preempted:
make slurm-test sets it.
"""

import json
import os
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


class Preempted:
    """A job of Slurm that trains on three nodes, in a folder, and what it has done."""

    def __init__(self, slurm, folder):
        """Submit the job to `slurm`."""
        self.slurm, self.folder = slurm, folder
        (folder / "epochs").write_text("100000")
        (folder / "job.yaml").write_text(json.dumps({
            "name": "counted",
            "command": [sys.executable, str(ROOT / "bench" / "sched" / "counted.py"), str(folder)],
            "env": {"PYTHONPATH": str(ROOT / "python"), "OMP_NUM_THREADS": "1"}}))
        script = f"#!/bin/bash\nexec srun {ROOT}/bin/shoal run -f job.yaml --slurm\n"
        self.number = slurm.submit(
            script, "--nodes=3", "--ntasks-per-node=1", "--requeue", "--open-mode=append",
            f"--chdir={folder}", f"--output={folder}/out")

    def steps(self):
        """All lines that workers have written: a number of a step, and its samples."""
        lines = [line for file in self.folder.glob("steps-*") for line in file.open()]
        return [json.loads(line) for line in lines if line.endswith("\n")]

    def state(self):
        """Return what Slurm says of the job."""
        return self.slurm.state(self.number)

    def until(self, condition, what, seconds=120):
        """Wait until a condition holds; it fails with what the job has said."""
        end = time.monotonic() + seconds
        while not condition():
            assert time.monotonic() < end, f"not {what}: {self.state()}\n{self.said()[-4000:]}"
            time.sleep(0.1)

    def said(self):
        """Return the output of the job so far."""
        out = self.folder / "out"
        return out.read_text() if out.exists() else ""

    def has_size(self, workers):
        """Whether so many workers are members."""
        done = subprocess.run([str(ROOT / "bin" / "shoal"), "ps", "--json"],
                              stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
        return any(json.loads(line)["size"] == workers for line in done.stdout.splitlines())

    def preempt(self, restarts):
        """Have another job take all nodes, and wait until this one is in the queue again."""
        urgent = self.slurm.submit("#!/bin/bash\ntrue\n", "--partition=urgent", "--nodes=3",
                                   f"--output={self.folder}/urgent")
        self.until(lambda: self.state()["Restarts"] == str(restarts), "put back into the queue")
        assert self.state()["JobState"] not in ("COMPLETED", "FAILED"), self.said()
        self.until(lambda: self.slurm.state(urgent)["JobState"] == "COMPLETED", "preempted")
        # Slurm waits for two minutes with a job that was put back. At once would be too early: the
        # end of its first start would count for the next one.
        self.slurm.call("scontrol", "update", f"JobId={self.number}", "StartTime=now+5")
        self.until(lambda: self.state()["JobState"] == "RUNNING", "started again")


@pytest.fixture(name="slurm", scope="module")
def start_slurm(tmp_path_factory):
    """Three nodes of one processor each, and folders for the sockets and files of runs."""
    home = tmp_path_factory.mktemp("home")
    for name, variable in ("run", "XDG_RUNTIME_DIR"), ("state", "XDG_STATE_HOME"):
        (home / name).mkdir(0o700)
        os.environ[variable] = str(home / name)
    with Slurm(nodes=3, cpus=1, grace=30) as slurm:
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
    last = max(number for number, _ in job.steps())
    (tmp_path / "epochs").write_text(str(last * BATCH // SAMPLES + 2))
    job.preempt(TIMES + 1)  # so that it reads how many epochs there are
    job.until(lambda: job.state()["JobState"] == "COMPLETED", "done", 600)
    check_samples(job.steps())


def check_samples(lines):
    """Check that no step and no sample of an epoch was left out, or was made twice."""
    steps = {}
    for number, indices in lines:
        steps.setdefault(number, []).extend(indices)
    assert sorted(steps) == list(range(min(steps), min(steps) + len(steps)))
    made = [sample for number in sorted(steps) for sample in steps[number]]
    assert len(made) % SAMPLES == 0
    for at in range(0, len(made), SAMPLES):
        assert sorted(made[at:at + SAMPLES]) == list(range(SAMPLES)), f"the epoch from {at}"


def test_cancelled_job_stays_cancelled(slurm, tmp_path):
    """A job that a person cancels is not put back into the queue."""
    job = Preempted(slurm, tmp_path)
    job.until(job.steps, "training")
    slurm.call("scancel", str(job.number))
    job.until(lambda: job.state()["JobState"] == "CANCELLED", "cancelled")
    assert "is not put back into the queue" in job.said()
