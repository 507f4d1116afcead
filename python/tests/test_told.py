"""What a worker tells its agent of each step: where its time went, and its loss."""

import struct

from shoal._runtime import told
from shoal._runtime.protocol import MORE, STEP
from shoal._runtime.solo import Solo
from shoal.job import Job


class Clock:
    """A clock that goes on by so many microseconds with each look at it."""

    def __init__(self):
        """At one second."""
        self.now, self.step = 1_000_000_000, 0

    def __call__(self):
        """The time in nanoseconds."""
        self.now += 1000 * self.step
        return self.now


def test_where_the_time_of_a_step_goes(monkeypatch):
    """The wait for samples, the body up to the last gradient, and what follows the average, which
    is told with the next step; a void step that is made again is told anew, from its begin.
    """
    clock = Clock()
    monkeypatch.setattr(told, "perf_counter_ns", clock)
    here = told.Told()

    def packed():
        """What is told now: data, compute, update, loss."""
        return struct.unpack("<IIIf", here.pack())

    assert packed() == (0, 0, 0, 0)
    here.asked()
    since = clock.now
    clock.step = 7
    here.waited(since)
    clock.step = 0
    here.given()
    clock.step = 50
    assert packed() == (7, 50, 0, 0)
    assert packed() == (7, 100, 0, 0)
    clock.step = 0
    here.averaged()
    clock.step = 11
    here.asked()
    clock.step = 0
    here.given()
    here.report(2.5)
    assert packed() == (0, 0, 11, 2.5)
    assert packed() == (0, 0, 11, 0)  # a loss is told once
    for loss in (float("nan"), float("inf"), 1e300):
        here.report(loss)
        assert packed()[3] == 0
    clock.step = 50  # a device's gradients are there before the call that ends the step
    here.asked()
    here.given()
    here.computed()
    here.computed()
    assert packed()[1] == 50
    here.given()
    clock.step = 10**10
    assert packed()[1] == 2**32 - 1
    clock.step = 0
    here.asked()
    since = clock.now
    here.met(since)  # outside of a step
    here.given()
    clock.step = 50
    here.asked_in_round()  # computed for 50
    clock.step = 0
    here.given()
    since = clock.now
    clock.step = 400
    here.met(since)  # a partner took longer
    clock.step = 20
    assert packed()[1] == 70
    here.asked()  # the step before has had no average
    assert packed()[2] == 0


def test_a_call_that_ends_a_step_tells(agent):
    """The agent learns it with that call, and with no other; the loss is the one that was reported
    last.
    """
    job = agent.join()
    x = job.zeros(3)
    job.report(loss=3, step=1)
    job.report(loss=0.5)
    job.report(accuracy=0.25)
    more = job.allreduce_async(x, "mean", flags=MORE)
    job.allreduce_async(x, "mean", flags=STEP).wait()
    more.wait()
    job.allreduce(x)
    assert [call["told"][:12] for call in agent.calls] == [bytes(12)] * 3
    assert [struct.unpack("<f", call["told"][12:])[0] for call in agent.calls] == [0, 0.5, 0]


def test_a_loop_tells_of_its_steps(monkeypatch):
    """A loop over steps tells how long its body took, and from the second on what came before."""
    clock = Clock()
    clock.step = 3
    monkeypatch.setattr(told, "perf_counter_ns", clock)
    job = Job(Solo())
    x = job.zeros(3)
    seen = []
    for step in job.steps(6, 2, epochs=1):
        seen.append(struct.unpack("<IIIf", job._backend.told.pack()))
        step.allreduce(x)
    assert seen == [(0, 3, 0, 0), (0, 3, 3, 0), (0, 3, 3, 0)]
