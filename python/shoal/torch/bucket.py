"""Many tensors of one element type in one stretch of the arena, for one call instead of many."""

from __future__ import annotations

from collections import defaultdict
from typing import Callable, Dict, List, NamedTuple, Optional, Sequence

import torch
from torch import Tensor

from .arena import empty
from .bucket_copy import HOST, Mover

MOST_BYTES = 25 << 20  # of a bucket, as in DDP


class Turn(NamedTuple):
    """What a bucket may know of the step that it is filled for. All but `rank` and `share` are the
    same on every worker.
    """

    rank: int
    size: int
    number: int  # of the step
    share: float  # this worker's part of the batch
    fresh: bool  # the workers are not those of the step before


class Part(NamedTuple):
    """A tensor in the arena that a bucket has the workers reduce in place; with a root, that the
    root gives to all.
    """

    tensor: Tensor
    op: str = "mean"
    root: Optional[int] = None
    narrow: bool = False  # see docs/formats/arena.md


class Bucket:
    """A buffer in the arena, or wherever `empty` makes it, with room for a tensor as large as each
    parameter, and a mark for each.

    The mark says whether a rank had that tensor: after a mean it is above 0 where any rank had. All
    ranks must have the same parameters in the same order; the agent says so where they do not.

    Its life in a step: `begin`, a `put` for each parameter, `ask`, `give`, `unpack`. Of other types
    than the parameters', as bfloat16, it takes fewer bytes, and every rank rounds what it puts.
    """

    mover: Mover = HOST

    def __init__(
        self,
        parameters: Sequence[Tensor],
        dtype: Optional[torch.dtype] = None,
        empty: Callable[[int, torch.dtype], Tensor] = empty,
    ):
        self.parameters = list(parameters)
        sizes = [p.numel() for p in self.parameters]
        self._narrow = dtype is not None
        self.buffer = empty(sum(sizes) + len(sizes), dtype or self.parameters[0].dtype)
        *parts, self._marks = self.buffer.split([*sizes, len(sizes)])
        self._marks.fill_(1)
        self.parts = [part.view(p.shape) for part, p in zip(parts, self.parameters)]

    def begin(self, turn: Turn) -> None:
        """Before the first `put` of a step."""
        self._marks.fill_(1)

    def pack(self, tensors: Sequence[Optional[Tensor]]) -> None:
        """Put a tensor a parameter."""
        for i, tensor in enumerate(tensors):
            self.put(i, tensor)

    def put(self, i: int, tensor: Optional[Tensor]) -> None:
        """Copy the tensor of parameter i into the buffer, by the mover; None counts as zeros."""
        if tensor is None:
            self.parts[i].zero_()
            self._marks[i] = 0
        else:
            self.mover.fetch(self.parts[i], dense(tensor))

    def ask(self) -> List[Part]:
        """What the workers must agree on before they can give anything."""
        return []

    def give(self) -> List[Part]:
        """What makes up the mean, once what was asked is answered."""
        return [Part(self.buffer, narrow=self._narrow)]

    def unpack(self) -> List[Optional[Tensor]]:
        """The means, one a parameter, valid until the next step; None where no rank had the
        tensor.
        """
        return [part if mark else None for part, mark in zip(self.parts, self._marks.tolist())]


def dense(tensor: Tensor) -> Tensor:
    """The tensor. Raises RuntimeError where it is sparse."""
    if tensor.is_sparse:
        raise RuntimeError(
            "shoal: sparse gradients cannot be fused: use shoal.torch.ddp, or layers with"
            " sparse=False"
        )
    return tensor


def buckets(
    parameters: Sequence[Tensor],
    nbytes: int = MOST_BYTES,
    make: Callable[[Sequence[Tensor]], Bucket] = Bucket,
) -> List[Bucket]:
    """The parameters, in their order, in buckets of one element type and at most nbytes each (or
    one parameter).
    """
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
    return [make(members) for members in lists]
