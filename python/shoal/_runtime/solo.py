"""A job of one: what `python train.py` gets without the launcher. Every collective of one rank is a
copy, or nothing.
"""

from __future__ import annotations

import contextlib
import ctypes
import socket
import threading
from typing import Any, Callable, ContextManager, Dict, Optional, Sequence, Tuple, TypeVar

from ..cursor import Cursor
from ..errors import ArenaError, ShoalError
from .backend import Call, DeclaredSync, Setting
from .handle import CompletedHandle, Handle
from .protocol import KINDS, DType
from .shared import SharedResults
from .step_timer import StepTimer
from .tensor import Shape, Tensor, array_like, describe, element_count, mark_shared
from .view import MeshStatus, View

T = TypeVar("T")
_PAIRWISE = (KINDS["send"], KINDS["recv"])


def run_alone(call: Call, result: T) -> Handle[T]:
    """Make a call in a job of one, at once and in this thread: copy the input to the output.

    Raises ValueError for a partner, who cannot be there, and where the two differ in length.
    """
    inp, out = call.inp, call.out
    if call.kind in _PAIRWISE or call.peer != 0:
        raise ValueError(
            f"rank {call.peer} is not in this job of one: start the program with `shoal run -n 2`"
            " to have a partner"
        )
    if (
        inp is not None
        and out is not None
        and inp is not out
        and (inp.array is not out.array or inp.address != out.address)
    ):
        if inp.count != out.count:
            raise ValueError(
                f"an output of {out.count} elements for {inp.count}: in a job of one they are the"
                " same number"
            )
        if not inp.contiguous:
            memory = (ctypes.c_ubyte * inp.nbytes)()
            address = ctypes.addressof(memory)
            inp.copy_to(address)
            out.copy_from(address)
        else:
            out.copy_from(inp.address)
    return CompletedHandle(result)


class Solo:
    """The only rank of a job without an agent. It has the methods of a Worker, and is used on the
    same threads: any may describe arrays, submit and get memory, and one at a time makes groups. No
    method waits or does I/O.
    """

    name = "solo"
    rank, size, generation = 0, 1, 1
    late = False
    view = View(generation=1)

    def __init__(self) -> None:
        """A job of one, which nobody has left."""
        self.host = socket.gethostname()
        self.step_timer = StepTimer()  # no agent is told; shoal.log reads it
        self._groups = 0  # number of groups that were made
        self._results = SharedResults()
        self._gone: Optional[ShoalError] = None  # what calls raise after `leave`; None = before it

    def describe(self, x: Any, dtype: Optional[str] = None) -> Tensor:
        """Describe an array, and find its place in a shared result."""
        tensor = describe(x, dtype)
        if self._results.all:
            mark_shared(tensor, self._results)
        return tensor

    def new_like(self, x: Any, dtype: DType, shape: Shape) -> Any:
        """A new zeroed array of the kind that x is, in memory of this process."""
        return array_like(x, dtype, shape, self.buffer(element_count(shape) * dtype.itemsize))

    def buffer(self, nbytes: int, lazy: bool = False) -> Any:
        """New zeroed memory of this process, freed when nothing refers to it. Raises ArenaError
        where the system has none.
        """
        try:
            return (ctypes.c_ubyte * nbytes)()
        except (MemoryError, OverflowError):
            raise ArenaError(
                f"the system does not give {nbytes} bytes: check the shape, free arrays, or raise"
                " `ulimit -v`"
            ) from None

    def shared(self, group: int, name: str, nbytes: int) -> memoryview:
        """Memory of this process to read; the same again for the same group and name."""
        return self._results.find_or_make(group, name, nbytes)[1]

    def pin(
        self, address: int, pin: Callable[[int, int], None], unpin: Callable[[int], None]
    ) -> None:
        """Do nothing: there is no arena, and the memory of a job of one stays as it is."""

    def submit(self, call: Call, held: Any, result: T) -> Handle[T]:
        """Make the call now, in this thread; the handle is complete, and its `wait` returns
        `result`.
        """
        self.check()
        return run_alone(call, result)

    def on_change(self, changed: Callable[[], None]) -> None:
        """Do nothing: the members never change."""

    def declare_data(
        self,
        place: Cursor,
        batch: int,
        batch_range: Optional[Tuple[int, int]] = None,
        rate: float = 0.0,
        save: Optional[int] = None,
        sync: DeclaredSync = DeclaredSync(),
        people: Tuple[str, ...] = (),
    ) -> None:
        """Do nothing: there is no agent to tell, and nobody who would change the batch."""
        self.check()

    def ask_setting(self) -> Setting:
        """That nothing is set."""
        return Setting()

    def declare_layout(self, statement: bytes) -> str:
        """Do nothing: there is no agent to tell."""
        self.check()
        return ""

    def ask_mesh(self) -> MeshStatus:
        """A status without news: this rank has all of the state, and keeps it."""
        return MeshStatus()

    def best_bucket_bytes(self, gradient_bytes: int, now_bytes: int, backward_s: float) -> int:
        """0 = not known, for there is no network."""
        return 0

    def enter(self, epoch: Optional[int] = None) -> bool:
        """True: this rank is the only member."""
        return True

    def become_job_of_one(self) -> None:
        """Do nothing: this rank is a job of one from the start."""

    def admit_newcomers(self) -> None:
        """Do nothing: no worker ever joins."""

    def with_newcomers(self) -> ContextManager[None]:
        """Do nothing: no other worker makes calls."""
        return contextlib.nullcontext()

    def check(self) -> None:
        """Raise what broke the job, if anything did."""
        if self._gone is not None:
            raise ShoalError(*self._gone.args)

    def open_group(self, ranks: Sequence[int]) -> Tuple[int, int]:
        """A new number for the group of this rank alone, and this rank's number in it, 0."""
        self.check()
        return self.new_solo_group(), 0

    def new_solo_group(self) -> int:
        """A new number for a group of this rank alone, from 1 on."""
        self._groups += 1
        return self._groups

    def close_group(self, number: int) -> None:
        """Do nothing: no agent knows the group."""

    def hold_calls(self, block: threading.Lock) -> None:
        """Do nothing: calls are made at once."""

    def release_calls(self) -> None:
        """Do nothing: calls are made at once."""

    def tell_memory(self, peak_bytes: int, limit_bytes: int) -> None:
        """Do nothing: no policy chooses the batch."""

    def tell_goal(self, steps: int) -> None:
        """Do nothing: nobody asks when a job of one ends."""

    def reject_sync_change(self, number: int, sync: str, why: str) -> None:
        """Do nothing: there is nobody who would change the setting."""

    def park(self, step: int, problem: str) -> None:
        """Do nothing: nobody parks a job of one."""

    def report(self, metrics: Dict[str, float]) -> None:
        """Do nothing: there is no launcher to report to."""
        self.check()

    def leave(self) -> None:
        """End the job: later calls raise ShoalError, as they would with an agent."""
        self._gone = ShoalError(f"job {self.name} was left: call leave() after the last collective")
