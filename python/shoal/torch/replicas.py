"""Whether all workers still train the same model. Where their parameters differ, each trains a
model of its own, and nobody would know.
"""

from __future__ import annotations

from array import array
from typing import Iterable

import torch
from torch import Tensor

import shoal
from shoal._runtime.log import format_count, log_line

_SUMMED = 1 << 16  # words whose bits are summed at a time


class Comparison:
    """When to compare the workers' parameters: 1, 2, 4, 8 … commits after the workers have changed.
    The user is told once, by a line in the log and no error, for processors of several kinds may
    round differently in the optimizer. For the thread that commits the steps.
    """

    def __init__(self, job: "shoal.Job"):
        """Nothing was compared yet."""
        self._job = job
        self._told = False  # the user was told that the workers differ
        self._generation = 0  # of the job in the last step; 0 = there was none
        self._since = 0  # the first step with the workers of now

    def note_members(self) -> None:
        """Note the step if the workers are not those of the step before. All workers note the same
        one, also those for which it is the first.
        """
        if self._job.step is not None and self._job.generation != self._generation:
            self._generation, self._since = self._job.generation, self._job.step.number

    def is_due(self, steps_a_round: int = 1, first: bool = False) -> bool:
        """Whether all workers are to compare what they have, before they do anything else in the
        step under way, which begins a round of so many. With `first` they do so in the first step
        with the workers of now too.
        """
        step = self._job.step
        if step is None or step.committed or self._job.size == 1:
            return False
        together = (step.number - self._since) // steps_a_round
        return together >= (not first) and not together & (together - 1)

    def compare(self, parameters: Iterable[Tensor]) -> None:
        """Compare the parameters of all workers, for whom it waits, where that is due."""
        step = self._job.step
        if step is None or not self.is_due():
            return
        # The sum and its negative are both numbers of 64 bits.
        mine = sum(bit_sum(p) for p in parameters if p.layout is torch.strided) % (1 << 62)
        most, least = step.submit_aside(array("q", [mine, -mine]), "max").wait()
        if most != -least:
            steps = format_count(step.number, "step")
            self.tell(
                f"the parameters of the workers differ after {steps}, though all gradients are"
                " averaged. Every worker must call optimizer.step(), and change its model in no"
                " other path than the others: `if rank == 0:` is for what is written and printed."
                " What a program keeps besides model, optimizers and schedulers, such as a count of"
                " steps or a moving average of the model, a worker that joins gets only if"
                " job.register hands it on. Where processors or GPUs are of several kinds this can"
                " be rounding"
            )

    def tell(self, line: str) -> None:
        """Tell the user once that the workers differ, on rank 0."""
        if not self._told and self._job.rank == 0:
            log_line(line)
        self._told = True


def bit_sum(p: Tensor) -> int:
    """A sum of the bits of a tensor, in words of its elements' size: 500 MB take 0.07 s on a core,
    and byte by byte several times as long.
    """
    words = p.detach().reshape(-1)
    size = words.element_size()
    if size <= 8:
        words = words.view({1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}[size])
    else:  # complex numbers of two doubles
        words = torch.view_as_real(words).view(torch.int64)
    # On the CPU torch copies what it sums into words of 64 bits, into fresh memory where that is
    # large: in runs it uses the same small memory again and again.
    runs = words.split(_SUMMED) if words.device.type == "cpu" else [words]
    whole = torch.zeros((), dtype=torch.int64, device=words.device)
    for run in runs:
        whole += run.sum(dtype=torch.int64)
    return int(whole)
