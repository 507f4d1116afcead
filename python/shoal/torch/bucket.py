"""Many tensors of one element type in one buffer of the arena, for one call instead of many."""

from __future__ import annotations

from collections import defaultdict
from typing import Callable, Dict, List, NamedTuple, Optional, Sequence

import torch
from torch import Tensor

from shoal._runtime.protocol import NO_GRADIENT

from .arena import empty, empty_lazy
from .bucket_copy import HOST, Copier

MOST_BYTES = 25 << 20  # largest size of a bucket, as in DDP


class StepInfo(NamedTuple):
    """The step that a bucket is filled for. All fields but `rank` and `share` are the same on every
    worker.
    """

    rank: int  # rank of this worker
    size: int  # number of workers
    number: int  # number of the step
    share: float  # this worker's part of the batch
    fresh: bool  # the workers are not those of the step before
    # Which elements of a bucket go into a sample of the gradients, by which the agent learns how
    # noisy they are where it does not get them as they are; None = none do in this step.
    sample: Optional[slice] = None


class BucketCall(NamedTuple):
    """A call for a tensor in the arena: an all-reduce in place, or with a root a broadcast."""

    tensor: Tensor  # the bucket's, which nobody else writes while the call is under way
    op: str = "mean"
    root: Optional[int] = None  # the rank that sends; None = an all-reduce
    narrow: bool = False  # see docs/formats/arena.md
    tag: int = 0  # NO_GRADIENT or SAMPLE, where it is not of whole gradients
    weight: Optional[float] = None  # of a mean; None = this worker's samples in the step


class Bucket:
    """A buffer in the arena, or wherever `make` makes it, that holds a tensor as large as each
    parameter, and a mark for each.

    The mark says whether a rank had that tensor: after a mean it is above 0 where any rank had. All
    ranks must have the same parameters in the same order; the agent refuses anything else.

    In each step come `begin_step`, a `put` for each parameter, `negotiation_calls`, `payload_calls`
    and `unpack`, in this order. With another `dtype` than that of the parameters, such as bfloat16,
    the buffer takes fewer bytes, and every rank rounds what it puts. Complex numbers lie in it as
    two real ones each. One thread at a time uses it: the one that runs backward fills it, and that
    of the copier's tasks, which may be the same, does what follows. No method waits for other
    workers.
    """

    gradient = True  # it is for gradients; else for other tensors of the model
    samples = False  # it sends a sample of the gradients where StepInfo has one
    copier: Copier = HOST  # another one sets itself, by `adopt`, before the first step

    def __init__(
        self,
        parameters: Sequence[Tensor],
        dtype: Optional[torch.dtype] = None,
        make: Optional[Callable[[int, torch.dtype], Tensor]] = None,
    ):
        """Allocate the buffer by `make(elements, type)`, with parts as large as the parameters;
        these are not copied. `dtype` None: of their type. `make` None: in the arena.
        """
        self.parameters = list(parameters)
        if make is None:
            # The first gradient comes after a forward pass, or after the state of the others. What
            # is pinned for a device gets its pages before that.
            make = empty_lazy if self.parameters[0].device.type == "cpu" else empty
        kind = self.parameters[0].dtype
        real = torch.empty(0, dtype=kind).abs().dtype if kind.is_complex else kind
        sizes = [p.numel() * (1 + kind.is_complex) for p in self.parameters]
        self._narrow = dtype is not None
        self.buffer = make(sum(sizes) + len(sizes), dtype or real)
        # As small as can be told from 0 in a mean over a thousand workers: the agent measures how
        # noisy gradients are by what is in the buffer, in which a 1 could be most of it.
        self._mark = 2.0**-12 if self.buffer.dtype == torch.float16 else 2.0**-40
        *parts, self._marks = self.buffer.split([*sizes, len(sizes)])
        self._marks.fill_(self._mark)
        if kind.is_complex:
            parts = [torch.view_as_complex(part.view(-1, 2)) for part in parts]
        self.parts = [part.view(p.shape) for part, p in zip(parts, self.parameters)]

    def begin_step(self, info: StepInfo) -> None:
        """Make the bucket ready for the first `put` of a step."""
        self._marks.fill_(self._mark)

    def pack(self, tensors: Sequence[Optional[Tensor]]) -> None:
        """Put one tensor for each parameter, in their order."""
        for i, tensor in enumerate(tensors):
            self.put(i, tensor)

    def put(self, i: int, tensor: Optional[Tensor]) -> None:
        """Have the copier copy the tensor of parameter i into the buffer; None counts as zeros."""
        if tensor is None:
            self.parts[i].zero_()
            self._marks[i] = 0
        else:
            self.copier.copy_in(self.parts[i], check_dense(tensor))

    def negotiation_calls(self) -> List[BucketCall]:
        """The calls by which the workers agree on how to write their payload; most need none. The
        caller submits them.
        """
        return []

    def payload_calls(self) -> List[BucketCall]:
        """The calls that make up the mean, once those of `negotiation_calls` are complete. The
        caller submits them.
        """
        tag = 0 if self.gradient else NO_GRADIENT
        return [BucketCall(self.buffer, narrow=self._narrow, tag=tag)]

    def unpack(self) -> List[Optional[Tensor]]:
        """The means, one for each parameter, which lie in the buffer until the next step; None
        where no rank had the tensor.
        """
        return [part if mark else None for part, mark in zip(self.parts, self._marks.tolist())]


def check_dense(tensor: Tensor) -> Tensor:
    """The tensor, without its history. Raises RuntimeError where it is sparse."""
    if tensor.is_sparse:
        raise RuntimeError(
            "shoal: sparse gradients cannot be fused: make the layers with sparse=False;"
            " shoal.torch.ddp averages sparse ones in a program without shoal.torch.loader"
        )
    return tensor.detach() if tensor.requires_grad else tensor


def make_buckets(
    parameters: Sequence[Tensor],
    nbytes: int = MOST_BYTES,
    make: Callable[[Sequence[Tensor]], Bucket] = Bucket,
) -> List[Bucket]:
    """Buckets for the parameters, in their order, of one element type and at most nbytes each (or
    one parameter). `make` makes one.
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
