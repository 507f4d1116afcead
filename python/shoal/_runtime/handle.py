"""What an asynchronous collective returns."""

from __future__ import annotations

import threading
from typing import Any, Generic, List, Optional, Protocol, Tuple, TypeVar

from ..errors import LostError, MismatchError
from .arena import Arena, Place, Staging
from .protocol import DONE, GIVEN_UP, LOST
from .tensor import Tensor

T = TypeVar("T")


class Waiter(Protocol):
    """What a handle needs of those who know the completion words: the Calls of its worker. Any
    thread may call the methods; only `wait` and `wait_for_pieces` block.
    """

    def poll(self, handle: "Handle[Any]") -> bool:
        """Whether the call is complete; settles the handle if so. Waits for no other rank."""

    def wait(self, handle: "Handle[Any]", timeout: Optional[float] = None) -> None:
        """Block until the call is complete, for at most `timeout` seconds."""

    def withdraw(self, handle: "Handle[Any]") -> None:
        """Take a call back that still waits for other ranks."""

    def source_rank(self, handle: "Handle[Any]") -> int:
        """The rank inside the group from which a complete receive got its message."""

    def settle_completed(self, before: float) -> None:
        """Settle the calls that are complete, with a ticket below `before`."""

    def publish_pieces(self, handle: "Handle[Any]", pieces: int = GIVEN_UP) -> None:
        """Tell the agent how many pieces of a call are in its window; GIVEN_UP = no more come."""

    def wait_for_pieces(self, handle: "Handle[Any]", pieces: int) -> bool:
        """Block until so many pieces have their result in the window; False on failure."""


class Handle(Generic[T]):
    """A call under way. Its arrays belong to the agent until `wait` returns: do not write to them
    before. Any thread may call `done` and `wait`, several at once. Only Calls sets the fields after
    `__init__`: ticket, word and floor when it is submitted, `given_up` when a wait has timed out,
    and the others, by `settle`, when it has ended.
    """

    __slots__ = (
        "_waiter",
        "_result",
        "_held",
        "ticket",
        "word",
        "floor",
        "status",
        "error",
        "given_up",
    )

    def __init__(self, waiter: Waiter, result: T, held: Any) -> None:
        """A call that is not submitted yet. `held` are its arrays, kept alive until it is
        complete.
        """
        self._waiter = waiter
        self._result = result
        self._held = held  # the arrays that the agent works on
        self.ticket = 0  # number of the call; 0 = not submitted yet
        self.word = 0  # index of the completion word among the 64-bit words of the control block
        self.floor = 0  # the completion word is above this number once the call is complete
        self.status = 0  # how the call ended: DONE, FAILED or LOST; 0 = nobody has seen it end
        self.error = ""  # why the call failed
        self.given_up = False  # a wait for this call has timed out

    def done(self) -> bool:
        """Whether `wait` would return (or raise) at once. Never blocks.

        Raises LostError when the agent is gone before the call was complete, ForkError in a forked
        child.
        """
        return self._waiter.poll(self)

    def wait(self, timeout: Optional[float] = None) -> T:
        """Block until the call is complete and return its result; the same again when called again.

        Raises MismatchError with the agent's reason when the call failed, LostError when a rank
        that it needs or the agent is gone, TimeoutError when `timeout` seconds were not enough; the
        call then goes on, and can be waited for again.
        """
        if not self.status:
            self._waiter.wait(self, timeout)
        if self.status != DONE:
            raise (LostError if self.status == LOST else MismatchError)(self.error)
        return self._result

    def wait_or_withdraw(self) -> T:
        """As `wait` without a timeout, for a caller that leaves the handle to nobody. If that is
        interrupted, as by Ctrl-C, while other ranks have not made their calls, this call is taken
        back: it has not been made, and the same line can be run again.
        """
        try:
            return self.wait()
        finally:
            if not self.status:
                self._waiter.withdraw(self)

    def settle(self, status: int, error: str = "") -> None:
        """Record how the call has ended, and let go of its arrays, which the agent does not use any
        more. Calls.poll calls it, and two threads may do so at once for a call that is DONE:
        without a lock, so the status, which others look at, is set after the error.
        """
        self.error = error
        self.status = status
        self._held = None


class StagedHandle(Handle[T]):
    """A call on foreign memory: it worked on copies in the arena, and `wait` copies the result
    back. The thread that submits it calls `borrow` and `copy_back_at_wait` before that; from then
    on `_once` guards the borrowed memory.
    """

    __slots__ = ("_arena", "_stagings", "_back", "_once")

    def __init__(self, waiter: Waiter, result: T, held: Any, arena: Arena) -> None:
        """As Handle's, with nothing borrowed of the arena yet."""
        super().__init__(waiter, result, held)
        self._arena = arena
        self._stagings: List[Staging] = []  # memory to give back
        # The foreign array of the result, and the memory in the arena that has the result; None =
        # nothing is copied back.
        self._back: Optional[Tuple[Tensor, Staging]] = None
        # Several threads may wait for one handle: the first copies back, while it holds this.
        self._once = threading.Lock()

    def borrow(self, nbytes: int) -> Staging:
        """Arena memory of at least nbytes, which the handle owns: it is given back when the call is
        complete and waited for. The agent may be asked for it, and waited for.
        """
        staging = self._arena.stage(nbytes)
        self._stagings.append(staging)
        return staging

    def copy_back_at_wait(self, tensor: Tensor, staging: Staging) -> None:
        """Have `wait` copy the staging, which was borrowed, to the tensor."""
        self._back = tensor, staging

    def wait(self, timeout: Optional[float] = None) -> T:
        """As Handle.wait. The first thread that comes here also copies the result to the caller's
        array, and gives the borrowed memory back.
        """
        if not self.status:
            self._waiter.wait(self, timeout)
        with self._once:
            if self._stagings:
                if self._back is not None and self.status == DONE:
                    tensor, staging = self._back
                    tensor.copy_from(staging.address)
                self._give_back()
        return super().wait()

    def _give_back(self) -> None:
        """Return the borrowed memory to the arena. `_once` is held, or no thread has the handle."""
        self._back = None
        while self._stagings:
            self._arena.give_back(self._stagings.pop())

    def __del__(self) -> None:
        """Give the borrowed memory back where nobody has waited. Takes no lock."""
        # The waiter keeps the handle of a call under way alive, so the agent is done
        # with the memory, or never had it. Without `_once`, `__init__` was interrupted.
        if hasattr(self, "_once") and (self.status or not self.ticket):
            self._give_back()


class PiecewiseHandle(StagedHandle[T]):
    """A call on foreign memory that passes through a window in the arena piece by piece, so that
    nothing of it leaves the caches in between.

    Who submits it must call `move_pieces` at once, and `give_up` if that is not to be. Until
    then no other thread has the handle.
    """

    __slots__ = ("_source", "_target", "_window", "_piece", "_places")

    def __init__(
        self,
        waiter: Waiter,
        result: T,
        held: Any,
        arena: Arena,
        source: Tensor,
        target: Tensor,
        piece: int,
        places: int,
    ) -> None:
        """Borrow a window for `places` pieces, each of `piece` bytes."""
        super().__init__(waiter, result, held, arena)
        self._source, self._target = source, target
        self._piece = piece  # bytes of a piece
        self._places = places  # number of pieces that the window holds
        self._window = self.borrow(piece * places)

    @property
    def window(self) -> Place:
        """The place of the window in the arena: segment id and offset in bytes."""
        return self._window.place

    def move_pieces(self) -> None:
        """Copy pieces into the window and their results out of it, on the thread that has submitted
        the call. Blocks until the last one is through or the call has failed.
        """
        size, places, last = self._piece, self._places, -(-self._source.nbytes // self._piece)
        for i in range(last + places):
            place = self._window.address + i % places * size
            if i >= places:
                if not self._waiter.wait_for_pieces(self, i - places + 1):
                    return
                self._target.copy_from(place, (i - places) * size, size)
            if i < last:
                self._source.copy_to(place, i * size, size)
                self._waiter.publish_pieces(self, i + 1)

    def give_up(self) -> None:
        """Put no more pieces in, and tell the agent, so that the other ranks do not wait for them.
        For the thread that has submitted the call; nothing where that has ended.
        """
        if self.ticket and not self.status:
            self._waiter.publish_pieces(self)


class AnySourceHandle(StagedHandle[T]):
    """A receive from any rank. `source` is the number of the rank that has sent, once `wait` has
    returned, in the view that this worker knows then.
    """

    __slots__ = ("source",)

    def settle(self, status: int, error: str = "") -> None:
        """As Handle.settle, and note the sender's rank, which is in the slot."""
        source = self._waiter.source_rank(self) if status == DONE else -1
        if status == DONE:  # the rank is of a view that the end of an earlier step may tell of
            self._waiter.settle_completed(self.ticket)
        if not self.status:  # once it is settled, another call may have the slot
            self.source = source
        super().settle(status, error)


class CompletedHandle(Handle[T]):
    """A call that is complete from the start, as in a job of one."""

    __slots__ = ()

    def __init__(self, result: T) -> None:
        """A call with this result, which `wait` returns at once."""
        self._result = result
        self.status = DONE
        self.error = ""

    def done(self) -> bool:
        """True: it is complete."""
        return True
