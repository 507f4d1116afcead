"""One update of the parameters by a trainer, as a step of the job."""

from __future__ import annotations

from typing import Any, Callable, Dict, List, Optional

import torch

import shoal

from .batches import Part


class Update:
    """The steps of the job that make up the update under way, and what all workers have had in it.

    It is one step, but where a worker is lost: its samples are a step of their own, and the update
    has the mean over both. So each update has the samples that it has without a loss.

    Only the thread of the training loop uses it; `begin_sums` begins a call, and `end` waits for
    it.
    """

    def __init__(self, job: "shoal.Job"):
        """No update is under way yet."""
        self._job = job
        # The steps of the update before the one under way: sum of losses, weight and gradients;
        # None = there are none. Workers that join get it.
        self.before: Optional[Dict[str, Any]] = None
        # The handle of the call that adds up what all workers have had; None = not made.
        self._sums: Any = None
        self._loss = 0.0  # of the samples of this worker in the step so far
        # The mean loss of the update, over all workers; not a number where no sample counted.
        self.loss = 0.0

    def register(self) -> None:
        """Have workers that join, and checkpoints, get the steps before. Called once, before this
        worker enters the job.
        """

        def set(value: Any) -> None:
            """Take over the steps before from the others; None = there are none."""
            self.before = value

        self._job.register(self._job.unused("update under way"), lambda: self.before, set)

    @property
    def weight(self) -> int:
        """The weight of the samples that the steps before have together; 0 = there are none."""
        return 0 if self.before is None else int(self.before["weight"])

    @property
    def averages(self) -> bool:
        """Whether the last backward pass of a step averages gradients. Those of a worker that is
        alone are the mean already, and stay where they are.
        """
        return self._job.size > 1

    def commit_alone(self) -> None:
        """Commit the step, after its last backward pass, where that has not averaged."""
        step = self._job.step
        # The others may have been lost since the pass, which has committed the step then.
        if step is not None and not step.committed and not self.averages:
            step.commit_without_average()

    def begin(self) -> None:
        """Begin a step, of which no loss is known yet."""
        self._loss, self._sums = 0.0, None

    def add_loss(self, loss: float) -> None:
        """Add the loss of some samples of this worker, divided as it goes into the gradient, so
        that the sum is the loss of all of this worker's samples in the step.
        """
        self._loss += loss

    def begin_sums(self, flos: float, tokens: float) -> None:
        """Begin the sums over all workers, before the last backward pass of the step. `flos` and
        `tokens` are the floating-point operations and the tokens of this worker.
        """
        step = self._job.step
        assert step is not None
        mine = torch.zeros(4, dtype=torch.float64)
        if step.weight:
            mine[:] = torch.tensor([self._loss * step.weight, step.weight, flos, tokens])
        self._sums = step.share(mine, last=False, op="sum")

    def end(self, part: Part, parameters: List[torch.Tensor]) -> None:
        """End a step that is committed: the gradients of the parameters and `loss` become those of
        the update so far, and `part` gets the sums over all workers. Raises RuntimeError where
        `begin_sums` was not called in the step.
        """
        if self._sums is None:
            raise RuntimeError(
                "shoal: a step without a backward pass of the trainer's own: training_step has to"
                " call accelerator.backward(loss), as the one of transformers does"
            )
        loss, weight, part.flos, part.tokens = self._sums.wait().tolist()
        if self.before is not None:
            loss, weight = self._merge(loss, weight, parameters)
        self._weight, self._total = weight, loss
        self.loss = loss / weight if weight else float("nan")

    def stash(self, parameters: List[torch.Tensor]) -> None:
        """Keep what the update has so far, after `end`: another step belongs to it. Keeps copies of
        the gradients of the parameters, which have none then.
        """
        gradients: List[Optional[torch.Tensor]] = []
        for p in parameters:
            # DDP may have them in its buckets, which the next backward pass fills anew.
            gradients.append(None if p.grad is None else p.grad.clone())
            p.grad = None
        self.before = {"loss": self._total, "weight": self._weight, "gradients": gradients}

    def add_step(self, weight: float, whole: bool, parameters: List[torch.Tensor]) -> None:
        """End a step that is committed, over samples of this weight, where no loss is wanted: the
        gradients become those of the update so far. Unless it is `whole`, keep them: another step
        belongs to it.
        """
        if self.before is not None:
            _, weight = self._merge(0.0, weight, parameters)
        self._weight, self._total = weight, 0.0
        if not whole:
            self.stash(parameters)

    def _merge(self, loss: float, weight: float, parameters: List[torch.Tensor]) -> Any:
        """Make the gradients of the parameters, those of the last step, the mean of all steps of
        the update, and forget the steps before. Returns the loss and the weight of all.
        """
        assert self.before is not None
        before, self.before = self.before, None
        whole = before["weight"] + weight
        for p, gradient in zip(parameters, before["gradients"]):
            if p.grad is not None:
                p.grad.mul_(weight / whole)
            if gradient is not None:
                old = gradient.to(p.device) * (before["weight"] / whole)
                p.grad = old if p.grad is None else p.grad.add_(old)
        return before["loss"] + loss, whole
