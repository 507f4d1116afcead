"""Torch tensors for the agent, which knows seven element types and dense memory only.

A `Wire` is a dense tensor on the CPU, of one of the seven types. It shares memory with the tensor
it stands for wherever that is possible; where it is not (strides, 8- and 16-bit integers in a sum,
a CUDA device), `back` copies the result home.
"""

from __future__ import annotations

from typing import Any, Callable, Iterable, NamedTuple, Optional, Sequence, Tuple

import torch
from torch import Tensor

import shoal

_NATIVE = {
    torch.float64,
    torch.float32,
    torch.float16,
    torch.bfloat16,
    torch.int64,
    torch.int32,
    torch.uint8,
}
_WIDENED = (torch.int8, torch.int16)
_OPS = {"SUM": "sum", "AVG": "mean", "PRODUCT": "prod", "MIN": "min", "MAX": "max"}


def op_name(op: Any) -> str:
    """The name of a torch.distributed.ReduceOp, whose objects are no good as keys in every
    release.
    """
    return getattr(op, "op", op).name


class Wire(NamedTuple):
    """A tensor as the agent gets it."""

    data: Tensor  # dense, of a native type
    # copies the result home; None where the memory is shared
    back: Optional[Callable[[], object]] = None


def wire_to_move(tensor: Tensor) -> Wire:
    """The wire of a tensor for a call that only moves elements: of any type; types that the agent
    does not know go as bytes. Waits for the device of the tensor, if it has one.
    """
    home = _check_dense(tensor)
    dense = home.cpu().resolve_conj().resolve_neg().contiguous()
    back = None if dense.data_ptr() == home.data_ptr() else lambda: home.copy_(dense)
    if dense.is_complex():
        data = torch.view_as_real(dense)
    elif dense.dtype not in _NATIVE:
        data = dense.reshape(-1).view(torch.uint8)
    else:
        data = dense
    return Wire(data, back)


def copy_from_rank(group: "shoal.Group", tensors: Iterable[Tensor], rank: int = 0) -> None:
    """Make these tensors those of a rank of a group, whose members all call this, and wait for each
    other.
    """
    for tensor in tensors:
        wire = wire_to_move(tensor)
        group.broadcast(wire.data, rank)
        if wire.back is not None:
            wire.back()


def wire_to_reduce(tensor: Tensor, op: Any) -> Tuple[Wire, str]:
    """The wire of a tensor for a call that reduces it by torch's `op`, and the agent's name of the
    reduction. Raises RuntimeError where there is none.

    A bool is a byte of 0 or 1, so its sum (or) is a maximum and its product (and) a minimum. Small
    integers are widened to 32 bits and narrowed again, which wraps around as torch's own arithmetic
    does.
    """
    name = _OPS.get(op_name(op))
    if name is None:
        raise RuntimeError(
            f"shoal: the reduction {op_name(op)} is not supported here: use one of SUM, AVG,"
            " PRODUCT, MIN, MAX"
        )
    if tensor.dtype == torch.bool and name != "mean":
        return wire_to_move(tensor), {"sum": "max", "prod": "min"}.get(name, name)
    if tensor.dtype in _WIDENED:
        home = _check_dense(tensor)
        wide = home.cpu().to(torch.int32).contiguous()
        return Wire(wide, lambda: home.copy_(wide)), name
    if tensor.dtype in _NATIVE or (tensor.is_complex() and name in ("sum", "mean")):
        return wire_to_move(tensor), name
    raise RuntimeError(
        f"shoal: {name} of {tensor.dtype} tensors is not supported: reduce them as a number type"
    )


def concatenate(wires: Sequence[Wire], fill: bool) -> Wire:
    """Several wires as one in new memory, one after the other; with `fill` their contents too, else
    room for a result, which `back` copies to their tensors.
    """
    sizes = [wire.data.numel() for wire in wires]
    if fill:
        data = torch.cat([wire.data.reshape(-1) for wire in wires])
    else:
        data = torch.empty(sum(sizes), dtype=wires[0].data.dtype)

    def back() -> None:
        """Copy the parts of the result to their tensors."""
        for wire, part in zip(wires, data.split(sizes)):
            wire.data.copy_(part.view_as(wire.data))
            if wire.back is not None:
                wire.back()

    return Wire(data, back)


def _check_dense(tensor: Tensor) -> Tensor:
    """The tensor, detached. Raises RuntimeError where it is not dense, or on another kind of
    device.
    """
    if tensor.device.type not in ("cpu", "cuda") or tensor.layout != torch.strided:
        raise RuntimeError(
            f"shoal: a {tensor.layout} tensor on {tensor.device} cannot take part in this call:"
            " pass a dense tensor on the CPU or on a CUDA device"
        )
    return tensor.detach()
