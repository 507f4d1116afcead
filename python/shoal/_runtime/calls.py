"""Submission and completion of calls: the slots of the control block, the tail, and how threads
sleep and wake.
"""

from __future__ import annotations

import math
import mmap
import os
import select
import struct
import threading
from time import perf_counter_ns
from typing import Any, Callable, Dict, List, Optional, Tuple

from ..errors import ForkError, ShoalError
from .core import CROWDED_NS, Core
from .fence import fences
from .fork import Mapping
from .handle import Handle
from .link import POLLRDHUP, Link
from .protocol import (
    AGENT_PARKED_WORD32,
    CHANGED,
    COMPLETION,
    DESCRIPTOR,
    DONE,
    ERROR_LENGTH,
    ERROR_LENGTH_AT,
    ERROR_TEXT_AT,
    FAILED,
    FED_WORD,
    GIVEN_UP,
    HEADER_BYTES,
    LOST,
    TAIL_WORD,
    THROUGH_WORD,
    WORKER_PARKED_WORD32,
)
from .view import View

# A signal between the last look of Python for signals and the system call that sleeps does not
# end the sleep: its handler, Ctrl-C's KeyboardInterrupt, has to wait for the end of the sleep.
LOOK_AGAIN_S = 1.0

_ONE = struct.pack("<Q", 1)
_pack = DESCRIPTOR.pack_into
_sched_yield = getattr(os, "sched_yield", lambda: None)


class Calls:
    """The calls of one worker. Any thread may submit and any thread may wait.

    Of the waiting threads one, the leader, polls the bell; the others sleep until it wakes them
    after each ring, and one of them takes over when it returns. Lock order: the arena's, then the
    slots', then the link's turn; the parking lock is never held together with another.
    """

    def __init__(
        self,
        link: Link,
        block: mmap.mmap,
        fd: int,
        slots: int,
        slot_bytes: int,
        bells: Tuple[int, int],
        spin_us: int,
        core: Optional[Core] = None,
    ) -> None:
        """Take over the control block, its descriptor and both bells, which `close` closes. A wait
        polls for `spin_us` microseconds before it sleeps. `core` is where a waiting thread moves
        whose own core is crowded; None = it stays.
        """
        self._link = link
        self.mapping = Mapping(block, fd)
        self._bytes = memoryview(block)
        self._words = self._bytes.cast("Q")
        self._words32 = self._bytes.cast("I")
        self._slots = slots
        self._slot_bytes = slot_bytes
        self._agent_bell, self._worker_bell = bells
        self._spin_ns = spin_us * 1000
        self._fence, self._order = fences()
        self._core = core
        # The slots' lock. Guards the next fields, and the slots that no call uses.
        self._lock = threading.Lock()
        self._tail = 0  # number of calls described: the ticket of the newest
        self._published = 0  # number of calls that the agent was told of; at most `_tail`
        # A lock for each grouped() block, taken as long as that is open: a Ctrl-C anywhere in it
        # cannot leave one taken.
        self._blocks: List[threading.Lock] = []
        # Calls that no thread has seen complete, by ticket. Until then their slots must not be
        # reused, and their arrays not be freed. Put in with the lock held; taken out and looked up
        # without it, by atomic operations.
        self._open: Dict[int, Handle[Any]] = {}
        # Guards the next fields. No Condition: a Ctrl-C in the middle of one of its methods can
        # leave its lock taken, or free where it should be taken.
        self._parking_lock = threading.Lock()
        # A lock for each thread that sleeps and is not the leader, which is taken; to release it
        # wakes the thread.
        self._sleepers: List[threading.Lock] = []
        self._leader = 0  # which thread is the leader, as get_ident() has it; 0 = none
        self._poll = select.poll()
        self._poll.register(self._worker_bell, select.POLLIN)
        self._poll.register(link.socket, POLLRDHUP)
        # Called when the agent has written another view, with the slots' lock held. Set once, by
        # Worker, before the first call.
        self.on_change: Callable[[], None] = lambda: None

    def submit(self, handle: Handle[Any], *descriptor: Any) -> None:
        """Describe a call in the next slot of the control block, and tell the agent unless `hold`
        is in effect. Takes all fields of the descriptor but the ticket, and sets the handle's.
        Waits where the slot still has the call that used it last; raises ShoalError where that one
        has timed out.
        """
        while True:
            with self._lock:
                ticket = self._tail + 1
                before = self._open.get(ticket - self._slots)
                if before is None:
                    self._link.check()
                    at = HEADER_BYTES + (ticket - 1) % self._slots * self._slot_bytes
                    _pack(self._bytes, at, ticket, *descriptor)
                    handle.ticket = ticket
                    handle.word = (at + COMPLETION) >> 3
                    handle.floor = ticket << 8
                    self._open[ticket] = handle
                    # In this order, so that a Ctrl-C between two lines can neither lose nor repeat
                    # a ticket.
                    self._tail = ticket
                    if not self._holds():
                        self._publish()
                    return
            if before.given_up and not self.poll(before):
                raise ShoalError(
                    f"call {before.ticket} timed out and still waits for other ranks, in the slot"
                    f" that comes next after {self._slots} calls: end the job after a timeout, or"
                    " use longer ones"
                )
            self.wait(before)

    def _publish(self) -> None:
        """Tell the agent of all calls described so far, and ring its bell if it sleeps. The slots'
        lock is held.
        """
        self._order()
        self._words[TAIL_WORD] = self._published = self._tail
        self._fence()
        if self._words32[AGENT_PARKED_WORD32]:
            os.write(self._agent_bell, _ONE)

    def hold(self, block: threading.Lock) -> None:
        """Collect the calls of all threads as long as `block` is taken, or until a thread waits for
        one of them. Several may be taken at once.
        """
        self._link.check()
        with self._lock:
            self._blocks.append(block)

    def release(self) -> None:
        """Publish the collected calls, with one store and one bell, if no block is taken."""
        self._link.check()
        with self._lock:
            if not self._holds() and self._published != self._tail:
                self._publish()

    def _holds(self) -> bool:
        """Whether calls are collected; forgets the blocks that have ended. The slots' lock is
        held.
        """
        if self._blocks:
            self._blocks = [block for block in self._blocks if block.locked()]
        return bool(self._blocks)

    def poll(self, handle: Handle[Any]) -> bool:
        """Whether the call is complete; settles the handle if so. Never blocks on other ranks or
        the agent. Raises what broke the link where the call can never be complete.
        """
        if handle.status:
            return True
        if isinstance(self._link.broken, ForkError):
            self._link.check()
        word = self._words[handle.word]
        if word <= handle.floor:
            self._link.check()
            return False
        self._order()
        if word == handle.floor + DONE:
            handle.settle(DONE)
        else:
            with self._lock:
                # unless the next user of the slot has settled this call and written over it
                if not handle.status and word == handle.floor + CHANGED:
                    self.on_change()
                    handle.settle(DONE)
                elif not handle.status:
                    handle.settle(
                        LOST if word == handle.floor + LOST else FAILED, self._error_text(handle)
                    )
        self._open.pop(handle.ticket, None)
        return True

    def _error_text(self, handle: Handle[Any]) -> str:
        """Why a call failed, read from its slot. The slots' lock is held."""
        slot = handle.word * 8 - COMPLETION
        (length,) = ERROR_LENGTH.unpack_from(self._bytes, slot + ERROR_LENGTH_AT)
        end = min(slot + ERROR_TEXT_AT + length, slot + self._slot_bytes)
        return str(self._bytes[slot + ERROR_TEXT_AT : end], "utf-8", "replace")

    def read_view(self) -> View:
        """The view that the agent wrote last into the control block."""
        return View.read(self._bytes)

    def source_rank(self, handle: Handle[Any]) -> int:
        """The rank inside the group from which a receive got its message, read from its slot; valid
        until the slot is used again.
        """
        (rank,) = ERROR_LENGTH.unpack_from(
            self._bytes, handle.word * 8 - COMPLETION + ERROR_LENGTH_AT
        )
        return int(rank)

    def settle_completed(self, before: float = math.inf) -> None:
        """Settle all calls that are complete, with a ticket below `before`, which lets go of their
        arrays and takes over the view that they tell of. Waits for no call. The arena calls it with
        its lock held.
        """
        for handle in list(self._open.values()):
            if handle.ticket < before and self._words[handle.word] > handle.floor:
                self.poll(handle)

    def wait(self, handle: Handle[Any], timeout: Optional[float] = None) -> None:
        """Block until the call is complete: look, then yield the processor between looks, then
        sleep.

        Raises TimeoutError when that takes longer than `timeout` seconds.
        """
        if isinstance(self._link.broken, ForkError):
            self._link.check()
        words, word, floor = self._words, handle.word, handle.floor
        if words[word] <= floor:
            if handle.ticket > self._published:
                with self._lock:
                    self._publish()
            start = now = perf_counter_ns()
            stop = start + self._spin_ns
            deadline = None
            if timeout is not None and timeout != math.inf:
                deadline = start + int(timeout * 1e9)
            while words[word] <= floor:
                _sched_yield()
                before, now = now, perf_counter_ns()
                if now > stop:
                    if now - before > CROWDED_NS and self._core is not None and self._spin_ns:
                        self._core.move_thread_here(now)
                    try:
                        self._sleep_until(lambda: words[word] > floor, deadline)
                    except TimeoutError:
                        handle.given_up = True
                        raise
                    break
        self.poll(handle)

    def withdraw(self, handle: Handle[Any]) -> None:
        """Ask the agent to take a call back if it still waits for other ranks, and wait for the
        answer: what is submitted then takes the place of the call. Nothing where the link is
        broken.
        """
        try:
            self._link.request({"type": "withdraw", "ticket": handle.ticket}, "withdraw")
        except ShoalError:
            pass

    def publish_pieces(self, handle: Handle[Any], pieces: int = GIVEN_UP) -> None:
        """Tell the agent how many pieces of a call are in its window, or that no more will come
        (GIVEN_UP). Only the thread that moves the pieces calls it, without a lock.
        """
        self._order()
        self._words[handle.word + FED_WORD - COMPLETION // 8] = pieces
        self._fence()
        if self._words32[AGENT_PARKED_WORD32]:
            os.write(self._agent_bell, _ONE)

    def wait_for_pieces(self, handle: Handle[Any], pieces: int) -> bool:
        """Block until so many pieces of a call have their result in the window. False when the call
        has failed.
        """
        words, word, floor = self._words, handle.word, handle.floor
        through = word + THROUGH_WORD - COMPLETION // 8

        def over() -> bool:
            """Whether there are so many results, or the call is complete."""
            return words[through] >= pieces or words[word] > floor

        if handle.ticket > self._published:  # a group is open
            with self._lock:
                self._publish()
        stop = perf_counter_ns() + self._spin_ns
        while not over():
            _sched_yield()
            if perf_counter_ns() > stop:
                self._sleep_until(over, None)
        self._order()
        return words[through] >= pieces

    def wait_for_ticket(self, ticket: int) -> None:
        """Block until the call of a ticket is complete; returns at once where that was seen
        before.
        """
        handle = self._open.get(ticket)
        if handle is not None:
            self.wait(handle)

    def _sleep_until(self, over: Callable[[], bool], deadline: Optional[int]) -> None:
        """Sleep until `over` is true, polling the bell where no other thread does. Raises
        TimeoutError at the `deadline`, in nanoseconds of perf_counter_ns(); None = wait without
        end. No lock is held. What breaks the link is raised.
        """
        leading = 0  # this thread, once it is the leader
        sleeper = _taken_lock()
        try:
            while not leading:
                with self._parking_lock:
                    if over():
                        return
                    self._link.check()
                    if not self._leader:
                        self._leader = leading = threading.get_ident()
                    elif sleeper not in self._sleepers:
                        sleeper.acquire(blocking=False)  # free where it was woken just too late
                        self._sleepers.append(sleeper)
                if not leading:
                    sleeper.acquire(timeout=_seconds_to_sleep(deadline))
            self._poll_bell(over, deadline)
        finally:
            if leading:
                self._words32[WORKER_PARKED_WORD32] = 0
            with self._parking_lock:
                if leading:
                    self._leader = 0
                    self._wake_sleepers()
                elif sleeper in self._sleepers:
                    self._sleepers.remove(sleeper)

    def _poll_bell(self, over: Callable[[], bool], deadline: Optional[int]) -> None:
        """Poll the worker's bell until `over` is true, and wake the other threads after each ring.
        This thread is the leader. Raises LostError when the agent hangs up.
        """
        self._words32[WORKER_PARKED_WORD32] = 1
        self._fence()
        while not over():
            hung_up = False
            for fd, _ in self._poll.poll(_seconds_to_sleep(deadline) * 1000):
                if fd == self._worker_bell:
                    os.read(fd, 8)
                else:
                    hung_up = True
            if over():
                return
            self._link.check()
            if hung_up:
                raise self._link.mark_lost()
            with self._parking_lock:
                self._wake_sleepers()

    def _wake_sleepers(self) -> None:
        """Wake all threads that sleep and are not the leader. The parking lock is held."""
        while self._sleepers:
            self._sleepers.pop().release()

    def close(self) -> None:
        """Close the bells and the descriptor of the control block. The link must be closed already,
        so that no thread submits and the leader returns; this waits for the leader. Where it is
        this thread, which the handler of a signal has interrupted, the bells stay open.
        """
        sleeper = _taken_lock()
        while True:
            with self._parking_lock:
                if self._leader in (0, threading.get_ident()):
                    break
                if sleeper not in self._sleepers:
                    sleeper.acquire(blocking=False)
                    self._sleepers.append(sleeper)
            sleeper.acquire(timeout=LOOK_AGAIN_S)
        self.mapping.close_fd()
        if self._leader:
            os.write(self._worker_bell, _ONE)  # so that it looks, and finds the link closed
            return
        with self._lock:
            self._close_bells()

    def _close_bells(self) -> None:
        """Close the descriptors of both bells. The slots' lock is held, or this is a forked
        child.
        """
        os.close(self._agent_bell)
        os.close(self._worker_bell)

    def disown(self) -> None:
        """In a forked child: write no more to the control block of the parent, and close the
        descriptors. Takes no lock.
        """
        self.mapping.make_private()
        self._close_bells()


def _taken_lock() -> threading.Lock:
    """A new lock, on which the thread that has made it sleeps until another one releases it."""
    lock = threading.Lock()
    lock.acquire()
    return lock


def _seconds_to_sleep(deadline: Optional[int]) -> float:
    """The seconds until a deadline of perf_counter_ns(), LOOK_AGAIN_S at most and where it is None.
    Raises TimeoutError once it has passed.
    """
    if deadline is None:
        return LOOK_AGAIN_S
    seconds = (deadline - perf_counter_ns()) / 1e9
    if seconds <= 0:
        raise TimeoutError(
            "the call is not complete: another rank has not made its part of it, or is slow"
        )
    return min(seconds, LOOK_AGAIN_S)


def error_after_leave(job: str) -> ShoalError:
    """The error that every call raises after `leave`."""
    return ShoalError(
        f"job {job} was left: call shoal.join() before the first collective, and leave() after the"
        " last"
    )
