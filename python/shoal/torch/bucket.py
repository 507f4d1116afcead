"""Many tensors of one element type in one stretch of the arena, for one call instead of many."""

from __future__ import annotations

from collections import defaultdict
from typing import Dict, List, Optional, Sequence

import torch
from torch import Tensor

from .arena import empty


class Bucket:
    """A buffer in the arena with room for a tensor as large as each parameter, and a mark for each.

    The mark says whether a rank had that tensor: after a mean it is above 0 where any rank had. All ranks must
    have the same parameters in the same order; the agent says so where they do not.
    """

    def __init__(self, parameters: Sequence[Tensor]):
        self.parameters = list(parameters)
        sizes = [p.numel() for p in self.parameters]
        self.buffer = empty(sum(sizes) + len(sizes), self.parameters[0].dtype)
        *parts, self._marks = self.buffer.split([*sizes, len(sizes)])
        self.parts = [part.view(p.shape) for part, p in zip(parts, self.parameters)]

    def pack(self, tensors: Sequence[Optional[Tensor]]) -> None:
        """Copy a tensor a parameter into the buffer; None counts as zeros."""
        self.begin()
        for i, tensor in enumerate(tensors):
            self.put(i, tensor)

    def begin(self) -> None:
        """Before the first `put`."""
        self._marks.fill_(1)

    def put(self, i: int, tensor: Optional[Tensor]) -> None:
        """Copy the tensor of parameter i into the buffer; None counts as zeros."""
        if tensor is None:
            self.parts[i].zero_()
            self._marks[i] = 0
        elif tensor.is_sparse:
            raise RuntimeError("shoal: sparse gradients cannot be fused: use shoal.torch.ddp, or layers with sparse=False")
        else:
            self.parts[i].copy_(tensor)

    def unpack(self) -> List[Optional[Tensor]]:
        """Views of the buffer, one a parameter; None where no rank had the tensor."""
        return [part if mark else None for part, mark in zip(self.parts, self._marks.tolist())]


def buckets(parameters: Sequence[Tensor], nbytes: int) -> List[Bucket]:
    """The parameters, in their order, in buckets of one element type and at most nbytes each (or one parameter)."""
    lists: List[List[Tensor]] = []
    filling: Dict[torch.dtype, List[Tensor]] = {}
    filled: Dict[torch.dtype, int] = defaultdict(int)
    for p in parameters:
        size = p.numel() * p.element_size()
        if p.dtype not in filling or filled[p.dtype] + size > nbytes:
            filling[p.dtype], filled[p.dtype] = [], 0
            lists.append(filling[p.dtype])
        filling[p.dtype].append(p)
        filled[p.dtype] += size
    return [Bucket(members) for members in lists]
