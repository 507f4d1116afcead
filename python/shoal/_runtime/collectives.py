"""The collectives as asynchronous calls: from arrays and names to kinds, spans and codes. `Group`
adds the blocking twins.
"""

from __future__ import annotations

import operator
from array import array
from typing import Any, List, Optional, Sequence, Tuple, TypeVar

from .arguments import as_integer, wrong_type
from .backend import Backend, Call
from .handle import Handle
from .protocol import BF16, BOOL, F16, F32, F64, KINDS, OPS
from .tensor import Shape, Tensor, element_count

T = TypeVar("T")

_ALL_REDUCE = KINDS["all_reduce"]
_FLOATS = (F64, F32, F16, BF16)
_MOST_WEIGHT = 1e300  # of a rank in a mean, as of the agent: all weights have a finite sum


class AsyncCollectives:
    """Collectives among `size` ranks, of which this is number `rank`. Every method returns with a
    Handle and, unless it says so, does not wait for the other ranks; but it may wait for memory,
    for a slot, or for the commit of a step. Any thread may call it, where the calls come in the
    same order on all ranks.

    An array belongs to the agent until the handle's `wait` returns: do not write to it, nor read an
    output, before. `wait` returns the result: `out`, or where that is None a new array, or `x` of a
    call that works in place; None where there is no result. The blocking twins in Group say more of
    what each one does.
    """

    rank: int
    size: int
    ranks: Tuple[int, ...]
    _backend: Backend
    _id: Optional[int]  # None when it was freed

    @property
    def id(self) -> int:
        """The number of the group in descriptors; 0 is all ranks. Raises ValueError when the group
        was freed.
        """
        if self._id is None:
            raise ValueError(
                f"this group of ranks {list(self.ranks)} was freed: make another with job.group"
            )
        return self._id

    def allreduce_async(
        self,
        x: T,
        op: str = "sum",
        weight: float = 1.0,
        out: Any = None,
        flags: int = 0,
        *,
        at_once: bool = False,
        tag: int = 0,
    ) -> Handle[T]:
        """Begin to replace x on every rank by the reduction `op` of all ranks' x, each with its
        `weight` in a mean, or to fill `out` with that. `flags` and `tag` are those of
        docs/formats/arena.md; steps set them. `at_once`: the caller does nothing but wait for it
        next, so this may wait already.
        """
        inp = self._backend.describe(x)
        target = inp if out is None else self._describe_output(out, inp, inp.count, shared=True)
        result = x if out is None else out
        if not target.writable and (target is inp or target.shared is None):
            raise _read_only_error(result)
        code = _reduction_code(op, weight, inp)
        # By position: names cost time, and every step makes this call.
        return self._backend.submit(
            Call(
                _ALL_REDUCE,
                inp,
                target,
                code,
                self.id,
                0,
                tag,
                weight,
                None,
                None,
                flags,
                at_once,
            ),
            (x, out),
            result,
        )

    def reduce_scatter_async(
        self, x: Any, op: str = "sum", weight: float = 1.0, out: Any = None
    ) -> Handle[Any]:
        """Begin to reduce all ranks' x, as allreduce_async does; each rank gets its block."""
        inp = self._backend.describe(x)
        if out is None:
            out = self._backend.new_like(
                x,
                inp.dtype,
                self._block_shape(inp, "give `out` to receive another number of elements"),
            )
        target = self._describe_output(out, inp)
        code = _reduction_code(op, weight, inp)
        return self._backend.submit(
            Call(KINDS["reduce_scatter"], inp, target, code, self.id, weight=weight), (x, out), out
        )

    def allgather_async(self, x: Any, out: Any = None) -> Handle[Any]:
        """Begin to put all ranks' x one after the other, in rank order, on every rank."""
        inp = self._backend.describe(x)
        if out is None:
            out = self._backend.new_like(
                x, inp.dtype, _shape_with_rows(inp, self.size * _row_count(inp))
            )
        return self._backend.submit(
            Call(
                KINDS["all_gather"],
                inp,
                self._describe_output(out, inp, shared=True),
                group=self.id,
            ),
            (x, out),
            out,
        )

    def allgatherv_async(self, x: Any) -> Handle[Any]:
        """Begin allgather_async of x that have another number of rows on each rank. Blocks for the
        exchange of the counts; only the data travels asynchronously.
        """
        inp = self._backend.describe(x)
        counts = self.allgather_async(array("q", [_row_count(inp)])).wait_or_withdraw()
        return self.allgather_async(
            x, self._backend.new_like(x, inp.dtype, _shape_with_rows(inp, sum(counts)))
        )

    def broadcast_async(self, x: T, root: int = 0, flags: int = 0) -> Handle[T]:
        """Begin to replace x on every rank by the root's; `flags` as in allreduce_async."""
        root = self._checked_rank(root, "root")
        tensor = self._backend.describe(x)
        if root == self.rank:
            return self._backend.submit(
                Call(KINDS["broadcast"], tensor, None, group=self.id, peer=root, flags=flags), x, x
            )
        if not tensor.writable:
            raise _read_only_error(x)
        return self._backend.submit(
            Call(KINDS["broadcast"], None, tensor, group=self.id, peer=root, flags=flags), x, x
        )

    def reduce_async(
        self,
        x: Any,
        op: str = "sum",
        root: int = 0,
        out: Any = None,
        weight: float = 1.0,
        flags: int = 0,
    ) -> Handle[Any]:
        """Begin an all-reduce of which only the root gets the result, in x or `out`, and the
        others' `wait` returns None; `op`, `weight` and `flags` as in allreduce_async.
        """
        root = self._checked_rank(root, "root")
        inp = self._backend.describe(x)
        target, result = None, None
        if root == self.rank:
            target = inp if out is None else self._describe_output(out, inp, inp.count)
            result = x if out is None else out
            if not target.writable:
                raise _read_only_error(result)
        code = _reduction_code(op, weight, inp)
        return self._backend.submit(
            Call(KINDS["reduce"], inp, target, code, self.id, root, weight=weight, flags=flags),
            (x, out),
            result,
        )

    def gather_async(self, x: Any, root: int = 0, out: Any = None) -> Handle[Any]:
        """Begin to put all ranks' x one after the other on the root; `wait` returns None on the
        others.
        """
        root = self._checked_rank(root, "root")
        inp = self._backend.describe(x)
        if root != self.rank:
            return self._backend.submit(
                Call(KINDS["gather"], inp, None, group=self.id, peer=root), x, None
            )
        if out is None:
            out = self._backend.new_like(
                x, inp.dtype, _shape_with_rows(inp, self.size * _row_count(inp))
            )
        return self._backend.submit(
            Call(KINDS["gather"], inp, self._describe_output(out, inp), group=self.id, peer=root),
            (x, out),
            out,
        )

    def scatter_async(self, x: Any = None, root: int = 0, out: Any = None) -> Handle[Any]:
        """Begin to give each rank its block of the root's x; the other ranks give `out` for it."""
        root = self._checked_rank(root, "root")
        if root != self.rank:
            if out is None:
                raise ValueError(
                    f"scatter from rank {root} needs `out` on every other rank: an array for the"
                    " elements that it gets"
                )
            target = self._backend.describe(out)
            if not target.writable:
                raise _read_only_error(out)
            return self._backend.submit(
                Call(KINDS["scatter"], None, target, group=self.id, peer=root), out, out
            )
        if x is None:
            raise ValueError(
                "the root of a scatter needs `x`, the elements of all ranks in rank order"
            )
        inp = self._backend.describe(x)
        if out is None:
            out = self._backend.new_like(
                x, inp.dtype, self._block_shape(inp, "give `out` on every rank for uneven parts")
            )
        return self._backend.submit(
            Call(KINDS["scatter"], inp, self._describe_output(out, inp), group=self.id, peer=root),
            (x, out),
            out,
        )

    def alltoall_async(
        self, x: Any, out: Any = None, splits: Optional[Sequence[int]] = None
    ) -> Handle[Any]:
        """Begin to send the j-th block of x to rank j, and to get one from each rank, in rank
        order; `splits` are the rows for each rank, None = the same number. With `splits` and
        without `out` it blocks for the exchange of the counts.
        """
        size = self.size  # before what may take over another view
        inp = self._backend.describe(x)
        counts = None
        if splits is None:
            self._block_shape(inp, "give `splits` for uneven parts")
            if out is None:
                out = self._backend.new_like(x, inp.dtype, inp.shape)
        else:
            rows = self._checked_splits(inp, splits)
            counts = [n * element_count(inp.shape[1:]) for n in rows]
            if out is None:
                received = self.alltoall_async(array("q", rows)).wait_or_withdraw()
                out = self._backend.new_like(x, inp.dtype, _shape_with_rows(inp, sum(received)))
        target = self._describe_output(out, inp)
        return self._backend.submit(
            Call(KINDS["all_to_all"], inp, target, group=self.id, tag=size, counts=counts),
            (x, out),
            out,
        )

    def send_async(self, x: Any, to: int, tag: int = 0) -> Handle[None]:
        """Begin to send x to a rank, which receives it with the same tag."""
        to = self._checked_rank(to, "to")
        return self._backend.submit(
            Call(
                KINDS["send"],
                self._backend.describe(x),
                None,
                group=self.id,
                peer=to,
                tag=_checked_tag(tag),
            ),
            x,
            None,
        )

    def recv_async(self, x: T, source: int, tag: int = 0) -> Handle[T]:
        """Begin to receive into x what the rank `source` sends with the same tag."""
        source = self._checked_rank(source, "source")
        target = self._backend.describe(x)
        if not target.writable:
            raise _read_only_error(x)
        return self._backend.submit(
            Call(KINDS["recv"], None, target, group=self.id, peer=source, tag=_checked_tag(tag)),
            x,
            x,
        )

    def barrier_async(self, flags: int = 0) -> Handle[None]:
        """Begin to wait for all ranks to make this call; `flags` as in allreduce_async."""
        return self._backend.submit(
            Call(KINDS["barrier"], None, None, group=self.id, flags=flags), None, None
        )

    def _describe_output(
        self, out: Any, inp: Tensor, count: Optional[int] = None, shared: bool = False
    ) -> Tensor:
        """The description of an output, checked against that of the input: the same type, `count`
        elements if that is given, and writable or, with `shared`, a shared result. It is the
        input's own description where both are the same memory.
        """
        target = self._backend.describe(out)
        same = match_output(target, inp)
        if count is not None and target.count != count:
            raise ValueError(
                f"an output of shape {target.shape} for an input of shape {inp.shape}: make both"
                " the same"
            )
        if not target.writable and not (shared and target.shared):
            raise _read_only_error(out)
        return same

    def _block_shape(self, inp: Tensor, otherwise: str) -> Shape:
        """The shape of one rank's block of an input. Raises ValueError, with the advice
        `otherwise`, where the first dimension cannot be divided by the number of ranks.
        """
        first = _row_count(inp)
        if not inp.shape or first % self.size:
            raise ValueError(
                f"shape {inp.shape} does not split evenly over {self.size} ranks along its first"
                f" dimension: {otherwise}"
            )
        return (first // self.size, *inp.shape[1:])

    def _checked_splits(self, inp: Tensor, splits: Sequence[int]) -> List[int]:
        """The rows for each rank, as ints. Raises TypeError for what is none, and ValueError where
        they do not fit the input.
        """
        what = "the rows for each rank, an integer each"
        try:
            rows = [operator.index(n) for n in splits]
        except TypeError:
            raise wrong_type("splits", splits, what) from None
        if len(rows) != self.size or min(rows) < 0 or not inp.shape or sum(rows) != inp.shape[0]:
            raise ValueError(
                f"splits {rows} for shape {inp.shape} and {self.size} ranks: give the rows for each"
                " rank, which add up to the first dimension"
            )
        return rows

    def _checked_rank(self, rank: int, what: str) -> int:
        """A rank of this group as an int. Raises TypeError or ValueError, which name the argument
        `what`, where it is none.
        """
        try:
            rank = operator.index(rank)
        except TypeError:
            raise wrong_type(what, rank, f"a rank, an integer from 0 to {self.size - 1}") from None
        if not 0 <= rank < self.size:
            raise ValueError(
                f"{what}={rank} is not a rank of this group: ranks go from 0 to {self.size - 1}"
            )
        return rank


def match_output(target: Tensor, inp: Tensor) -> Tensor:
    """The description of an output: that of the input where both are the same memory, so that
    foreign memory gets one stand-in. Raises TypeError where the output is of another type.
    """
    if target.dtype != inp.dtype:  # bool has the code of uint8, whose elements may be others
        raise TypeError(
            f"an output of {target.dtype.name} for an input of {inp.dtype.name}: make both the same"
        )
    same = (
        target.address == inp.address
        and target.count == inp.count
        and target.contiguous
        and inp.contiguous
    )
    return inp if same else target


def _row_count(t: Tensor) -> int:
    """The length of the first dimension; 1 for a scalar."""
    return t.shape[0] if t.shape else 1


def _shape_with_rows(t: Tensor, n: int) -> Shape:
    """The shape of a tensor with n rows in place of its own."""
    return (n, *t.shape[1:])


def _checked_tag(tag: int) -> int:
    """The tag as an int. Raises TypeError or ValueError where it is none."""
    return as_integer("tag", tag, 0, "a tag is a number from 0 to 2**32 - 1", (1 << 32) - 1)


def _reduction_code(op: str, weight: float, t: Tensor) -> int:
    """The code of a reduction in descriptors. Raises TypeError or ValueError where it is none, or
    where it is not defined for the type of t or for the weight.
    """
    code = OPS.get(op, 0)
    if not code:
        raise ValueError(f"op={op!r} is no reduction: use sum, mean, min, max or prod")
    if t.dtype is BOOL and op not in ("min", "max"):
        raise TypeError(
            f"the {op} of bool is not defined: use min (and), max (or), or x.astype('uint8')"
        )
    if op == "mean":
        if t.dtype not in _FLOATS:
            raise TypeError(
                f"the mean of {t.dtype.name} is not a whole number: use sum, or x.astype('float32')"
            )
        what = "a weight is a number from 0 to 1e300, for example this rank's number of samples"
        try:
            fits = 0 <= weight <= _MOST_WEIGHT
        except (TypeError, ValueError):
            raise wrong_type("weight", weight, what) from None
        if not fits:
            raise ValueError(f"weight={weight}: {what}")
    elif weight != 1.0:
        raise ValueError(f"weight={weight} counts only for op='mean', not for {op!r}")
    return code


def _read_only_error(x: Any) -> Exception:
    """The error for a result that would go into read-only memory, for the caller to raise."""
    return ValueError(
        f"the result cannot be written to this read-only {type(x).__name__}: give a writable array"
        " as `out`"
    )
