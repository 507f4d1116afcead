"""What a worker of a job with a mesh writes into checkpoints of its part of the state, and reads:
docs/formats/job-checkpoints.md, section 5.
"""

from __future__ import annotations

import base64
import ctypes
import json
from typing import TYPE_CHECKING, Any, Dict, List, NamedTuple, Optional

from .._checkpoint.checkpoints import Contents
from .._checkpoint.commit import Sealed
from .._checkpoint.tree import Item
from .._checkpoint.writer import AgentScribe
from .._runtime.tensor import Tensor, describe
from ..errors import ShoalError
from . import packing

if TYPE_CHECKING:
    from ..job import Job
    from ..mesh import Mesh


class Found(NamedTuple):
    """What was read, besides the tensors."""

    parts: List[memoryview]
    own: Dict[int, Any]


class Part:
    """This worker's part of the state."""

    def __init__(self, job: "Job") -> None:
        scribe = job._port.scribe()
        if not isinstance(scribe, AgentScribe):
            raise ShoalError(
                "the checkpoints of a job with a mesh are written by its agents: start the program"
                " with `shoal run -n 1`"
            )
        self._job, self._scribe = job, scribe
        self._mesh: Any = None
        self._model: Any = None
        self._marks: Optional[bytes] = None
        self._read: Optional[memoryview] = None

    def hold(self, mesh: "Mesh", model: Any) -> None:
        """The part is that of a model from now on."""
        self._mesh, self._model, self._marks = mesh, model, None

    def contents(self, notes: Dict[str, Any], own: Dict[str, Any], items: List[Item]) -> Contents:
        """What this worker writes: tensors that others have as well are shared out among them, by
        the agents.
        """
        if self._marks is None:
            self._marks = self._job._port.ask_shape().writes
        tensors = ((name, describe(x)) for name, x in sorted(self._model.tensors().items()))
        named = [(name, tensor) for name, tensor in tensors if tensor.nbytes]
        mine = [pair for i, pair in enumerate(named) if self._marks[i // 8] >> i % 8 & 1]
        wide = [
            tensor
            for _, tensor in sorted(mine, key=lambda pair: (-pair[1].dtype.itemsize, pair[0]))
        ]
        about = {
            "mesh": str(self._mesh),
            "notes": notes,
            "tensors": [],
            "items": [base64.b64encode(item.memory()).decode() for item in items],
        }
        return Contents(
            about, own, [], [], sum(tensor.nbytes for tensor in wide), lambda at: _copy(wide, at)
        )

    def read(self, chosen: Sealed, state: Dict[str, Any]) -> Found:
        """Have the agent read this worker's part, whatever mesh it was written on; `take` takes
        it.
        """
        rank, workers = self._job.rank, int(state["workers"])
        own = json.loads(chosen.text(f"own-{rank % workers:05d}-of-{workers:05d}.json"))
        nbytes = packing.places(self._model.tensors())[1]
        self._read = self._scribe.room(nbytes) if nbytes else memoryview(b"")
        self._scribe.read(chosen.root, chosen.step, str(self._mesh), rank, self._read)
        return Found(
            [memoryview(bytearray(base64.b64decode(item))) for item in state.get("items", [])],
            {rank % workers: own},
        )

    def take(self) -> None:
        """Set the model's tensors to what was read last."""
        if self._read:
            packing.unpack(
                (ctypes.c_ubyte * self._read.nbytes).from_buffer(self._read), self._model.tensors()
            )
        self._read = None


def _copy(tensors: List[Tensor], at: int) -> None:
    for tensor in tensors:
        tensor.copy_to(at)
        at += tensor.nbytes
