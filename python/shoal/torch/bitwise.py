"""Bitwise reductions, which the agent does not have: every rank gathers all tensors and reduces
them itself.
"""

from __future__ import annotations

import functools
from typing import Any, Callable, Optional, Tuple

import torch
from torch import Tensor

from .wire import op_name

_OPS = {"BAND": torch.bitwise_and, "BOR": torch.bitwise_or, "BXOR": torch.bitwise_xor}


def is_bitwise(op: Any) -> bool:
    """Whether torch's reduction `op` is bitwise."""
    return op_name(op) in _OPS


def prepare_bitwise(
    tensor: Tensor, result: Optional[Tensor], op: Any, size: int
) -> Tuple[Tensor, Callable[[], object]]:
    """Return a tensor of shape [size, ...] for the tensors of all ranks, and a function that
    reduces them into `result` once they are there; it does nothing where `result` is None.
    """
    place = torch.empty((size, *tensor.shape), dtype=tensor.dtype)

    def finish() -> None:
        """Reduce the gathered tensors into the result."""
        if result is not None:
            result.detach().copy_(functools.reduce(_OPS[op_name(op)], place.unbind()))

    return place, finish
