"""What a worker of a job with a mesh writes into checkpoints, its part of the state, and how it
reads that again on any mesh: docs/formats/job-checkpoints.md, section 5.
"""

from __future__ import annotations

import base64
import ctypes
import json
from typing import Any, Dict, List, NamedTuple, Optional

from .._live import packing
from .._runtime.tensor import Tensor, describe
from .._runtime.tree import Item
from ..errors import ShoalError
from ..mesh import Mesh
from ..world import World
from .commit import Sealed
from .contents import Contents
from .writer import AgentWriter, writer_of


class MeshLoadedParts(NamedTuple):
    """What was read of a checkpoint, besides the tensors of the model."""

    parts: List[memoryview]  # the bytes of the items that are alike on all workers
    own: Dict[int, Any]  # what each worker had for itself, by rank


class MeshState:
    """This worker's part of the state of a model that is cut over a mesh. Only the thread of the
    training loop uses it.
    """

    def __init__(self, job: World) -> None:
        """The state of a model that `set_model` names later. Raises ShoalError in a job without an
        agent, which alone can write such checkpoints.
        """
        writer = writer_of(job._backend)
        if not isinstance(writer, AgentWriter):
            raise ShoalError(
                "the checkpoints of a job with a mesh are written by its agents: start the program"
                " with `shoal run -n 1`"
            )
        self._job, self._writer = job, writer
        self._mesh: Any = None  # None = `set_model` was not called yet
        self._model: Any = None
        # A bit for each tensor: whether this worker writes it; None = not asked yet.
        self._writes: Optional[bytes] = None
        self._read: Optional[memoryview] = None  # what `read` has got, until `load_into_model`

    def set_model(self, mesh: Mesh, model: Any) -> None:
        """Write and read the tensors of another model from now on."""
        self._mesh, self._model, self._writes = mesh, model, None

    def contents(self, notes: Dict[str, Any], own: Dict[str, Any], items: List[Item]) -> Contents:
        """What this worker writes of the model as it is now. For a new model this asks the agent,
        and waits for the answer, which of the tensors that several workers have are this worker's
        to write.
        """
        if self._writes is None:
            self._writes = self._job._backend.ask_mesh().writes
        tensors = ((name, describe(x)) for name, x in sorted(self._model.tensors().items()))
        named = [(name, tensor) for name, tensor in tensors if tensor.nbytes]
        mine = [pair for i, pair in enumerate(named) if self._writes[i // 8] >> i % 8 & 1]
        widest_first = [
            tensor
            for _, tensor in sorted(mine, key=lambda pair: (-pair[1].dtype.itemsize, pair[0]))
        ]
        about = {
            "mesh": str(self._mesh),
            "notes": notes,
            "tensors": [],
            "items": [base64.b64encode(item.memory()).decode() for item in items],
        }
        nbytes = sum(tensor.nbytes for tensor in widest_first)
        return Contents(about, own, [], [], nbytes, lambda at: _copy_in_order(widest_first, at))

    def read(self, chosen: Sealed, state: Dict[str, Any]) -> MeshLoadedParts:
        """Have the agent read this worker's part into memory, whatever mesh it was written on, and
        wait for that; `load_into_model` moves it to the model.
        """
        rank, workers = self._job.rank, int(state["workers"])
        own = json.loads(chosen.read_small_file(f"own-{rank % workers:05d}-of-{workers:05d}.json"))
        nbytes = packing.lay_out(self._model.tensors())[1]
        self._read = self._writer.allocate(nbytes) if nbytes else memoryview(b"")
        self._writer.read(chosen.root, chosen.step, str(self._mesh), rank, self._read)
        return MeshLoadedParts(
            [memoryview(bytearray(base64.b64decode(item))) for item in state.get("items", [])],
            {rank % workers: own},
        )

    def load_into_model(self) -> None:
        """Set the model's tensors to what was read last."""
        if self._read:
            packing.unpack(
                (ctypes.c_ubyte * self._read.nbytes).from_buffer(self._read), self._model.tensors()
            )
        self._read = None


def _copy_in_order(tensors: List[Tensor], at: int) -> None:
    """Copy tensors, one after the other, to memory at an address."""
    for tensor in tensors:
        tensor.copy_to(at)
        at += tensor.nbytes
