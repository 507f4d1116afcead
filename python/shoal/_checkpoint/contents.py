"""What a worker writes of a checkpoint, and what it reads of one."""

from __future__ import annotations

from typing import Any, Callable, Dict, List, NamedTuple, Optional, Protocol

from .._live.transfer import State
from .._runtime.tree import Item
from .commit import Sealed
from .shards import ByteRange, TensorInfo, catalogue, shard_ranges


class Contents(NamedTuple):
    """What this worker writes of a checkpoint."""

    about: Dict[str, Any]  # the content of shoal-checkpoint.json, without the place in the data
    own: Dict[str, Any]  # the values of this worker alone
    tensors: List[TensorInfo]  # all tensors of the checkpoint; none of a model on a mesh
    ranges: List[ByteRange]  # what of their bytes this worker writes
    nbytes: int  # of what this worker writes
    copy_to: Callable[[int], None]  # copies the bytes to an address


class LoadedParts(Protocol):
    """The parts of a checkpoint that this worker has read. The thread of the training loop uses it,
    when all has been read.
    """

    @property
    def parts(self) -> List[memoryview]:
        """The bytes of the items, in their order, which the caller may keep."""

    @property
    def own(self) -> Dict[int, Any]:
        """The values of each worker alone, by rank."""


class MeshedState(Protocol):
    """The state of a model that is cut over a mesh: each worker has a part of it. The thread of the
    training loop calls the methods; both may wait for the agent.
    """

    def contents(self, notes: Dict[str, Any], own: Dict[str, Any], items: List[Item]) -> Contents:
        """What this worker writes of the state as it is now; `items` are the registered values,
        alike on all workers.
        """

    def read(self, chosen: Sealed, state: Dict[str, Any]) -> LoadedParts:
        """Read this worker's part, which is not set yet. Raises Damaged where the bytes are wrong,
        ShoalError where it cannot be read.
        """


def contents_of_worker(
    state: State, meshed: Optional[MeshedState], rank: int, size: int
) -> Contents:
    """What a worker writes of the state as it is now, by the functions that are registered. The
    arrays are not copied yet. `meshed` is the part of it on a mesh; None = every worker has all.
    """
    items: List[Item] = []
    notes, own = state.plan_checkpoint(items, size)
    if meshed is not None:
        return meshed.contents(notes, own, items)
    tensors = catalogue(items)
    ranges = shard_ranges(tensors, rank, size)
    listed = [
        {
            "name": k.name,
            "dtype": k.dtype,
            "shape": k.shape,
            "bytes": k.nbytes,
            **({"cuts": k.cuts} if k.cuts else {}),
        }
        for k in tensors
    ]

    def copy_to(at: int) -> None:
        """Copy this worker's ranges to memory at an address, one after the other, before the
        arrays change.
        """
        for run in ranges:
            items[run.tensor].copy_to(at, run.start, run.stop)
            at += run.stop - run.start

    return Contents(
        {"notes": notes, "tensors": listed},
        own,
        tensors,
        ranges,
        sum(run.stop - run.start for run in ranges),
        copy_to,
    )
