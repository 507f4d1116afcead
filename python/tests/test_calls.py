"""Slots, tails, bells, waiting and sleeping: the protocol of a call, seen from an agent's side. The
fixture `agent` is an AgentDouble of one rank: while `agent.going` is clear no call completes.
"""

import math
import os
import sys
import threading

import numpy
import pytest

import shoal
from agent_double import AgentDouble
from shoal._runtime import protocol
from shoal._runtime.handle import StagedHandle
from shoal._runtime.worker import _ENTER

DONE_SOON = 30  # seconds; reached only by a hang


def test_a_descriptor(agent):
    """Every field of a descriptor has what the call says."""
    job = agent.join()
    x = job.zeros((3, 4), "float64")
    job.allreduce(x, "mean", weight=2.5)
    (call,) = agent.calls
    assert (call["kind"], call["dtype"], call["op"], call["ndim"], call["shape"]) == (
        1,
        1,
        2,
        2,
        (3, 4),
    )
    assert (call["group"], call["peer"], call["tag"], call["weight"]) == (0, 0, 0, 2.5)
    assert (call["n_in"], call["n_out"]) == (12, 12) and call["seg_in"] == call["seg_out"] == 1
    assert call["off_in"] == call["off_out"] and call["off_in"] % 64 == 0
    assert (call["seg_counts"], call["n_counts"], call["off_counts"]) == (0, 0, 0)


def test_the_descriptor_of_enter_has_all_fields():
    """What a worker posts to become a member fits the layout of descriptors."""
    packed = protocol.DESCRIPTOR.pack(1, *_ENTER)
    assert packed[8] == protocol.KINDS["enter"] and not any(packed[32:])


def test_a_call_without_elements_names_no_memory(agent):
    """The descriptor of a call on an empty array has the shape, and neither a segment nor
    elements.
    """
    job = agent.join()
    for x in (job.empty((0, 3)), numpy.empty((0, 3), "float32")):
        assert job.allreduce(x) is x
    for call in agent.calls:
        assert (call["seg_in"], call["seg_out"], call["n_in"], call["shape"]) == (0, 0, 0, (0, 3))


def test_the_ring_of_slots_turns(agent):
    """Slots are used again, and tickets go on."""
    job = agent.join()
    x = job.zeros(1)
    for _ in range(5 * agent.slots + 3):
        job.allreduce(x)
    assert [c["ticket"] for c in agent.calls] == list(range(1, 5 * agent.slots + 4))


def test_more_calls_under_way_than_slots(agent):
    """A call waits for its slot, and none is lost."""
    job = agent.join()
    arrays = [job.zeros(1) + i for i in range(3 * agent.slots)]
    handles = [job.allreduce_async(x) for x in arrays]
    assert [h.wait() is x for h, x in zip(handles, arrays)] == [True] * len(arrays)
    assert len(agent.calls) == len(arrays)


def test_grouped_calls_ring_once(agent):
    """Calls of a block, of inner blocks too, reach the agent at its end with one bell."""
    job = agent.join()
    job.barrier()
    before = agent.rings
    x = job.zeros(4)
    with job.grouped():
        handles = [job.allreduce_async(x), job.broadcast_async(x), job.barrier_async()]
        assert agent.rings == before and not any(h.done() for h in handles)
        with job.grouped():
            handles.append(job.barrier_async())
        assert len(agent.calls) == 1, "an inner block ends, the outer one goes on"
    for h in handles:
        h.wait()
    assert agent.rings == before + 1 and len(agent.calls) == 5


def test_waiting_inside_a_group_submits_what_there_is(agent):
    """A wait inside a block does not hang."""
    job = agent.join()
    with job.grouped():
        job.allreduce(job.zeros(4))
        late = job.barrier_async()
    late.wait()


def test_more_grouped_calls_than_slots(agent):
    """A block with more calls than slots does not hang."""
    job = agent.join()
    x = job.zeros(1)
    with job.grouped():
        handles = [job.allreduce_async(x) for _ in range(2 * agent.slots + 1)]
    for h in handles:
        h.wait()


def test_a_thread_that_is_woken_as_its_sleep_ends_can_be_woken_again(agent, monkeypatch):
    """A thread whose sleep has ended by time just when another one woke it goes on to sleep, and
    the next one that wakes it finds its lock taken.
    """
    woken_twice = threading.Event()

    class Late:
        """A lock whose first timed wait ends as it is released, and the next one begins late."""

        def __init__(self):
            self._lock, self._sleeps = threading.Lock(), 0
            self._lock.acquire()
            self.release = self._lock.release

        def acquire(self, blocking=True, timeout=-1):
            if timeout < 0:
                return self._lock.acquire(blocking)
            self._sleeps += 1
            if self._sleeps == 1:
                with self._lock:  # released by another thread
                    return False
            woken_twice.wait(DONE_SOON)
            return self._lock.acquire(timeout=timeout)

    job = agent.join()
    calls = job._backend.calls
    agent.going.clear()
    first, second = job.barrier_async(), job.barrier_async()
    leader = threading.Thread(target=first.wait)
    leader.start()
    while not calls._leader:
        os.sched_yield()
    monkeypatch.setattr("shoal._runtime.calls._taken_lock", Late)
    sleeper = threading.Thread(target=second.wait)
    sleeper.start()
    try:
        for _ in range(2):
            while not calls._sleepers:
                os.sched_yield()
            with calls._parking_lock:
                calls._wake_sleepers()
    finally:
        woken_twice.set()
        agent.going.set()
        sleeper.join()
        leader.join()


def test_done_never_blocks(agent):
    """done() is False while the agent has not executed the call, and True after that."""
    job = agent.join()
    agent.going.clear()
    handle = job.barrier_async()
    assert not handle.done()
    agent.going.set()
    handle.wait()
    assert handle.done()


def test_a_wait_with_a_timeout_can_be_repeated(agent):
    """A wait that times out raises TimeoutError each time, and a later one returns the result."""
    job = agent.join()
    agent.going.clear()
    x = numpy.ones(3)
    handle = job.allreduce_async(x)
    for _ in range(2):
        with pytest.raises(TimeoutError, match="another rank"):
            handle.wait(timeout=0.001)
    agent.going.set()
    assert handle.wait(timeout=DONE_SOON) is x


def test_a_wait_takes_any_number_of_seconds(agent):
    """A timeout may be longer than any system call takes, on the thread that polls the bell and on
    one that waits for that thread.
    """
    job = agent.join()
    agent.going.clear()
    errors = []

    def work(handle, seconds):
        """Wait so many seconds, and keep the error."""
        try:
            handle.wait(seconds)
        except OverflowError as err:
            errors.append(err)

    threads = [
        threading.Thread(target=work, args=(job.barrier_async(), seconds))
        for seconds in (math.inf, 1e12, 1e12)
    ]
    for t in threads:
        t.start()
    while not errors and len(job._backend.calls._sleepers) < 2:
        os.sched_yield()
    agent.going.set()
    for t in threads:
        t.join(DONE_SOON)
    assert not errors and not any(t.is_alive() for t in threads)


@pytest.mark.parametrize("spin_us", [0, 200])
def test_a_failed_call_raises_the_agents_reason_every_time(spin_us):
    """Every wait for a failed call raises MismatchError with the agent's text, cut to what a slot
    holds; the next call succeeds.
    """
    with AgentDouble(spin_us=spin_us) as agent:
        job = agent.join()
        agent.error = "the ranks disagree: ümlaut " + "x" * 2000
        handle = job.allreduce_async(numpy.ones(3))
        for _ in range(2):
            with pytest.raises(shoal.MismatchError, match="^the ranks disagree: ümlaut x{700}"):
                handle.wait()
        assert handle.done()
        assert (job.allreduce(numpy.ones(3)) == 1).all(), "the next call is not touched"


def test_a_failed_call_leaves_foreign_memory_alone(agent):
    """The output of a failed call keeps its elements."""
    job = agent.join()
    agent.error = "no"
    x, out = numpy.ones(3), numpy.full(3, 7.0)
    with pytest.raises(shoal.MismatchError):
        job.allreduce(x, out=out)
    assert (out == 7).all()


def test_an_error_outlives_its_slot(agent):
    """An error is kept although another call has used the slot since."""
    job = agent.join()
    agent.error = "this one"
    handle = job.barrier_async()
    for _ in range(2 * agent.slots):
        job.barrier()
    with pytest.raises(shoal.MismatchError, match="this one"):
        handle.wait()


def test_many_threads_submit_and_wait():
    """Calls of several threads neither mix nor get lost."""
    with AgentDouble(slots=8) as agent:
        job = agent.join()
        wrong = []

        def work(number):
            """Make calls one after the other, and note what is wrong."""
            x = (
                numpy.full(10, number, "float64")
                if number % 2
                else job.zeros(10, "float64") + number
            )
            for _ in range(50):
                handles = [job.allreduce_async(x), job.barrier_async()]
                if (
                    handles[0].wait() is not x
                    or handles[1].wait() is not None
                    or (x != number).any()
                ):
                    wrong.append(number)

        threads = [threading.Thread(target=work, args=(i,)) for i in range(6)]
        for t in threads:
            t.start()
        for t in threads:
            t.join(DONE_SOON)
        assert not any(t.is_alive() for t in threads) and not wrong
        assert sorted(c["ticket"] for c in agent.calls) == list(range(1, 601))


def test_several_threads_wait_for_one_handle(agent):
    """All threads that wait for one handle get the result of its call."""
    job = agent.join()
    agent.going.clear()
    x = numpy.ones(5)
    handle = job.allreduce_async(x)
    results = []
    threads = [threading.Thread(target=lambda: results.append(handle.wait())) for _ in range(4)]
    for t in threads:
        t.start()
    agent.going.set()
    for t in threads:
        t.join(DONE_SOON)
    assert len(results) == 4 and all(r is x for r in results)


def test_an_agent_that_vanishes_wakes_every_waiter(agent):
    """All threads that wait get LostError, and so does every later call."""
    job = agent.join()
    agent.going.clear()
    handle = job.barrier_async()
    errors = []

    def work():
        """Wait, and keep the error."""
        try:
            handle.wait()
        except shoal.LostError as err:
            errors.append(err)

    threads = [threading.Thread(target=work) for _ in range(3)]
    for t in threads:
        t.start()
    agent.hang_up()
    for t in threads:
        t.join(DONE_SOON)
    assert len(errors) == 3
    for call in (
        job.barrier,
        lambda: job.empty(3),
        lambda: job.report(a=1),
        lambda: job.group([0]),
        handle.done,
    ):
        with pytest.raises(shoal.LostError, match="the agent of job double is gone"):
            call()


def test_agent_says_why_it_hangs_up(agent):
    """Who is cut off hears why from every call, also from one that waits."""
    job = agent.join()
    agent.going.clear()
    handle = job.allreduce_async(numpy.ones(3))
    agent.hang_up({"type": "error", "error": "contradicted the other workers (batch)"})
    for call in (handle.wait, job.barrier, lambda: job.group([0])):
        with pytest.raises(
            shoal.LostError,
            match=r"job double takes nothing more from this worker, which contradicted .*\(batch\)",
        ):
            call()


def test_what_was_complete_before_the_agent_vanished_counts(agent):
    """A call that was complete has its result, although the agent is gone."""
    job = agent.join()
    handle = job.allreduce_async(numpy.ones(3))
    while not handle.done():
        os.sched_yield()
    agent.hang_up()
    assert (handle.wait() == 1).all()


def test_two_ranks():
    """Two workers of one agent get the sum of both arrays."""
    with AgentDouble(size=2) as agent:
        jobs = [agent.join(0), agent.join(1)]
        arrays = [numpy.full(4, 1.0), jobs[1].zeros(4, "float64") + 2]
        handles = [job.allreduce_async(x) for job, x in zip(jobs, arrays)]
        for h in handles:
            assert (h.wait() == 3).all()


def test_a_handle_whose_making_was_interrupted_says_nothing(monkeypatch):
    """Nothing is printed beside the Ctrl-C that came in the middle of it."""
    said = []
    monkeypatch.setattr(sys, "unraisablehook", said.append)
    StagedHandle.__new__(StagedHandle)
    assert not said
