"""Gradients as 8-bit integers."""

from __future__ import annotations

from typing import List, Sequence

import torch
from torch import Tensor

from ..arena import empty
from ..bucket import BucketCall
from .feedback import Feedback

BLOCK = 256  # elements that share a scale
# With more workers, the contribution of one is smaller than a step of the scale, and would stay in
# its memory for many steps.
_MOST = 64


class Int8(Feedback):
    """A byte an element, on a scale that the workers agree on for each block of 256, so that bytes
    can be added up as they are. One thread at a time uses it, and it waits for nobody.

    The scale is the sum of the workers' largest values over 127 less half the number of workers:
    then the sum of what they round to is 127 at most. That is the homomorphic quantisation of THC
    (Li et al., NSDI 2024) with scales that no worker can exceed. Takes 1 + 4/256 bytes an element.
    """

    def __init__(self, parameters: Sequence[Tensor]):
        """Allocate scales and bytes in the arena."""
        super().__init__(parameters, multiple=BLOCK)
        self._blocks = self.memory.view(-1, BLOCK)
        self._scales = empty(len(self._blocks))
        self._bytes = empty(self.length, torch.uint8)
        self._codes = self._bytes.view(torch.int8).view(-1, BLOCK)

    def propose(self) -> List[BucketCall]:
        """The sum of the workers' largest values, by block."""
        self._scales.copy_(self._blocks.abs().amax(1))
        return [BucketCall(self._scales, "sum")]

    def encode(self) -> List[BucketCall]:
        """Round the memory to bytes on the common scales, and keep what rounding leaves. Raises
        RuntimeError where there are too many workers.
        """
        if self.info.size > _MOST:
            raise RuntimeError(
                f"shoal: compress='int8' is for up to {_MOST} workers, and the job has"
                f" {self.info.size}: use 'bf16'"
            )
        self._scales.div_(127 - self.info.size / 2)
        # The inverse of the smallest scales is not finite; such blocks stay in the memory.
        inverse = torch.where(self._scales > 1e-37, 1 / self._scales, torch.zeros(()))
        steps = (self._blocks * inverse[:, None]).round_()
        self._codes.copy_(steps)
        self._blocks.sub_(steps.mul_(self._scales[:, None]))
        return [BucketCall(self._bytes, "sum")]  # modulo 256, in which signs do not matter

    def decode(self) -> None:
        """Set the average to the summed bytes times their scales."""
        torch.mul(self._codes.float(), self._scales[:, None], out=self.average.view(-1, BLOCK))
