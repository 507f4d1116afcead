"""What a group of ranks needs from below: a Worker with an agent, or a Solo without one."""

from __future__ import annotations

from typing import (
    Any,
    Callable,
    ContextManager,
    Dict,
    NamedTuple,
    Optional,
    Protocol,
    Sequence,
    Tuple,
    TypeVar,
)

from ..cursor import Cursor
from .handle import Handle
from .protocol import DType
from .tensor import Shape, Tensor
from .view import MeshStatus, View

T = TypeVar("T")


class Call(NamedTuple):
    """A collective, or one side of a message between two ranks; docs/formats/arena.md, section 3.

    A tuple, because every step makes some: to make one costs less than to make an object.
    """

    kind: int
    inp: Optional[Tensor]
    out: Optional[Tensor]
    op: int = 0  # the reduction; 0 = none
    group: int = 0  # 0 = all ranks of the job
    peer: int = 0  # the root or the partner, a rank inside the group; -1 = any sender
    tag: int = 0
    weight: float = 1.0  # weight of this rank in a mean
    counts: Optional[Sequence[int]] = None  # elements for each rank of an all-to-all
    shape: Optional[Shape] = None  # on which the ranks must agree; None = that of the arrays
    flags: int = 0
    at_once: bool = False  # the caller waits for this call next


class Backend(Protocol):
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

    def submit(self, call: Call, held: Any, result: T) -> Handle[T]: ...

    def on_change(self, changed: Callable[[], None]) -> None: ...

    def state_data(self, place: Cursor) -> None: ...

    def state_layout(self, statement: bytes) -> None: ...

    def ask_mesh(self) -> MeshStatus: ...

    def bucket(self, nbytes: int, now: int, backward: float) -> int: ...

    def enter(self, epoch: Optional[int] = None) -> bool: ...

    def admit(self) -> None: ...

    def with_newcomers(self) -> ContextManager[None]: ...

    def open_group(self, ranks: Sequence[int]) -> Tuple[int, int]: ...

    def own_group(self) -> int: ...

    def close_group(self, number: int) -> None: ...

    def hold(self) -> None: ...

    def release(self) -> None: ...

    def report(self, metrics: Dict[str, float]) -> None: ...

    def leave(self) -> None: ...
