"""The largest elements of gradients."""

from __future__ import annotations

from typing import List, Sequence

import torch
from torch import Tensor

from shoal._runtime.arguments import wrong_type

from ..arena import empty
from ..bucket import BucketCall
from .feedback import Feedback


class TopK:
    """Send the largest elements, a part `density` of all, and keep the others for later steps. It
    is not changed after `__init__`: any thread may use it, for any number of models.

    The workers take turns in choosing the elements by their own contribution, and all send their
    values of these elements: cyclic local top-k (Chen et al., ScaleCom, NeurIPS 2020, section 3).
    So values can be summed, and a step takes 4 bytes for each index, from one worker to all, and 4
    for each value, however many workers there are. If every worker chose for itself, the bytes
    would grow with the number of workers.
    """

    def __init__(self, density: float = 0.01):
        """Send a part `density` of the elements in each step, above 0 and up to 1. Raises TypeError
        or ValueError for another.
        """
        what = "the density is the part of the elements that a step moves, above 0 and up to 1"
        if not isinstance(density, (int, float)):
            raise wrong_type("density", density, what)
        if not 0 < density <= 1:
            raise ValueError(f"TopK({density}): {what}")
        self.density = density

    def bucket(self, parameters: Sequence[Tensor]) -> Feedback:
        """A new bucket of these parameters with this compression, whose buffers lie in the arena
        and in memory of this process.
        """
        return _Sparse(parameters, self.density)

    def __repr__(self) -> str:
        """As it is written in programs."""
        return f"TopK({self.density})"


class _Sparse(Feedback):
    """A bucket of which in each step the elements travel that one worker has chosen. One thread at
    a time uses it, and it waits for nobody.
    """

    def __init__(self, parameters: Sequence[Tensor], density: float):
        """Allocate indices and values in the arena."""
        super().__init__(parameters)
        count = min(max(1, round(density * self.length)), self.length)
        # A worker may be lost before it has sent its choice: another worker then sends the choice
        # of the step before, which is still here.
        self._indices = empty(count, torch.int32)
        self._indices.copy_(torch.arange(count))
        self._values = empty(count)
        self._chosen = self._indices.long()  # the indices of the step under way

    def propose(self) -> List[BucketCall]:
        """The indices that the worker whose turn it is has chosen, by a broadcast."""
        root = self.info.number % self.info.size
        if root == self.info.rank:
            self._indices.copy_(self.memory.abs().topk(len(self._indices), sorted=False).indices)
        return [BucketCall(self._indices, root=root)]

    def encode(self) -> List[BucketCall]:
        """Take the chosen elements out of the memory, and return the sum of them."""
        self._chosen = self._indices.long()
        self._values.copy_(self.memory[self._chosen])
        self.memory[self._chosen] = 0
        return [BucketCall(self._values, "sum")]

    def decode(self) -> None:
        """Set the average to the sums of the chosen elements, and to 0 elsewhere."""
        self.average.zero_()
        self.average[self._chosen] = self._values
