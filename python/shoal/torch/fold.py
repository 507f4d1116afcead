"""The bitwise reductions, which the agent does not have: every rank gathers all tensors and folds them itself."""

from __future__ import annotations

import functools
from typing import Callable, Optional, Tuple

import torch
import torch.distributed as dist
from torch import Tensor

OPS = {
    dist.ReduceOp.BAND: torch.bitwise_and,
    dist.ReduceOp.BOR: torch.bitwise_or,
    dist.ReduceOp.BXOR: torch.bitwise_xor,
}


def rows(tensor: Tensor, result: Optional[Tensor], op, size: int) -> Tuple[Tensor, Callable[[], object]]:
    """Return (place for the tensors of `size` ranks, what to run once they are there to fill `result`)."""
    place = torch.empty((size, *tensor.shape), dtype=tensor.dtype)

    def land() -> None:
        if result is not None:
            result.detach().copy_(functools.reduce(OPS[op], place.unbind()))

    return place, land
