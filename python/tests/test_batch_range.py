"""A batch that changes between two steps, as a worker follows it: without an agent, which the tests
stand in for.
"""

import dataclasses

import numpy
import pytest

from shoal._live.epochs import End
from shoal._runtime.protocol import SETTING
from shoal._runtime.solo import Solo
from shoal._runtime.view import View
from shoal.errors import ShoalError
from shoal.job import Job


class Changing(Solo):
    """A job of one whose test plays the agent that changes the batch: `declared` has what the
    worker has stated, and `rate` is the factor of the learning rate in the job's setting.
    """

    def __init__(self):
        """A job of which nothing was stated yet."""
        super().__init__()
        self.declared, self.rate = [], 0.0

    def declare_data(self, place, batch, batch_range=None):
        """Keep what the worker states."""
        self.declared.append((place.batch, batch, batch_range))

    def ask_rate(self):
        """The factor in the setting."""
        return self.rate

    def change_batch(self, job, batch, flags=SETTING):
        """Have the view with which the step under way is committed bring another batch."""
        after = job._progress.cursor.commit(1, [True])
        self.view = View(
            generation=1, flags=flags, cursor=dataclasses.replace(after, batch=batch).pack()
        )
        job._progress.mark_view_changed()


def _job():
    """A job of one that a test changes, and its agent."""
    agent = Changing()
    return Job(agent), agent


def test_each_sample_comes_once_whatever_the_batch_becomes():
    """Two epochs of 40 samples, whose batch grows and shrinks amid an epoch: each sample once an
    epoch, each batch as large as it is to be, and what was drawn ahead is drawn anew.
    """
    job, agent = _job()
    agent.rate = 1.5
    changes = {1: 16, 3: 4, 7: 8}  # after the step of the number
    seen, counts = [[], []], []
    for step in job.steps(40, 8, epochs=2, seed=3, batch_range=(4, 16)):
        seen[step.epoch] += list(step.indices)
        assert step.weight == len(step.indices) == step.count
        counts.append(step.count)
        job._progress.batch_ahead(2)  # as the loader does
        if step.number in changes:
            agent.change_batch(job, changes[step.number])
        step.allreduce(numpy.zeros(1))
    assert [sorted(epoch) for epoch in seen] == [list(range(40))] * 2
    assert counts == [8, 8, 16, 8, 4, 4, 4, 4, 8, 8, 8]
    assert job._progress.rate == 1.5 and agent.declared == [(8, 8, (4, 16))]


def test_a_closed_batch_asks_for_nothing():
    """Without a range the agent is told none, and a view without the flag asks for no rate."""
    job, agent = _job()
    agent.rate = 2.0
    for step in job.steps(8, 4):
        agent.change_batch(job, 4, flags=0)
        step.allreduce(numpy.zeros(1))
    assert agent.declared == [(4, 4, None)] and job._progress.rate == 0


@pytest.mark.parametrize(
    "value, error, message",
    [
        ((16, 4), ValueError, r"batch_range=\(16, 4\) is reversed"),
        ((1, 7), ValueError, r"batch_range=\(1, 7\) does not contain batch=8"),
        ((9, 20), ValueError, r"batch_range=\(9, 20\) does not contain batch=8"),
        ((0, 8), ValueError, r"batch_range: the least=0: an integer from 1"),
        ((8, 2**63), ValueError, r"batch_range: the most=9223372036854775808: an integer"),
        ((4.0, 8), TypeError, r"batch_range: the least=4.0"),
        (8, TypeError, r"batch_range=8: the least and the most samples of a step"),
        ((4, 8, 16), TypeError, r"batch_range=\(4, 8, 16\): the least and the most"),
    ],
)
def test_ranges_that_make_no_sense(value, error, message):
    """A range that is reversed, does not contain the batch, or is none, is refused with its
    numbers.
    """
    with pytest.raises(error, match=message):
        next(iter(Job(Solo()).steps(8, 8, batch_range=value)))


def test_all_loops_have_one_range():
    """A second loop states the batch that the program began with, though another is in force, and
    the same range.
    """
    job, agent = _job()
    for step in job.steps(16, 8, batch_range=(4, 16)):
        agent.change_batch(job, 4)
        step.allreduce(numpy.zeros(1))
    assert job.place(16, 8, batch_range=(4, 16)).cursor.batch == 4
    with pytest.raises(ValueError, match="this job trains with .4, 16., and all its loops have"):
        job.place(16, 8)


def test_a_checkpoint_keeps_its_batch(tmp_path):
    """A program goes on with the batch of the checkpoint where its range has it, and is refused
    where it has not.
    """

    def begin(agent, **options):
        """A job that goes on from the newest checkpoint; returns its first step."""
        job = Job(agent)
        job.checkpoint(tmp_path, every=1)
        step = next(iter(job.steps(40, 8, **options)))
        return job, step

    first = Changing()
    job, step = begin(first, batch_range=(4, 16))
    first.change_batch(job, 16)
    step.allreduce(numpy.zeros(1))
    job._progress.finish_step(End(9, None))
    job._checkpoints.wait()
    second = Changing()
    job, step = begin(second, batch_range=(8, 32))
    assert step.number == 1 and step.count == 16
    assert second.declared == [(8, 8, (8, 32)), (16, 8, (8, 32))]
    for options in ({}, {"batch_range": (8, 15)}):
        with pytest.raises(ShoalError, match=r"is of a job with .* = \(40, 16, 0, True\), this"):
            begin(Changing(), **options)
