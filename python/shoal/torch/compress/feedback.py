"""Buckets with error feedback: they send an approximation of their gradients now, and keep the
error for later steps.
"""

from __future__ import annotations

import itertools
import math
from typing import List, Optional, Sequence

import torch
from torch import Tensor

from shoal._runtime.protocol import SAMPLE

from ..arena import empty
from ..bucket import Bucket, BucketCall, StepInfo, check_dense


class Feedback(Bucket):
    """A bucket of which a worker sends an approximation, and remembers its error (Karimireddy et
    al., Error Feedback Fixes SignSGD and other Gradient Compression Schemes, ICML 2019, section 4).

    `memory` is this worker's contribution to the mean, in float32: its gradients weighted by its
    share of the batch, plus the errors of earlier steps. Contributions are summed as they are, so
    errors stay right when the workers or their shares change. A worker that joins has no errors,
    and those of a lost worker are lost with it: the mean is then off by one step's rounding at
    most.

    A subclass has `propose`, `encode` and `decode`. The sum of encoded contributions must be the
    encoded sum. One thread at a time uses it, as every Bucket: the one that runs backward fills it,
    and that of the copier's tasks does what follows. No method waits for other workers.
    """

    samples = True

    def __init__(self, parameters: Sequence[Tensor], multiple: int = 1):
        """Allocate the memory and the average, whose length is a multiple of `multiple`, and the
        marks in the arena.
        """
        self.parameters = list(parameters)
        sizes = [p.numel() for p in self.parameters]
        self.length = -(-sum(sizes) // multiple) * multiple
        self.memory = torch.zeros(self.length)
        self.average = torch.zeros(self.length)
        self._own = self._views_by_parameter(self.memory, sizes)
        self.parts = self._views_by_parameter(self.average, sizes)
        self._marks_and_share = empty(len(sizes) + 1)  # the marks, and the share
        # Where the gradient of each parameter begins, as they lie one after the other, and the end.
        self._begins = [0, *itertools.accumulate(sizes)]
        self._room = torch.empty(0)  # for samples of the gradients, in the arena when there are any
        self._sample: Optional[Tensor] = None  # of this step, in `_room`; None = it has none

    def _views_by_parameter(self, flat: Tensor, sizes: List[int]) -> List[Tensor]:
        """The parts of a flat tensor that belong to the parameters, each in its shape; nothing is
        copied.
        """
        return [
            part.view(p.shape)
            for part, p in zip(flat.split([*sizes, len(flat) - sum(sizes)]), self.parameters)
        ]

    def begin_step(self, info: StepInfo) -> None:
        """Take this worker's share of the batch for the step, and mark all gradients as there, or
        none of them where it has no share.
        """
        self.info = info
        self._marks_and_share.fill_(1 if info.share else 0)
        self._marks_and_share[-1] = info.share
        self._sample = None
        if info.sample is not None:
            elements = len(range(self._begins[-1])[info.sample])
            if len(self._room) < elements:
                self._room = empty(elements + 1)  # of some steps it is one more
            self._sample = self._room[:elements].zero_()

    def put(self, i: int, tensor: Optional[Tensor]) -> None:
        """Add the gradient of parameter i to the memory, weighted by this worker's share; None adds
        nothing.
        """
        if tensor is None:
            self._marks_and_share[i] = 0
        elif self.info.share:
            gradient = self.copier.to_cpu(check_dense(tensor))
            self._own[i].add_(gradient, alpha=self.info.share)
            if self._sample is not None:
                self._put_sample(i, gradient, self._sample)

    def _put_sample(self, i: int, gradient: Tensor, sample: Tensor) -> None:
        """Copy the elements of the gradient of parameter i that belong to a sample to their places
        there.
        """
        places = self.info.sample
        assert places is not None
        begin = self._begins[i]
        at = max(0, -((places.start - begin) // places.step))
        chosen = gradient.reshape(-1)[places.start + at * places.step - begin :: places.step]
        sample[at : at + len(chosen)].copy_(chosen)

    def negotiation_calls(self) -> List[BucketCall]:
        """The calls by which the workers agree on how to write their payload: those of `propose`.
        The caller submits them.
        """
        # A value that is not finite would stay in the memory for ever. All workers get NaN now, as
        # they would without compression.
        if not math.isfinite(self.memory.sum().item()):
            self.memory.zero_()
            self._marks_and_share[-1] = math.nan
        return self.propose()

    def payload_calls(self) -> List[BucketCall]:
        """The calls that make up the mean, once those of `negotiation_calls` are complete: those of
        `encode`, one for the sample of this step, if it has one, and one for the marks. The caller
        submits them.
        """
        sample = [] if self._sample is None else [BucketCall(self._sample, tag=SAMPLE)]
        return [*self.encode(), *sample, BucketCall(self._marks_and_share, "sum")]

    def unpack(self) -> List[Optional[Tensor]]:
        """The decoded means, one for each parameter, which lie in `average` until the next step;
        None where no worker had a gradient, and nothing is left of earlier steps.
        """
        *marks, shares = self._marks_and_share.tolist()
        self.decode()
        if shares not in (0, 1):  # a lost worker's is missing
            self.average.div_(shares)
        # An error of an earlier step is sent even in a step in which no worker used the parameter.
        return [part if mark or part.any() else None for part, mark in zip(self.parts, marks)]

    def propose(self) -> List[BucketCall]:
        """The calls by which the workers agree on how to encode; the memory stays as it is."""
        raise NotImplementedError

    def encode(self) -> List[BucketCall]:
        """Take a part of `memory` out of it, and return the calls that sum up the parts of all
        workers.
        """
        raise NotImplementedError

    def decode(self) -> None:
        """Set `average` to the decoded sum of all workers' parts."""
        raise NotImplementedError
