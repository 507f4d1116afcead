"""Training in steps while workers are killed, stopped, added and released: every sample exactly once an epoch, and the
same state everywhere."""

import contextlib
import json
import os
import pathlib
import random
import re
import signal
import subprocess

import pytest

pytest.importorskip("numpy")
WORKER = pathlib.Path(__file__).with_name("elastic_numpy.py")
HANG = 100


def results(output):
    """What the workers that finished printed."""
    return [json.loads(line) for line in re.findall(r"RESULT (.*)", output)]


def agree(output):
    """Check what every run must end with; return the results."""
    ended = results(output)
    assert ended and "Traceback" not in output, output
    assert len({tuple(r[2:]) for r in ended}) == 1, f"the workers differ: {ended}\n{output}"
    assert sorted(r[0] for r in ended) == list(range(len(ended))) and {r[1] for r in ended} == {len(ended)}, output
    return ended


@pytest.mark.parametrize("n", [1, 2, 3, 4])
@pytest.mark.parametrize("samples, batch", [(100, 8), (97, 10), (3, 2)])
def test_every_sample_once_an_epoch(launch, n, samples, batch):
    ended = agree(launch(n, WORKER, samples, batch, 2, 7, 0, 3))
    assert ended[0][1:3] == [n, 3 * -(-samples // batch)] and ended[0][4] == 3 * samples


@pytest.mark.parametrize("parts", [1, 3])
@pytest.mark.parametrize("n, kills", [(2, 1), (3, 2), (4, 1), (4, 3)])
@pytest.mark.parametrize("seed", [1, 2])
def test_killed_workers(launch, n, kills, parts, seed):
    output = launch(n, WORKER, 500, 32, parts, seed, kills, 8)
    ended = agree(output)
    assert len(ended) == n - kills, output
    assert ended[0][4] == 8 * 500


class Running:
    """A job under way: what it has printed so far, its workers, and its end."""

    def __init__(self, binary, process, end):
        self._binary, self._process, self._end = binary, process, end
        self.output = ""

    def until(self, pattern):
        """Read on until a line has the pattern, and return the match."""
        for line in self._process.stdout:
            self.output += line
            found = re.search(pattern, line)
            if found:
                return found
        raise AssertionError(f"the job ended without {pattern!r}:\n{self.output[-6000:]}")

    def resize(self, n):
        """Ask for n workers, and return when they are there."""
        done = subprocess.run([self._binary, "resize", self.name, str(n)], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=HANG)
        assert done.returncode == 0, done.stdout

    @property
    def name(self):
        return re.search(r"job ([^,]+),", self.output)[1]

    def workers(self):
        """The running workers by rank: their process ids."""
        listed = subprocess.run([self._binary, "ps", "--json", self.name], stdout=subprocess.PIPE, text=True, timeout=HANG, check=True).stdout
        lines = [json.loads(line) for line in listed.splitlines()]
        found = [w for line in lines for w in line.get("workers", [line]) if w.get("running")]
        return {w["rank"]: w["pid"] for w in found if w.get("rank") is not None and w["rank"] >= 0}

    def finish(self):
        """End the training; return all that was printed."""
        self._end.touch()
        rest, _ = self._process.communicate(timeout=HANG)
        self.output += rest
        assert self._process.returncode == 0, self.output[-6000:]
        return self.output


@pytest.fixture
def running(launch, binary, tmp_path):
    """Returns a context manager: a job of n workers that trains until it is told to finish."""

    @contextlib.contextmanager
    def start(n, *arguments, program=WORKER):
        end = tmp_path / "end"
        process = launch.start(n, program, *arguments, end)
        job = Running(str(binary), process, end)
        try:
            job.until("STEP 0")
            yield job
        finally:
            process.kill()
            process.stdout.close()
            process.wait()

    return start


@pytest.mark.parametrize("n, to", [(1, 2), (2, 4)])
def test_workers_join_and_are_released(running, n, to):
    with running(n, 700, 32, 2, 3, 0) as job:
        job.resize(to)
        job.until("STEP")
        job.resize(n)
        job.until("STEP")
        job.resize(to)
        output = job.finish()
    ended = agree(output)
    assert len(ended) == to and len(re.findall("RELEASED", output)) == to - n


def test_a_stopped_worker_is_waited_for(running):
    with running(3, 700, 32, 3, 3, 0) as job:
        pid = job.workers()[1]
        os.kill(pid, signal.SIGSTOP)
        os.kill(job.workers()[2], 0)  # the others are there, and wait
        os.kill(pid, signal.SIGCONT)
        job.until("STEP")
        job.resize(4)
        ended = agree(job.finish())
    assert len(ended) == 4


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_random_losses_and_joins(running, seed):
    print("seed", seed)
    choice = random.Random(seed)
    with running(4, 900, 40, 3, seed, 0) as job:
        for _ in range(12):
            workers = job.workers()
            if len(workers) > 1 and choice.random() < 0.5:
                os.kill(workers[choice.choice(sorted(workers))], signal.SIGKILL)
            else:
                job.resize(choice.choice([2, 3, 4, 5]))
            job.until("STEP")
        output = job.finish()
    agree(output)
