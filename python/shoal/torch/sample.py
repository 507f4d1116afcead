"""Samples of gradients. The agent measures how noisy gradients are while it averages them. Where it
does not get them as they are, because they go from device to device or compressed, or are those of
local steps, the workers have it average a small part of them too.
"""

from __future__ import annotations

from typing import List, Optional, Sequence

import torch
from torch import Tensor

from shoal._runtime.protocol import SAMPLE

from .arena import empty
from .bucket import Bucket, BucketCall

_EVERY = 8  # one of about so many steps is sampled
_MOST = 1 << 15  # elements of a sample, about: 128 KiB
# Of local steps one in each round is sampled: one in so many elements, but so many at least, about,
# and at most. These are 16 and 64 KiB.
_PART, _FEW, _MANY = 128, 1 << 12, 1 << 14


def sample_of_step(number: int, buckets: Sequence[Bucket]) -> Optional[slice]:
    """Which elements of each bucket of gradients are the sample of a step, by its number: some at
    equal distances, others each time, and the same on all workers. None = the step has no sample.
    """
    mixed = _mix(number)
    if mixed % _EVERY:
        return None
    elements = sum(p.numel() for b in buckets if b.gradient for p in b.parameters)
    return _spread(elements, _MOST, mixed // _EVERY)


def _mix(number: int) -> int:
    """A number below 2^32 that looks like chance, and follows from another one."""
    return (number + 1) * 0x9E3779B97F4A7C15 % (1 << 64) >> 32


def _spread(elements: int, most: int, turn: int) -> slice:
    """Elements at equal distances, of so many: about `most` of them, and in each turn others."""
    # Odd, because rows of weights have even lengths: so a sample is of all columns.
    distance = elements // most | 1
    return slice(turn % distance, None, distance)


class LocalSample:
    """A sample of this worker's gradients in the first local step of each round, which goes with
    the commit of the round. In that step the replicas of most strategies are all at the anchor, so
    that gradients differ by their samples alone. For the thread of the training loop.
    """

    def __init__(self, parameters: Sequence[Tensor]):
        """A sample of the gradients of parameters, which are in the same order on all workers."""
        self._parameters = list(parameters)
        elements = sum(p.numel() for p in self._parameters)
        self._most = min(max(elements // _PART, _FEW), _MANY)
        self._elements = elements
        self._room: Optional[Tensor] = None  # of the sample, in the arena; None = there was none
        self._call: Optional[BucketCall] = None  # with the sample of this round; None = it has none

    def take(self, step: int, weight: int) -> None:
        """Copy the sample out of the gradients of a step, by its number. They are the means over
        `weight` samples; 0 = they do not count.
        """
        places = _spread(self._elements, self._most, _mix(step))
        counts = [len(range(p.numel())[places]) for p in self._parameters]
        if self._room is None:
            distance = places.step
            self._room = empty(sum(-(-p.numel() // distance) for p in self._parameters))
        sample = self._room[: sum(counts)]
        self._call = BucketCall(sample, tag=SAMPLE, weight=float(weight))
        if not weight:
            return
        gradients = [p.grad for p in self._parameters]
        device = next((g.device for g in gradients if g is not None), sample.device)
        chosen: List[Tensor] = [
            torch.zeros(count, device=device)
            if g is None
            else torch.real(g.detach()).reshape(-1)[places].to(device, torch.float32)
            for g, count in zip(gradients, counts)
        ]
        sample.copy_(torch.cat(chosen))

    def calls(self) -> List[BucketCall]:
        """The call that averages the sample of the round, and none where there is no sample. Each
        sample goes once.
        """
        call, self._call = self._call, None
        return [] if call is None else [call]
