"""A job is parked: a checkpoint at the end of a step, and its workers end before their loops go on.
Started again it goes on with the next sample.
"""

import collections
import json
import pathlib
import re
import subprocess

import pytest

pytest.importorskip("numpy")
from running_job import HANG

# Each worker writes its samples of each committed step into a file of its own.
PARKED = """
import json, os, pathlib, signal, sys
import numpy as np
import shoal
folder, lists, epochs, wishes = sys.argv[1], sys.argv[2], int(sys.argv[3]), sys.argv[4:]
if "deaf" in wishes:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
job = shoal.join()
seen = np.zeros(97)
job.register("seen", lambda: seen, lambda value: np.copyto(seen, value))
if "without" not in wishes:
    job.checkpoint(folder, every=10**6)
for step in job.steps(97, batch=10, seed=3, epochs=epochs):
    gradient, mine = np.zeros(97), []
    if step.weight:
        gradient[step.indices] = 1 / step.weight
        mine = step.indices.tolist()
    seen += step.allreduce(gradient) > 0
    with open(f"{lists}/{os.getpid()}", "a") as file:
        print(json.dumps([step.number, mine]), file=file)
    if step.number % 10 == 0:
        print("STEP", step.number, "spoilt" * os.path.isfile(folder), flush=True)
    if "spoil" in wishes and step.number == 15 and job.rank == 0:
        pathlib.Path(folder).rmdir()
        pathlib.Path(folder).write_text("no folder")
print("BEHIND", json.dumps([job.rank, job.committed, sorted(set(seen.tolist()))]), flush=True)
"""


class ParkedJobs:
    """Jobs of this program, one after the other, which are parked. For the thread of the test."""

    def __init__(self, launch, binary, folder):
        """Their checkpoints and lists are in a folder; `launch` and `binary` are the fixtures."""
        self._launch, self._binary = launch, binary
        self.checkpoints, self.lists = folder / "checkpoints", folder / "lists"
        self.lists.mkdir()

    def start(self, n, epochs, *wishes):
        """Start the job on n workers, for so many epochs, and return it when it has made steps: its
        process, its name, and an iterator of the lines that are to be read.
        """
        process = self._launch.start(
            n, PARKED, self.checkpoints, self.lists, epochs, *wishes, options=["--name", "parked"]
        )
        lines = iter(process.stdout)
        name = re.search("job ([^,]+),", next(line for line in lines if "job parked" in line))
        next(line for line in lines if "STEP" in line)
        next(line for line in lines if "STEP" in line)
        return process, name[1], lines

    def shoal(self, *words, code=0):
        """Run a command, which must end with this exit code; return what it prints."""
        done = subprocess.run(
            [self._binary, *words],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=HANG,
        )
        assert done.returncode == code, done.stdout
        return done.stdout

    def samples(self):
        """How often each sample was trained on in committed steps, and the steps, of all runs."""
        listed = [
            json.loads(line)
            for file in pathlib.Path(self.lists).iterdir()
            for line in file.read_text().splitlines()
        ]
        times = collections.Counter(i for _, some in listed for i in some)
        return times, sorted({number for number, _ in listed})


@pytest.fixture
def parked(launch, binary, tmp_path):
    """Jobs that are parked, as Parked has them."""
    return ParkedJobs(launch, binary, tmp_path)


def test_a_parked_job_goes_on_with_the_next_sample(parked):
    """It is parked twice, on other numbers of workers: every sample is trained on once an epoch, no
    step is made twice, and what stands after the loop is done once.
    """
    reached = 0
    for n in (3, 2):
        process, name, lines = parked.start(n, 10**8)
        said = parked.shoal("park", name)
        assert f"job {name} is parked, and goes on where it is started again" in said, said
        output = "".join(lines)
        assert process.wait() == 0 and "BEHIND" not in output, output
        assert "asked for it; the checkpoint is sealed" in output, output
        before, reached = reached, max(parked.samples()[1])
        assert reached > before
        assert f"park at step {reached + 1}" in output, output  # of the training, not of this run
    epochs = reached // 10 + 2
    output = parked._launch(3, PARKED, parked.checkpoints, parked.lists, epochs)
    times, numbers = parked.samples()
    assert numbers == list(range(10 * epochs)), (numbers[:3], numbers[-3:])
    assert times == {i: epochs for i in range(97)}, times
    behind = [json.loads(line) for line in re.findall("BEHIND (.*)", output)]
    assert sorted(b[0] for b in behind) == [0, 1, 2], output
    assert all(b[1:] == [10 * epochs, [epochs]] for b in behind), behind


def test_a_worker_that_ignores_sigterm_is_killed(parked):
    """The job is parked all the same."""
    process, name, lines = parked.start(2, 10**8, "deaf")
    said = parked.shoal("park", name, "--json")
    result = json.loads(said.splitlines()[-1])
    assert result["ok"] and result["parked"] and not result.get("stopped_by"), result
    assert [w["how"] for w in result["workers"]] == ["was parked"] * 2, result
    assert process.wait() == 0 and "BEHIND" not in "".join(lines)


@pytest.mark.parametrize("wish, why", [("without", "job.checkpoint"), ("spoil", "is not whole")])
def test_a_job_that_cannot_be_parked_trains_on(parked, wish, why):
    """Without checkpoints, or where none can be written, it says so, and makes further steps."""
    process, name, lines = parked.start(2, 10**8, wish)
    if wish == "spoil":
        next(line for line in lines if "spoilt" in line)
    said = parked.shoal("park", name, code=1)
    assert f"job {name} is not parked: " in said and why in said, said + "".join(lines)
    told = next(line for line in lines if "park at step" in line)
    assert "but training goes on" in told and why in told
    next(line for line in lines if "STEP" in line)
    parked.shoal("stop", name)
    assert process.wait() == 0 and "BEHIND" in "".join(lines)
