"""Buckets that give a part of their gradients now and keep the rest for later steps: error
feedback.
"""

from __future__ import annotations

import math
from typing import List, Optional, Sequence

import torch
from torch import Tensor

from ..arena import empty
from ..bucket import Bucket, BucketCall, StepInfo, dense


class Feedback(Bucket):
    """A bucket of which a worker gives an approximation, and remembers what that lacks (Karimireddy
    et al., ICML 2019, §4).

    `memory` is this worker's contribution to the mean, in f32: its gradients weighted by its share
    of the batch, and what it had left from earlier steps. Every contribution is added up as it is,
    so what is left stays right when the workers or their shares change. A worker that joins has
    nothing left, and what a lost one had left is lost with it: an error of one step at most, like a
    gradient that was rounded.

    A subclass has `propose`, `encode` and `decode`. What it encodes must add up: the sum of the
    codes is the code of the sum.
    """

    def __init__(self, parameters: Sequence[Tensor], multiple: int = 1):
        self.parameters = list(parameters)
        sizes = [p.numel() for p in self.parameters]
        self.length = -(-sum(sizes) // multiple) * multiple
        self.memory = torch.zeros(self.length)
        self.average = torch.zeros(self.length)
        self._own = self._cut(self.memory, sizes)
        self.parts = self._cut(self.average, sizes)
        self._rest = empty(len(sizes) + 1)  # the marks, and the share

    def _cut(self, flat: Tensor, sizes: List[int]) -> List[Tensor]:
        return [
            part.view(p.shape)
            for part, p in zip(flat.split([*sizes, len(flat) - sum(sizes)]), self.parameters)
        ]

    def begin(self, info: StepInfo) -> None:
        self.info = info
        self._rest.fill_(1 if info.share else 0)
        self._rest[-1] = info.share

    def put(self, i: int, tensor: Optional[Tensor]) -> None:
        if tensor is None:
            self._rest[i] = 0
        elif self.info.share:
            self._own[i].add_(self.copier.to_cpu(dense(tensor)), alpha=self.info.share)

    def negotiate(self) -> List[BucketCall]:
        # What is not finite would be remembered for ever. All workers get NaN now, as they would
        # without compression.
        if not math.isfinite(self.memory.sum().item()):
            self.memory.zero_()
            self._rest[-1] = math.nan
        return self.propose()

    def payload(self) -> List[BucketCall]:
        return [*self.encode(), BucketCall(self._rest, "sum")]

    def unpack(self) -> List[Optional[Tensor]]:
        *marks, shares = self._rest.tolist()
        self.decode()
        if shares not in (0, 1):  # a lost worker's is missing
            self.average.div_(shares)
        # What was left of a parameter comes also in a step in which nobody used it.
        return [part if mark or part.any() else None for part, mark in zip(self.parts, marks)]

    def propose(self) -> List[BucketCall]:
        """What the workers must agree on before they encode."""
        raise NotImplementedError

    def encode(self) -> List[BucketCall]:
        """What is given of `memory`, and taken out of it."""
        raise NotImplementedError

    def decode(self) -> None:
        """Make `average` of the sum of what all workers gave."""
        raise NotImplementedError
