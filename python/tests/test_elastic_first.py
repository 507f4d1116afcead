"""What one worker does for all, and evaluation, while workers are killed."""

import re

import pytest

numpy = pytest.importorskip("numpy")
from running_job import HANG, results

import shoal

WORKER = """
import os, signal
import numpy as np
import shoal

number, at = int(os.environ["SHOAL_RANK"]), -1

class Log:
    def __init__(self):
        print("MADE by", number, flush=True)
    def write(self, step):
        print("LOGGED", step, flush=True)

def count(indices):
    # rank 0 dies in one evaluation, and another one in the next, each with its part half made
    if (number, at) in ((0, 11), (2, 15)) and indices[-1] > 50:
        os.kill(os.getpid(), signal.SIGKILL)
    return {"n": len(indices), "sum": int(indices.sum()), "first": indices[:1]}

job = shoal.join()
log = job.only_first(Log)
for step in job.steps(64, batch=8, epochs=3):
    step.allreduce(np.zeros(1))
    log.write(step.number)
    if step.number % 4 == 3:
        at = step.number
        parts = job.evaluate(103, count, batch=5 if at != 15 else None)
        assert sum(p["n"] for p in parts) == 103, parts
        assert sum(p["sum"] for p in parts) == 103 * 102 // 2, parts
        assert [int(p["first"][0]) for p in parts] == sorted({int(p["first"][0]) for p in parts})
print("RESULT", [number, job.rank], flush=True)
"""


def test_when_the_first_worker_is_lost(launch):
    """The object of the first worker is made anew on the next one, and the results of an evaluation
    have every sample once, also those of a worker that is lost in it.
    """
    output = launch.start(4, WORKER).communicate(timeout=HANG)[0]
    assert "Traceback" not in output and sorted(results(output)) == [[1, 0], [3, 1]], output
    assert re.findall(r"MADE by (\d)", output) == ["0", "1"], output
    logged = re.findall(r"LOGGED (\d+)", output)
    assert len(logged) >= 24 and logged == list(map(str, range(len(logged)))), output


def test_a_job_of_one_is_the_first_and_evaluates_alone():
    """A job of one makes the object when a method is first called, and evaluates all samples
    itself. Arguments that mean nothing are refused.
    """
    made = []
    with shoal.join() as job:
        log = job.only_first(lambda: made.append(1) or made)
        assert not made and log.count(1) == 1 and log.append(2) is None and made == [1, 2]
        assert job.only_first(lambda: len)("abc") == 3
        assert job.evaluate(7, list, batch=3) == [[0, 1, 2], [3, 4, 5], [6]]
        assert job.evaluate(2, list) == [[0, 1]] and job.evaluate(0, list) == []
        room = numpy.zeros(1)
        parts = job.evaluate(3, lambda at: numpy.copyto(room, at) or room, batch=1)
        assert [part.tolist() for part in parts] == [[0], [1], [2]]  # as several workers have it
        with pytest.raises(TypeError, match="a result is a set, which can go neither"):
            job.evaluate(2, set)
        with pytest.raises(TypeError, match="factory=.*SummaryWriter"):
            job.only_first(made)
        with pytest.raises(TypeError, match="function=None"):
            job.evaluate(3, None)
        with pytest.raises(ValueError, match="batch"):
            job.evaluate(3, list, batch=0)


def test_a_worker_that_has_not_entered_is_not_the_first():
    """A worker that waits to enter has rank 0 of 1, and is not the first of the job: that has a
    first worker already.
    """
    from shoal._runtime.solo import Solo
    from shoal.world import World

    backend = Solo()
    assert World(backend).first
    backend.late = True
    assert not World(backend).first


def test_an_object_from_before_is_closed():
    """A worker that is the first one no more closes its object, and calls no factory."""

    class Double:
        """A job of which this worker is the first, or not, as the test sets `first`."""

        first = True

    from shoal._live.only_first import OnlyFirst

    said, job = [], Double()

    class Log:
        """A log that can be closed."""

        def write(self, text):
            """Keep a text."""
            said.append(text)

        def close(self):
            """Keep that it was closed."""
            said.append("closed")

    log = OnlyFirst(job, Log)
    log.write("a")
    job.first = False
    assert log.write("b") is None and log.write("c") is None
    job.first = True
    log.write("d")
    assert said == ["a", "closed", "d"]
