"""Samples of gradients. The agent measures how noisy gradients are while it averages them. Where it
does not get them as they are, because they go from device to device or compressed, the workers have
it average a small part of them too, in some steps.
"""

from __future__ import annotations

from typing import Optional, Sequence

from .bucket import Bucket

_EVERY = 8  # one of about so many steps is sampled
_MOST = 1 << 15  # elements of a sample, about: 128 KiB


def sample_of_step(number: int, buckets: Sequence[Bucket]) -> Optional[slice]:
    """Which elements of each bucket of gradients are the sample of a step, by its number: some at
    equal distances, others each time, and the same on all workers. None = the step has no sample.
    """
    mixed = (number + 1) * 0x9E3779B97F4A7C15 % (1 << 64) >> 32
    if mixed % _EVERY:
        return None
    elements = sum(p.numel() for b in buckets if b.gradient for p in b.parameters)
    # Odd, because rows of weights have even lengths: so a sample is of all columns.
    distance = elements // _MOST | 1
    return slice(mixed // _EVERY % distance, None, distance)
