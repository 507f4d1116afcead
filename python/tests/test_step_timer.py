"""What a worker tells its agent of each step: where its time went, and its loss."""

import struct

from shoal._runtime import step_timer
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
    monkeypatch.setattr(step_timer, "perf_counter_ns", clock)
    timer = step_timer.StepTimer()

    def packed():
        """What is told now: data, compute, update, loss."""
        return struct.unpack("<IIIf", timer.pack())

    assert packed() == (0, 0, 0, 0)
    timer.record_step_request()
    since = clock.now
    clock.step = 7
    timer.add_data_wait(since)
    clock.step = 0
    timer.record_body_start()
    clock.step = 50
    assert packed() == (7, 50, 0, 0)
    assert packed() == (7, 100, 0, 0)
    clock.step = 0
    timer.record_average_done()
    clock.step = 11
    timer.record_step_request()
    clock.step = 0
    timer.record_body_start()
    timer.record_loss(2.5)
    assert packed() == (0, 0, 11, 2.5)
    assert packed() == (0, 0, 11, 0)  # a loss is told once
    for loss in (float("nan"), float("inf"), 1e300):
        timer.record_loss(loss)
        assert packed()[3] == 0
    clock.step = 50  # a device's gradients are there before the call that ends the step
    timer.record_step_request()
    timer.record_body_start()
    timer.record_gradients_ready()
    timer.record_gradients_ready()
    assert packed()[1] == 50
    timer.record_body_start()
    clock.step = 10**10
    assert packed()[1] == 2**32 - 1
    clock.step = 0
    timer.record_step_request()
    since = clock.now
    timer.add_partner_wait(since)  # outside of a step
    timer.record_body_start()
    clock.step = 50
    timer.record_local_step_request()  # computed for 50
    clock.step = 0
    timer.record_body_start()
    since = clock.now
    clock.step = 400
    timer.add_partner_wait(since)  # a partner took longer
    clock.step = 20
    assert packed()[1] == 70
    timer.record_step_request()  # the step before has had no average
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
    assert [call["step_times"][:12] for call in agent.calls] == [bytes(12)] * 3
    assert [struct.unpack("<f", call["step_times"][12:])[0] for call in agent.calls] == [0, 0.5, 0]


def test_a_loop_tells_of_its_steps(monkeypatch):
    """A loop over steps tells how long its body took, and from the second on what came before."""
    clock = Clock()
    clock.step = 3
    monkeypatch.setattr(step_timer, "perf_counter_ns", clock)
    job = Job(Solo())
    x = job.zeros(3)
    seen = []
    for step in job.steps(6, 2, epochs=1):
        seen.append(struct.unpack("<IIIf", job._backend.step_timer.pack()))
        step.allreduce(x)
    assert seen == [(0, 3, 0, 0), (0, 3, 3, 0), (0, 3, 3, 0)]
