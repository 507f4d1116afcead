"""Gradients as matrices of low rank."""

from __future__ import annotations

from typing import List, NamedTuple, Sequence

import torch
from torch import Tensor

from shoal._runtime.arguments import as_integer

from ..arena import empty
from ..bucket import BucketCall
from .feedback import Feedback


class PowerSGD:
    """Send each matrix as the product of two factors of `rank` columns, found by a step of power
    iteration that begins with the factor of the step before (Vogels et al., PowerSGD, NeurIPS 2019,
    Algorithm 1). It is not changed after `__init__`: any thread may use it, for any number of
    models.

    A matrix of n×m then takes 4·rank·(n + m) bytes. A tensor of more dimensions is a matrix of its
    first dimension by the others. Vectors, and matrices that would not get smaller, are sent as
    they are. When the workers change, the iteration begins anew, alike on all workers.
    """

    def __init__(self, rank: int = 4):
        """Factors of `rank` columns, 1 or more. Raises TypeError or ValueError for another rank."""
        self.rank = as_integer(
            "rank", rank, 1, "how many columns the factors of a matrix have, an integer from 1 on"
        )

    def bucket(self, parameters: Sequence[Tensor]) -> Feedback:
        """A new bucket of these parameters with this compression, whose buffers lie in the arena
        and in memory of this process.
        """
        return _LowRank(parameters, self.rank)

    def __repr__(self) -> str:
        """As it is written in programs."""
        return f"PowerSGD(rank={self.rank})"


class _Matrix(NamedTuple):
    """A parameter as a matrix, and its factors: left (n, r), right (m, r)."""

    own: Tensor  # (n, m), of the memory
    mean: Tensor  # (n, m), of the average
    left: Tensor
    right: Tensor


class _LowRank(Feedback):
    """A bucket whose matrices travel as two factors, and whose other parameters travel as they are.
    One thread at a time uses it, and it waits for nobody.
    """

    def __init__(self, parameters: Sequence[Tensor], rank: int):
        """Allocate the factors in the arena, and room there for what is sent as it is."""
        super().__init__(parameters)
        thin = [i for i, p in enumerate(self.parameters) if _is_compressible(p, rank)]
        rows = [len(self.parameters[i]) for i in thin]
        columns = [self.parameters[i].numel() // n for i, n in zip(thin, rows)]
        self._whole = [
            (self._own[i], self.parts[i]) for i in range(len(self.parameters)) if i not in thin
        ]
        self._left = empty(sum(n * rank for n in rows))
        self._right = empty(
            sum(m * rank for m in columns) + sum(own.numel() for own, _ in self._whole)
        )
        lefts = self._left.split([n * rank for n in rows])
        *rights, self._tail = self._right.split(
            [*(m * rank for m in columns), sum(own.numel() for own, _ in self._whole)]
        )
        self._matrices = [
            _Matrix(
                self._own[i].view(n, m),
                self.parts[i].view(n, m),
                left.view(n, rank),
                right.view(m, rank),
            )
            for i, n, m, left, right in zip(thin, rows, columns, lefts, rights)
        ]

    def propose(self) -> List[BucketCall]:
        """The sum of the left factors, each of this worker's memory times the right factor of the
        step before.
        """
        generator = torch.Generator().manual_seed(0)
        for m in self._matrices:
            # All workers have the same factor, so all of them begin anew where it is not finite,
            # which products of huge gradients have made it.
            if self.info.fresh or not m.right.isfinite().all():
                m.right.normal_(generator=generator)
            # Its size does not matter to what is orthonormal then. A product that overflows would
            # make all later factors NaN.
            m.right.div_(m.right.abs().amax().clamp_(min=torch.finfo(m.right.dtype).tiny))
            torch.mm(m.own, m.right, out=m.left)
        return [BucketCall(self._left, "sum")] if self._matrices else []

    def encode(self) -> List[BucketCall]:
        """Make the left factors orthonormal, take what they span out of the memory, and return the
        sum of the right factors and of what travels as it is.
        """
        for m in self._matrices:
            # Orthonormal even where the gradient is 0, so that the next factor is not 0.
            m.left.copy_(torch.linalg.qr(m.left).Q)
            torch.mm(m.own.t(), m.left, out=m.right)
            m.own.addmm_(m.left, m.right.t(), alpha=-1)
        for part, (own, _) in zip(
            self._tail.split([own.numel() for own, _ in self._whole]), self._whole
        ):
            part.copy_(own.reshape(-1))
            own.zero_()
        return [BucketCall(self._right, "sum")]

    def decode(self) -> None:
        """Set the average to the products of the factors, and to what came as it is."""
        for m in self._matrices:
            torch.mm(m.left, m.right.t(), out=m.mean)
        for part, (_, mean) in zip(
            self._tail.split([own.numel() for own, _ in self._whole]), self._whole
        ):
            mean.copy_(part.view(mean.shape))


def _is_compressible(p: Tensor, rank: int) -> bool:
    """Whether a parameter is a matrix, or taken as one, whose factors of this rank have fewer
    elements.
    """
    if p.dim() < 2 or not p.numel():
        return False
    n, m = len(p), p.numel() // len(p)
    return rank <= min(n, m) and rank * (n + m) < n * m
