"""A job of one: what `python train.py` gets without the launcher. Every collective of one rank is a
copy, or nothing.
"""

from __future__ import annotations

import contextlib
import ctypes
import socket
from typing import Any, Callable, ContextManager, Dict, Optional, Sequence, Tuple, TypeVar

from .._checkpoint.writer import OwnScribe
from ..cursor import Cursor
from ..errors import ShoalError
from .handle import Finished, Handle
from .protocol import KINDS, DType
from .shared import Results
from .tensor import Shape, Tensor, describe, elements, like
from .view import Shaped, View

T = TypeVar("T")
_PAIRWISE = (KINDS["send"], KINDS["recv"])


def alone(
    kind: int, inp: Optional[Tensor], out: Optional[Tensor], result: T, peer: int
) -> Handle[T]:
    """The call of a job of one, done at once: copy the input to the output."""
    if kind in _PAIRWISE or peer != 0:
        raise ValueError(
            f"rank {peer} is not in this job of one: start the program with `shoal run -n 2` to"
            " have a partner"
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
    return Finished(result)


class Solo:
    """The only rank of a job without an agent. It has the methods of a Worker."""

    name = "solo"
    rank, size, generation = 0, 1, 1
    late = False
    view = View(generation=1)

    def __init__(self) -> None:
        self.host = socket.gethostname()
        self._groups = 0
        self._results = Results()
        self._gone: Optional[ShoalError] = None

    def describe(self, x: Any, dtype: Optional[str] = None) -> Tensor:
        """Describe an array."""
        tensor = describe(x, dtype)
        if self._results.all:
            self._results.mark(tensor)
        return tensor

    def make(self, x: Any, dtype: DType, shape: Shape) -> Any:
        """A new array of the kind that x is."""
        return like(x, dtype, shape, self.buffer(elements(shape) * dtype.itemsize))

    def buffer(self, nbytes: int, later: bool = False) -> Any:
        """New memory."""
        return (ctypes.c_ubyte * nbytes)()

    def shared(self, group: int, name: str, nbytes: int) -> memoryview:
        """New memory, to be read: nobody shares it."""
        return self._results.get(group, name, nbytes)[1]

    def pin(
        self, address: int, pin: Callable[[int, int], None], unpin: Callable[[int], None]
    ) -> None:
        """There is no arena; the memory of a job of one stays as it is."""

    def call(
        self,
        kind: int,
        inp: Optional[Tensor],
        out: Optional[Tensor],
        held: Any,
        result: T,
        op: int = 0,
        group: int = 0,
        peer: int = 0,
        tag: int = 0,
        weight: float = 1.0,
        counts: Optional[Sequence[int]] = None,
        shape: Optional[Shape] = None,
        flags: int = 0,
        at_once: bool = False,
    ) -> Handle[T]:
        """Do the call now."""
        self.check()
        return alone(kind, inp, out, result, peer)

    def follow(self, changed: Callable[[], None]) -> None:
        """Nothing ever changes."""

    def state_data(self, place: Cursor) -> None:
        """Nobody needs to know."""
        self.check()

    def state_layout(self, statement: bytes) -> None:
        """Nobody needs to know."""
        self.check()

    def ask_shape(self) -> Shaped:
        """It has all of the state, and keeps it."""
        return Shaped()

    def bucket(self, nbytes: int, now: int, backward: float) -> int:
        """There is no network."""
        return 0

    def enter(self, epoch: Optional[int] = None) -> bool:
        """It is the only member."""
        return True

    def welcome(self) -> None:
        """Nobody comes."""

    def everyone(self) -> ContextManager[None]:
        """Nobody else makes calls."""
        return contextlib.nullcontext()

    def check(self) -> None:
        """Raise what broke the job, if anything did."""
        if self._gone is not None:
            raise ShoalError(*self._gone.args)

    def open_group(self, ranks: Sequence[int]) -> Tuple[int, int]:
        """A new number for the group of this rank alone."""
        self.check()
        return self.own_group(), 0

    def own_group(self) -> int:
        """A new number."""
        self._groups += 1
        return self._groups

    def close_group(self, number: int) -> None:
        """Nobody else knows it."""

    def hold(self) -> None:
        """Nothing to collect."""

    def release(self) -> None:
        """Nothing to submit."""

    def scribe(self) -> OwnScribe:
        """Who writes its checkpoints."""
        return OwnScribe()

    def report(self, metrics: Dict[str, float]) -> None:
        """Nobody listens."""
        self.check()

    def leave(self) -> None:
        """End the job: later calls fail as they would with an agent."""
        self._gone = ShoalError(f"job {self.name} was left: call leave() after the last collective")
