"""What a group of ranks needs from below: a Worker with an agent, or a Solo without one."""

from __future__ import annotations

from typing import Any, Callable, ContextManager, Dict, Optional, Protocol, Sequence, Tuple, TypeVar

from .._checkpoint.writer import Scribe
from ..cursor import Cursor
from .handle import Handle
from .protocol import DType
from .tensor import Shape, Tensor
from .view import Shaped, View

T = TypeVar("T")


class Port(Protocol):
    """The calls of one rank. See Worker, whose docstrings these methods share."""

    name: str
    host: str
    rank: int
    size: int
    generation: int
    late: bool  # started when the job already ran, and not a member yet: a job of one
    view: View

    def check(self) -> None: ...

    def describe(self, x: Any, dtype: Optional[str] = None) -> Tensor: ...

    def make(self, x: Any, dtype: DType, shape: Shape) -> Any: ...

    def buffer(self, nbytes: int, later: bool = False) -> Any: ...

    def shared(self, group: int, name: str, nbytes: int) -> memoryview: ...

    def pin(
        self, address: int, pin: Callable[[int, int], None], unpin: Callable[[int], None]
    ) -> None: ...

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
    ) -> Handle[T]: ...

    def follow(self, changed: Callable[[], None]) -> None: ...

    def state_data(self, place: Cursor) -> None: ...

    def state_layout(self, statement: bytes) -> None: ...

    def ask_shape(self) -> Shaped: ...

    def bucket(self, nbytes: int, now: int, backward: float) -> int: ...

    def enter(self, epoch: Optional[int] = None) -> bool: ...

    def welcome(self) -> None: ...

    def everyone(self) -> ContextManager[None]: ...

    def open_group(self, ranks: Sequence[int]) -> Tuple[int, int]: ...

    def own_group(self) -> int: ...

    def close_group(self, number: int) -> None: ...

    def hold(self) -> None: ...

    def release(self) -> None: ...

    def scribe(self) -> Scribe: ...

    def report(self, metrics: Dict[str, float]) -> None: ...

    def leave(self) -> None: ...
