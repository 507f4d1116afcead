"""Nested values as a plan in JSON and flat items of bytes: how the state of a worker travels to one
that joins.

Arrays (NumPy, torch) become items, in the order in which they are met; everything else is in the
plan. There is no pickle: what comes out is built from these few kinds only, whatever the sender
says.

    None, bool, int, float, str    as in JSON; a float that JSON cannot say is {"float": "nan"}
    list                           a list
    tuple                          {"tuple": [...]}
    dict                           {"dict": [[key, value], ...]}, keys of any of these kinds
    bytes                          {"bytes": base64}
    an array                       {"item": index, "kind": "numpy" or "torch", "dtype": name,
                                    "shape": [...]}
    a scalar of NumPy              as an array, with the kind "scalar"

Any thread may call the functions, which take no lock and wait for nobody. The arrays stay the
caller's, and nothing may change them while their items are in use.
"""

from __future__ import annotations

import base64
import contextlib
import ctypes
import math
import mmap
import sys
from typing import Any, Dict, List, NamedTuple, Optional, Sequence

from .protocol import HUGE_PAGE
from .tensor import is_torch, numpy_dtype, numpy_name


class Item(NamedTuple):
    """The bytes of an array, in C order."""

    name: str  # where in the state the array stands: for messages, and its name in checkpoints
    nbytes: int
    address: int  # of the bytes from `first` on
    array: Any  # dense; keeps the memory alive
    # Worker r has the bytes from cuts[r] to cuts[r+1]; None = every worker has all of them.
    cuts: Optional[List[int]] = None
    first: int = 0  # number of the byte of the array that lies at the address

    def copy_to(self, address: int, start: int, stop: int) -> None:
        """Copy the bytes from `start` to before `stop` of the array to memory at an address."""
        ctypes.memmove(address, self.address + start - self.first, stop - start)

    def memory(self) -> memoryview:
        """A view of all bytes, which keeps the array alive; nothing is copied. Not for an item of
        rows that are divided, since the bytes of the other workers are not here.
        """
        if not self.nbytes:
            return memoryview(bytearray())
        block = (ctypes.c_ubyte * self.nbytes).from_address(self.address)
        block.array = self.array  # type: ignore[attr-defined]  # kept as long as the view
        return memoryview(block).cast("B")


class RowSharded(NamedTuple):
    """A torch tensor whose rows are divided among the workers: worker r has the rows from cuts[r]
    to cuts[r+1], and `part` holds those of this worker.
    """

    part: Any
    rank: int
    cuts: List[int]


def allocate_touched(nbytes: int) -> memoryview:
    """New zeroed memory for an item, with all of its pages there: with huge pages, where the system
    has them, in a fifth of the time. Blocks for as long as that takes.
    """
    if nbytes < HUGE_PAGE or not hasattr(mmap, "MADV_HUGEPAGE"):
        return memoryview(bytearray(nbytes))
    pages = allocate_zeros(nbytes)
    ctypes.memset(ctypes.addressof(ctypes.c_ubyte.from_buffer(pages)), 0, nbytes)
    return pages


def allocate_zeros(nbytes: int) -> memoryview:
    """New zeroed memory, of which no page is there before it is written to: huge pages then, where
    the system has them. nbytes is at least 1.
    """
    pages = mmap.mmap(-1, nbytes, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    with contextlib.suppress(AttributeError, OSError):
        pages.madvise(mmap.MADV_HUGEPAGE)
    return memoryview(pages)


def flatten(name: str, value: Any, items: List[Item]) -> Any:
    """The plan of a value. Appends its arrays to `items`. Raises TypeError for what cannot
    travel.
    """
    try:
        return _flatten(name, value, items)
    except RecursionError:
        raise _immovable_error(name, "in itself, or nested too deeply") from None


def _flatten(name: str, value: Any, items: List[Item]) -> Any:
    """`flatten` without the check for values in themselves."""
    if value is None or isinstance(value, (bool, str)):
        return value
    if isinstance(value, int):
        return int(value)
    if isinstance(value, float) and type(value).__module__ != "numpy":
        return float(value) if math.isfinite(value) else {"float": repr(float(value))}
    if isinstance(value, (bytes, bytearray)):
        return {"bytes": base64.b64encode(value).decode()}
    if isinstance(value, RowSharded):
        return _flatten_row_sharded(name, value, items)
    if isinstance(value, list):
        return [_flatten(f"{name}/{i}", v, items) for i, v in enumerate(value)]
    if isinstance(value, tuple):
        return {"tuple": [_flatten(f"{name}/{i}", v, items) for i, v in enumerate(value)]}
    if isinstance(value, dict):
        return {
            "dict": [
                [_key_plan(name, k), _flatten(f"{name}/{k}", v, items)] for k, v in value.items()
            ]
        }
    if is_torch(value):
        if value.is_meta or str(value.layout) != "torch.strided":
            kind = "on the device meta" if value.is_meta else f"of layout {value.layout}"
            raise _immovable_error(name, f"a tensor {kind}")
        dense = value.detach().cpu().resolve_conj().resolve_neg().contiguous()
        if not dense.data_ptr() and dense.nelement():
            kind = type(dense).__name__
            raise _immovable_error(
                name, f"a {kind} without memory of its own (x.to_local() of a DTensor has some)"
            )
        items.append(Item(name, dense.nelement() * dense.element_size(), dense.data_ptr(), dense))
        return _array_plan("torch", str(dense.dtype).rpartition(".")[2], dense.shape, items)
    if type(value).__module__ in ("numpy", "ml_dtypes") and hasattr(value, "__array_interface__"):
        import numpy

        dense = numpy.ascontiguousarray(value).reshape(value.shape)
        dtype = numpy_name(dense.dtype)
        if dense.dtype.hasobject or "V" in dtype:  # the latter has fields
            raise _immovable_error(name, f"an array of {dense.dtype}")
        items.append(Item(name, dense.nbytes, dense.__array_interface__["data"][0], dense))
        kind = "scalar" if isinstance(value, numpy.generic) else "numpy"
        return _array_plan(kind, dtype, dense.shape, items)
    raise _immovable_error(name, f"a {type(value).__name__}")


def _flatten_row_sharded(name: str, value: RowSharded, items: List[Item]) -> Any:
    """The plan of a row-sharded tensor as if it were whole. Appends this worker's rows to
    `items`.
    """
    part = value.part.contiguous()
    shape = (value.cuts[-1], *part.shape[1:])
    row = part.element_size() * math.prod(shape[1:])
    # Only its type and shape are asked for: it takes the memory of one element.
    whole = part.new_empty(1).expand(shape) if math.prod(shape) else part.new_empty(shape)
    whole.part = part
    cuts = [row * cut for cut in value.cuts] if math.prod(shape) else None
    items.append(
        Item(name, row * shape[0], part.data_ptr(), whole, cuts, row * value.cuts[value.rank])
    )
    return _array_plan("torch", str(part.dtype).rpartition(".")[2], shape, items)


def _array_plan(kind: str, dtype: str, shape: Sequence[int], items: List[Item]) -> Dict[str, Any]:
    """The plan of an array that is the last of `items`."""
    return {"item": len(items) - 1, "kind": kind, "dtype": dtype, "shape": [int(n) for n in shape]}


def _key_plan(name: str, key: Any) -> Any:
    """The plan of a key of a dict. Raises TypeError for one with an array in it."""
    inside: List[Item] = []
    plan = flatten(f"{name} (a key)", key, inside)
    if inside:
        raise _immovable_error(name, "a dict with arrays as keys")
    return plan


def _immovable_error(name: str, what: str) -> TypeError:
    """The error for a value that cannot travel, for the caller to raise."""
    return TypeError(
        f"{name} is {what}, which can go neither to another worker nor into a checkpoint: give"
        " arrays, numbers, strings, bytes, None, and lists, tuples and dicts of these"
    )


def unflatten(plan: Any, parts: List[memoryview]) -> Any:
    """The value of a plan; its arrays lie in the memory of `parts`, the bytes of the items. Raises
    ValueError for what `flatten` does not write.
    """
    if plan is None or isinstance(plan, (bool, int, float, str)):
        return plan
    if isinstance(plan, list):
        return [unflatten(p, parts) for p in plan]
    if isinstance(plan, dict):
        if "item" in plan:
            return _unflatten_array(plan, parts)
        if len(plan) == 1:
            ((kind, inner),) = plan.items()
            if kind == "float" and inner in ("nan", "inf", "-inf"):
                return float(inner)
            if kind == "bytes" and isinstance(inner, str):
                return base64.b64decode(inner, validate=True)
            if kind == "tuple" and isinstance(inner, list):
                return tuple(unflatten(p, parts) for p in inner)
            if kind == "dict" and isinstance(inner, list):
                return {unflatten(k, parts): unflatten(v, parts) for k, v in inner}
    raise ValueError(f"no plan of a value: {str(plan)[:80]}")


def _unflatten_array(plan: Dict[str, Any], parts: List[memoryview]) -> Any:
    """The array of a plan, over the bytes of its item. Raises ValueError for what is no plan of an
    array.
    """
    index, shape = plan["item"], tuple(plan["shape"])
    if (
        not isinstance(index, int)
        or not 0 <= index < len(parts)
        or not all(isinstance(n, int) and n >= 0 for n in shape)
    ):
        raise ValueError(f"no plan of an array: {plan}")
    data = parts[index]
    if plan["kind"] == "torch":
        torch = sys.modules.get("torch")
        if torch is None:
            raise ValueError("the others have torch tensors: import torch before the first step")
        dtype = getattr(torch, str(plan["dtype"]))
        return (
            torch.frombuffer(data, dtype=dtype).view(shape)
            if data.nbytes
            else torch.empty(shape, dtype=dtype)
        )
    import numpy

    dtype = numpy_dtype(plan["dtype"])
    if dtype.hasobject:
        raise ValueError(f"no plan of an array: {plan}")
    found = numpy.frombuffer(data, dtype).reshape(shape)
    return found[()] if plan["kind"] == "scalar" else found
