"""The group of all ranks of a job, whose members may change."""

from __future__ import annotations

import contextlib
import ctypes
import math
import threading
from typing import Any, Iterable, Iterator, Mapping, Optional, Sequence, Union

from ._runtime.arguments import as_integer, wrong_type
from ._runtime.backend import Backend, Call
from ._runtime.collectives import match_output
from ._runtime.handle import Handle
from ._runtime.listeners import LISTENERS
from ._runtime.protocol import KINDS, OPS
from ._runtime.tensor import check_dtype_and_shape, element_count, numpy_view
from .group import Group


class World(Group):
    """All ranks of a job, and the memory that collectives work on without a copy.

    `name` names the job and `host` the machine; `generation` numbers the memberships.

    Any thread may make its collectives, as those of a Group, get memory, submit and report;
    `group` and `alone` are for one thread at a time. Rank, size and generation change on the thread
    that sees the end of a step.
    """

    def __init__(self, backend: Backend) -> None:
        """The group of all ranks of a backend, which it follows as the members change."""
        super().__init__(backend, 0, backend.rank, range(backend.size))
        self.name = backend.name
        self.host = backend.host
        self.generation = backend.generation
        backend.on_change(self._adopt_view)

    def _adopt_view(self) -> None:
        """Take over rank, size and generation from the backend, after each change of the members:
        the backend calls it on the thread that sees the change. Makes no call, takes no lock.
        """
        backend = self._backend
        self.rank, self.size, self.generation = backend.rank, backend.size, backend.generation
        self.ranks = tuple(range(backend.size))

    @property
    def outside(self) -> bool:
        """Whether this worker was started when the job already ran, and is no member yet."""
        return self._backend.late

    @property
    def released(self) -> bool:
        """Whether the job goes on without this worker, or was stopped. The worker keeps its rank,
        and its collectives are those of a job of one.
        """
        return self._backend.view.released

    @property
    def first(self) -> bool:
        """Whether this worker is the one that does what one does for all: rank 0, as long as it is
        a member, and to the end of its program where the job was stopped. When it is lost, another
        worker is the first after the step under way. The thread of the training loop asks.
        """
        return self.rank == 0 and not self.outside and not self._backend.view.gone

    def group(self, ranks: Sequence[int]) -> Group:
        """The sub-group of these ranks of the job, numbered in this order. Called by its members,
        and by no other rank; waits until the agent has it.

        Raises ValueError when the list has a repetition, a rank outside the job, or not this rank.
        """
        self._backend.check()
        if isinstance(ranks, str) or not isinstance(ranks, Iterable):
            raise wrong_type("ranks", ranks, "a list of ranks of the job, as [0, 1]")
        members = [self._checked_rank(r, "rank") for r in ranks]
        if len(set(members)) != len(members):
            raise ValueError(f"group({members}) names a rank twice: name each once")
        if self.rank not in members:
            raise ValueError(
                f"rank {self.rank} is not in group({members}): call it on its members only"
            )
        number, rank = self._backend.open_group(members)
        return Group(self._backend, number, rank, members)

    def alone(self) -> Group:
        """A group of this rank alone. Its collectives need no other rank and no agent."""
        return Group(self._backend, self._backend.new_solo_group(), 0, [self.rank])

    @contextlib.contextmanager
    def grouped(self) -> Iterator[None]:
        """Submit the asynchronous calls of the block, of all threads, as one, at its end: one
        signal to the agent for all of them.

        A `wait` inside the block submits what was collected so far.
        """
        block = threading.Lock()
        try:
            with block:
                self._backend.hold_calls(block)
                yield
        finally:
            self._backend.release_calls()

    def empty(self, shape: Union[int, Sequence[int]], dtype: Any = "float32") -> Any:
        """A NumPy array in the arena, aligned to 64 bytes; collectives on it copy nothing. Its
        elements are arbitrary.

        dtype is anything that NumPy takes, or "bfloat16" (needs ml_dtypes). Raises ArenaError when
        there is no memory.
        """
        kind, dims = check_dtype_and_shape(shape, dtype)
        return numpy_view(kind, dims, self._backend.buffer(element_count(dims) * kind.itemsize))

    def zeros(self, shape: Union[int, Sequence[int]], dtype: Any = "float32") -> Any:
        """Like `empty`, filled with bytes that are 0."""
        x = self.empty(shape, dtype)
        # no fill(0), which makes texts of "0", and fails for bytes
        ctypes.memset(x.__array_interface__["data"][0], 0, x.nbytes)
        return x

    def buffer(self, nbytes: int) -> Any:
        """Arena memory of nbytes, with the buffer protocol, freed when nothing refers to it: for
        torch.frombuffer and the like.
        """
        return self._backend.buffer(
            as_integer("nbytes", nbytes, 0, "how many bytes, an integer from 0 on")
        )

    def submit(
        self,
        kind: str,
        inp: Any,
        out: Any,
        *,
        dtype: Optional[str] = None,
        op: str = "none",
        group: int = 0,
        peer: int = 0,
        tag: int = 0,
        weight: float = 1.0,
        counts: Optional[Sequence[int]] = None,
        shape: Optional[Sequence[int]] = None,
    ) -> Handle[Any]:
        """Submit a call as docs/formats/arena.md describes it, from any thread; the handle's `wait`
        returns `out`.

        kind and op are names of its tables. inp and out are arrays or None. `dtype` names the
        elements where the arrays cannot ("bf16" in int16 memory). `group` is the `id` of a Group, 0
        that of all ranks. `peer` is the root or partner, a rank inside the group; -1 in a recv is
        any rank, and the handle's `source` then says which. `counts` are the elements for each rank
        of an all_to_all. `tag` is that of a message, and of an all_to_all without counts 0 or the
        size of the group, in another one of which it fails. `shape` overrides the shape that the
        ranks must agree on. Raises TypeError where inp and out are of different types.
        """
        if kind not in KINDS or op not in OPS:
            raise ValueError(
                f"kind={kind!r}, op={op!r}: kinds are {', '.join(KINDS)}; ops are {', '.join(OPS)}"
            )
        source = None if inp is None else self._backend.describe(inp, dtype)
        if out is inp:
            target = source
        else:
            target = None if out is None else self._backend.describe(out, dtype)
            if source is not None and target is not None:
                target = match_output(target, source)
        if target is not None and not target.writable:
            raise ValueError(f"the result cannot be written to this read-only {type(out).__name__}")
        dims = None if shape is None else tuple(shape)
        return self._backend.submit(
            Call(KINDS[kind], source, target, OPS[op], group, peer, tag, weight, counts, dims),
            (inp, out),
            out,
        )

    def report(self, metrics: Optional[Mapping[str, float]] = None, **more: float) -> None:
        """Send numbers to the launcher, for example report(step=12, loss=0.3); it keeps them in the
        run's metrics.jsonl. Of a name that is in `metrics` too, the keyword counts. What is called
        loss is also told to the agent as that of the next step that is committed.
        """
        if metrics is not None and not isinstance(metrics, Mapping):
            raise wrong_type(
                "metrics",
                metrics,
                "numbers by name, as in report(loss=0.3) or report({'loss': 0.3})",
            )
        numbers = {
            name: _checked_number(name, value)
            for name, value in {**(metrics or {}), **more}.items()
        }
        self._backend.step_timer.record_loss(numbers.get("loss", math.nan))
        self._backend.report(numbers)
        for listener in LISTENERS:
            listener.on_report(self, numbers)


def _checked_number(name: str, value: Any) -> float:
    """A metric as a number. Raises TypeError where it is none that a float64 can hold."""
    try:
        number = float(value)
    except (TypeError, ValueError, OverflowError):
        raise TypeError(
            f"report({name}={value!r}): a metric is a number that a float64 can hold"
        ) from None
    return value if type(value) is int else number
