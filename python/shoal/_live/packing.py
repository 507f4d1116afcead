"""The state of a worker as one memory: docs/formats/reshape.md, section 2.

The thread of the training loop calls the functions, for a model that is cut over a mesh. Tensors
and memory, which is a ctypes array, stay the caller's, and nobody is waited for.
"""

from __future__ import annotations

import ctypes
import json
from typing import Any, Dict, List, Mapping, Sequence, Tuple

from .._runtime.protocol import DTYPES
from .._runtime.tensor import Tensor, array_like, describe
from ..errors import ShoalError

_ALIGN = 64  # bytes; each tensor begins at a multiple of it
# Names of element types in layouts: the shortest name of each.
_SHORT: Dict[str, str] = {t.name: name for name, t in DTYPES.items() if name != t.name}
_SHORT["bool"] = "bool"


def lay_out(tensors: Mapping[str, Any]) -> Tuple[List[Tuple[Tensor, int]], int]:
    """The tensors in the order of their names, each with its offset in bytes in one memory, and the
    number of bytes that they need together.
    """
    found, end = [], 0
    for name in sorted(tensors):
        tensor = describe(tensors[name])
        found.append((tensor, end))
        end += -(-tensor.nbytes // _ALIGN) * _ALIGN
    return found, end


def pack(tensors: Mapping[str, Any], memory: Any, nbytes: int) -> None:
    """Copy the tensors to a memory of nbytes. Raises ShoalError where they need another number."""
    found, end = lay_out(tensors)
    if end != nbytes:
        raise ShoalError(
            f"the state of this worker has {end} bytes, and the layout says {nbytes}: what"
            " tensors() returns has changed since it was stated"
        )
    for tensor, at in found:
        if tensor.nbytes:
            tensor.copy_to(ctypes.addressof(memory) + at)


def unpack(memory: Any, tensors: Mapping[str, Any]) -> None:
    """Copy the content of a memory, laid out as `lay_out` says, to the tensors. Raises ShoalError,
    before any is changed, for what cannot be written to, such as a scalar of NumPy.
    """
    placed = lay_out(tensors)[0]
    for name, (tensor, _) in zip(sorted(tensors), placed):
        if not tensor.writable:
            raise ShoalError(
                f"tensor {name} gets its value here, and cannot be written to: tensors() returns"
                " the arrays that hold the state, and this is of"
                f" {type(tensors[name]).__name__}; for one number, numpy.zeros(()) that is changed"
                " in place"
            )
    for tensor, at in placed:
        if tensor.nbytes:
            tensor.copy_from(ctypes.addressof(memory) + at)


def views(tensors: Mapping[str, Any], memory: Any) -> Dict[str, Any]:
    """Arrays like the tensors, by name, at their offsets in a memory, which they share."""
    flat = memoryview(memory).cast("B")
    placed = zip(sorted(tensors), lay_out(tensors)[0])
    return {
        name: array_like(tensors[name], tensor.dtype, tensor.shape, flat[at : at + tensor.nbytes])
        for name, (tensor, at) in placed
    }


def tensor_list(tensors: Mapping[str, Any]) -> List[Dict[str, Any]]:
    """The name, type and shape of each tensor, as a statement lists them, in the order given."""
    found = []
    for name, x in tensors.items():
        tensor = describe(x)
        found.append(
            {"name": name, "dtype": _SHORT[tensor.dtype.name], "shape": list(tensor.shape)}
        )
    return found


def layout_statement(
    layout: str, mesh: str, catalogue: Sequence[Mapping[str, Any]], local: Any = None
) -> bytes:
    """The statement of a worker about the state of the job, as JSON for its agent: the layout, the
    mesh that the job begins with, all whole tensors, and those that lie on this worker, which
    `local` has; None = not known yet.
    """
    said: Dict[str, Any] = {"layout": layout, "mesh": mesh, "tensors": catalogue}
    if local is not None:
        said["local"] = tensor_list(local)
    return json.dumps(said).encode()
