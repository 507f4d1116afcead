"""How long a training is, where its loop does not say it: `shoal.goal`."""

import numpy
import pytest
from changing_job import changing_job

import shoal


@pytest.fixture
def joined(monkeypatch):
    """Returns a function that makes a job of one, which this process has joined, and its agent."""

    def make():
        """The job and its agent."""
        job, agent = changing_job()
        monkeypatch.setattr("shoal.job._current", job)
        return job, agent

    return make


def train(job, loops, **options):
    """Train on 40 samples, 8 a step, in so many loops."""
    for _ in range(loops):
        for step in job.steps(40, 8, **options):
            step.allreduce(numpy.zeros(1))


def test_a_loop_for_each_epoch(joined):
    """Nothing is told without a goal; with one, what it comes to, and again with another batch."""
    job, agent = joined()
    train(job, 2)
    assert agent.goals == []
    job, agent = joined()
    shoal.goal(epochs=3)
    assert agent.goals == []  # it is not known yet how many steps an epoch has
    train(job, 1)
    assert agent.goals == [15]
    for step in job.steps(40, 8):
        if step.number == 6:
            shoal.goal(epochs=3, steps=12)
        step.allreduce(numpy.zeros(1))
    assert agent.goals == [15, 12]
    job, agent = joined()
    shoal.goal(epochs=2)
    for step in job.steps(40, 8, batch_range=(4, 16)):
        if step.number == 0:
            agent.change_batch(job, 16)
        step.allreduce(numpy.zeros(1))
    assert agent.goals == [10, 1 + 2 + 3]


def test_a_loop_that_says_more_or_less(joined):
    """What the program says holds, whatever its loop says; a loop without an end says nothing."""
    job, agent = joined()
    shoal.goal(steps=7)
    train(job, 1, epochs=2)
    assert set(agent.goals) == {7}
    from shoal._live.epochs import FOREVER

    job, agent = joined()
    for step in job.steps(40, 8, epochs=FOREVER):
        if step.number == 3:
            break
        step.allreduce(numpy.zeros(1))
    assert agent.goals == []


def test_a_loop_of_its_own(joined):
    """A program that makes its steps by itself tells them at once."""
    job, agent = joined()
    shoal.goal(steps=2000)
    shoal.goal(steps=1000)
    assert agent.goals == [2000, 1000]


@pytest.mark.parametrize(
    "options, error, message",
    [
        ({}, TypeError, "says nothing: give the steps or the epochs"),
        ({"steps": 0}, ValueError, "steps=0: how many steps the whole training has"),
        ({"steps": 2**53}, ValueError, "steps=9007199254740992"),
        ({"steps": 1.5}, TypeError, "steps=1.5"),
        ({"epochs": -1}, ValueError, "epochs=-1: how many epochs"),
        ({"epochs": 1 << 40}, ValueError, "epochs=1099511627776"),
    ],
)
def test_no_goal(joined, options, error, message):
    """What is no length of a training is refused, and nothing is told."""
    job, agent = joined()
    with pytest.raises(error, match=message):
        shoal.goal(**options)
    assert agent.goals == []
