"""A group of ranks and its collectives. A Job is the group of all ranks."""

from __future__ import annotations

from typing import Any, Optional, Sequence, Tuple, TypeVar, Union

from ._runtime.backend import Backend
from ._runtime.collectives import AsyncCollectives
from ._runtime.tensor import check_dtype_and_shape, element_count, read_only_view

T = TypeVar("T")


class Group(AsyncCollectives):
    """Some ranks of a job, numbered from 0 in the order of `ranks`; `rank` is this process's number
    among them.

    Every rank of the group must make the same collectives in the same order. An array is a NumPy
    array, a torch CPU tensor, or anything with the buffer protocol, of float64, float32, float16,
    bfloat16, int64, int32 or uint8 (bool for min, max and for moving). Arrays from `job.empty` are
    used where they lie; others are copied to the arena and back, and strided ones element by
    element. Results are the same bytes on every rank.

    Every method raises TypeError or ValueError for arguments that cannot mean anything;
    MismatchError when the ranks called different things; LostError when a rank that the call needs,
    or the agent, is gone; ForkError in a forked child.

    A method returns when this rank has its result; one that is interrupted before, as by Ctrl-C,
    while other ranks have not made their calls, has not been made, and can be called again. In the
    middle of an array of megabytes the call fails for all ranks. Those that end in `_async` return
    at once, as AsyncCollectives says. Any thread may call them, where the calls come in the same
    order on all ranks.
    """

    def __init__(self, backend: Backend, number: int, rank: int, ranks: Sequence[int]) -> None:
        """A group with this number in descriptors, in which this process has the rank; `ranks` are
        its members in the job, in their order. `World.group` and `World.alone` make groups.
        """
        self._backend = backend
        self._id: Optional[int] = number
        self.rank = rank
        self.ranks: Tuple[int, ...] = tuple(ranks)
        self.size = len(self.ranks)

    def free(self) -> None:
        """Free the group. This rank has no call of the group under way, and makes none any more.
        Waits for nobody.

        The job forgets the group when all its ranks have freed it. A job has room for 4096 groups,
        so a program that keeps making groups must free them. Raises ValueError for the group of all
        ranks.
        """
        if self._id == 0:
            raise ValueError("the group of all ranks lasts as long as the job")
        if self._id is not None:
            self._backend.close_group(self._id)
            self._id = None

    def allreduce(self, x: T, op: str = "sum", weight: float = 1.0, out: Any = None) -> T:
        """Replace x on every rank by the reduction of all ranks' x, and return it; with `out`,
        leave x and fill `out`.

        op is sum, mean, min, max or prod. A mean weighs each rank by `weight` (for example its
        number of samples) and divides by the sum of the weights. x has the same shape on every
        rank.
        """
        return self.allreduce_async(x, op, weight, out, at_once=True).wait_or_withdraw()

    def reduce_scatter(self, x: Any, op: str = "sum", weight: float = 1.0, out: Any = None) -> Any:
        """Reduce all ranks' x, of shape [size*n, ...], and return the rank-th block, of shape [n,
        ...].

        With `out`, the block is as long as `out`, which may differ between ranks: together they are
        as long as x.
        """
        return self.reduce_scatter_async(x, op, weight, out).wait_or_withdraw()

    def allgather(self, x: Any, out: Any = None) -> Any:
        """Return all ranks' x, of shape [n, ...], one after the other in rank order: shape [size*n,
        ...].

        With `out`, the ranks' lengths may differ; `out` holds their sum. For unknown lengths see
        allgatherv.
        """
        return self.allgather_async(x, out).wait_or_withdraw()

    def allgatherv(self, x: Any) -> Any:
        """Return all ranks' x, of shape [n_rank, ...] with an n of their own, one after the other
        in rank order.
        """
        return self.allgatherv_async(x).wait_or_withdraw()

    def broadcast(self, x: T, root: int = 0) -> T:
        """Replace x on every rank by the root's, of the same shape, and return it."""
        return self.broadcast_async(x, root).wait_or_withdraw()

    def reduce(
        self, x: Any, op: str = "sum", root: int = 0, out: Any = None, weight: float = 1.0
    ) -> Any:
        """Like allreduce, but only the root gets (and returns) the result; the others keep x and
        return None.
        """
        return self.reduce_async(x, op, root, out, weight).wait_or_withdraw()

    def gather(self, x: Any, root: int = 0, out: Any = None) -> Any:
        """Return on the root all ranks' x, of shape [n, ...], as allgather does; None on the
        others.
        """
        return self.gather_async(x, root, out).wait_or_withdraw()

    def scatter(self, x: Any = None, root: int = 0, out: Any = None) -> Any:
        """Give each rank its block of the root's x, of shape [size*n, ...], and return it, of shape
        [n, ...].

        The others give `out` instead of x. The blocks are as long as the ranks' `out`, which may
        differ.
        """
        return self.scatter_async(x, root, out).wait_or_withdraw()

    def alltoall(self, x: Any, out: Any = None, splits: Optional[Sequence[int]] = None) -> Any:
        """Send the j-th block of x, of shape [size*n, ...], to rank j, and return what the ranks
        sent here, in rank order.

        `splits` gives the rows for each rank where they are not the same number. Give `out` on all
        ranks or on none.
        """
        return self.alltoall_async(x, out, splits).wait_or_withdraw()

    def send(self, x: Any, to: int, tag: int = 0) -> None:
        """Send x to a rank, which receives as many elements of the same type with the same tag.
        Returns when it has them.
        """
        self.send_async(x, to, tag).wait_or_withdraw()

    def recv(self, x: T, source: int, tag: int = 0) -> T:
        """Fill x with what `source` sends with the same tag, and return it. Blocks until it is
        here.
        """
        return self.recv_async(x, source, tag).wait_or_withdraw()

    def shared(self, name: str, shape: Union[int, Sequence[int]], dtype: Any = "float32") -> Any:
        """A NumPy array that all ranks of the group on this host see, and only the agent writes:
        the `out` of allreduce and allgather.

            total = job.shared("total", x.shape)
            job.allreduce(x, out=total)                 # x stays as it is

        The result is then written once for all ranks, and not once for each. Ranks that give the
        same name get the same memory. The next call into it waits until all ranks have made that
        call, so a result stays as it is until then. A call into it that follows the commit of a
        step first waits for the commit, because the members may change with it.

        The array is read-only. So is a tensor made of it by torch.from_numpy, but torch does not
        know that, and a write to that tensor ends the process. A worker that is released keeps the
        content. Raises ArenaError when the other ranks have another number of bytes, or there is no
        memory.
        """
        kind, dims = check_dtype_and_shape(shape, dtype)
        return read_only_view(
            kind, dims, self._backend.shared(self.id, name, element_count(dims) * kind.itemsize)
        )

    def barrier(self) -> None:
        """Return when every rank of the group has called it."""
        self.barrier_async().wait_or_withdraw()
