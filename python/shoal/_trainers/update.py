"""One update of the parameters by a trainer, as a step of the job."""

from __future__ import annotations

import contextlib
from typing import Any, Callable, ContextManager, Dict, Iterator, List, NamedTuple, Optional, Tuple

import torch
from torch import Tensor

import shoal
from shoal.torch.ddp_average import Average
from shoal.torch.elastic import average_beside_ddp


class Sums(NamedTuple):
    """What all workers have had in some steps, added up."""

    loss: float  # of each sample times its weight
    weight: float
    flos: float  # floating-point operations
    tokens: float  # input tokens
    asking: float = 0.0  # workers whose user's code may ask for something after the update


class Update:
    """The steps of the job that make up the update under way, and what all workers have had in it.

    It is one step, but where a worker is lost: its samples are a step of their own, and the update
    has the mean over both. So each update has the samples that it has without a loss.

    Only the thread of the training loop uses it; `begin_sums` begins a call, and `end` waits for
    it.
    """

    def __init__(self, job: "shoal.Job", beside_ddp: bool = False):
        """No update is under way yet. `beside_ddp`: the trainer makes all backward passes in
        blocks of `accumulating`, and the last one of a step in one of `averaging`.
        """
        self._job = job
        self._beside_ddp = beside_ddp
        # The steps of the update before the one under way: their Sums, and the gradients by the
        # names of the parameters; None = there are none. Workers that join get it.
        self.before: Optional[Dict[str, Any]] = None
        # What gives the parameters their gradients after the backward pass under way; None = they
        # have them.
        self._complete: Optional[Callable[[], None]] = None
        # The handle of the call that adds up what all workers have had; None = not made.
        self._shared: Any = None
        self._loss = 0.0  # of the samples of this worker in the step so far
        self.sums = Sums(0.0, 0.0, 0.0, 0.0)  # of the update so far, over all workers

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
        return 0 if self.before is None else int(Sums(*self.before["sums"]).weight)

    @property
    def loss(self) -> float:
        """The mean loss of the update, over all workers; not a number where no sample counted."""
        return self.sums.loss / self.sums.weight if self.sums.weight else float("nan")

    def averages(self, model: Any) -> bool:
        """Whether the last backward pass of a step averages the gradients of a model, and commits
        the step. Those of a worker that is alone are the mean already, and stay where they are, but
        where DDP notes which parameters a pass has used: it would keep its notes of a pass that it
        takes no part in for one that it takes part in, after another worker has joined. Of a static
        graph it refuses such a pass.
        """
        notes = ("find_unused_parameters", "static_graph")
        return self._job.size > 1 or any(getattr(model, name, False) for name in notes)

    def commit_alone(self) -> None:
        """Commit the step, after its last backward pass, where that has not averaged."""
        step = self._job.step
        # The others may have been lost since the pass, which has committed the step then.
        if step is not None and not step.committed and self._job.size == 1:
            step.commit_without_average()

    def begin(self) -> None:
        """Begin a step, of which no loss is known yet."""
        self._loss, self._shared = 0.0, None

    def add_loss(self, loss: float) -> None:
        """Add the loss of some samples of this worker, divided as it goes into the gradient, so
        that the sum is the loss of all of this worker's samples in the step.
        """
        self._loss += loss

    def averaging(self, model: Any) -> ContextManager[Any]:
        """A block for the last backward pass of a step, which averages gradients and commits the
        step. `model` is what shoal.torch.ddp returned. Waits for the other workers.
        """
        if not self.averages(model):
            return model.no_sync()
        average = self._average_of_step(model)
        if average is None:
            return contextlib.nullcontext()
        return self._beside(model, average.averaging_pass())

    def accumulating(self, model: Any) -> ContextManager[Any]:
        """A block for a backward pass of a step before the last one. `model` is as for `averaging`.
        """
        average = self._average_of_step(model)
        if average is None:
            return model.no_sync()
        return self._beside(model, average.accumulating_pass())

    def end_backward(self) -> None:
        """Give the parameters their gradients, after the backward pass in a block of `averaging`
        or of `accumulating`; else they have them at the end of the block. In a block of `averaging`
        this waits for the other workers.
        """
        complete, self._complete = self._complete, None
        if complete is not None:
            complete()

    def _average_of_step(self, model: Any) -> Optional[Average]:
        """What averages the gradients of the step under way without DDP; None = DDP does, or nobody
        where this worker is alone.
        """
        wanted = self.before is not None and self.averages(model)
        return self._average_beside(model) if wanted else None

    @contextlib.contextmanager
    def _beside(self, model: Any, block: ContextManager[Callable[[], None]]) -> Iterator[None]:
        """A block for a backward pass that `block` of an Average takes from DDP: the gradients of
        the steps before are in DDP's buckets.
        """
        with model.no_sync(), block as self._complete:
            yield
            self.end_backward()

    def _average_beside(self, model: Any) -> Optional[Average]:
        """What averages the gradients of a model and leaves DDP's buckets alone; None = DDP does,
        and fills them.
        """
        return average_beside_ddp(model) if self._beside_ddp else None

    def needs_pass(self, model: Any) -> bool:
        """Whether this worker makes the last backward pass of the step. One without samples does
        where DDP waits for it; its forward pass keeps the model's buffers as they are elsewhere.
        """
        step = self._job.step
        assert step is not None
        return step.weight > 0 or self._average_of_step(model) is None

    def begin_sums(self, flos: float, tokens: float, asks: bool = False) -> None:
        """Begin the sums over all workers, before the last backward pass of the step. `flos` and
        `tokens` are the floating-point operations and the tokens of this worker. It `asks` where
        code of its user may ask for something that all workers do, after the update.
        """
        step = self._job.step
        assert step is not None
        mine = torch.zeros(5, dtype=torch.float64)
        if step.weight:
            mine[:4] = torch.tensor([self._loss * step.weight, step.weight, flos, tokens])
        mine[4] = asks
        self._shared = step.share(mine, last=False, op="sum")

    def end(self, models: List[Any]) -> None:
        """End a step that is committed: the gradients of the models, `sums` and `loss` become those
        of the update so far. Raises RuntimeError where `begin_sums` was not called in the step.
        """
        if self._shared is None:
            raise RuntimeError(
                "shoal: a step without a backward pass of the trainer's own: training_step has to"
                " call accelerator.backward(loss), as the one of transformers does"
            )
        self._merge(Sums(*self._shared.wait().tolist()), models)

    def stash(self, models: List[Any], shown: bool = False) -> None:
        """Keep what the update has so far, after `end`: another step belongs to it. The parameters
        of the models have no gradients then; if `shown`, they have theirs until `begin_rest`.
        """
        gradients: List[Dict[str, Optional[Tensor]]] = []
        for model in models:
            # The next backward pass by DDP fills its buckets anew.
            copied = getattr(model, "gradient_as_bucket_view", False)
            copied = shown or copied and self._average_beside(model) is None
            gradients.append({})
            for name, p in trained(model):
                gradients[-1][name] = p.grad.clone() if copied and p.grad is not None else p.grad
                p.grad = p.grad if shown else None
        self.before = {"sums": list(self.sums), "gradients": gradients}

    def begin_rest(self, models: List[Any], dropped: bool = False) -> None:
        """Before the passes of a step: where it is not the first one of its update, the parameters
        of the models have no gradients then, whatever they have shown. Nor have they where a step
        was `dropped` that had some, whose samples come again.
        """
        if self.before is not None or dropped:
            for _, p in (p for model in models for p in trained(model)):
                p.grad = None

    def add_step(self, weight: float, whole: bool, models: List[Any]) -> None:
        """End a step that is committed, over samples of this weight, where no loss is wanted: the
        gradients of the models become those of the update so far. Unless it is `whole`, keep them:
        another step belongs to it, before which comes `begin_rest`.
        """
        self._merge(Sums(0.0, weight, 0.0, 0.0), models)
        if not whole:
            self.stash(models, shown=True)

    def _merge(self, sums: Sums, models: List[Any]) -> None:
        """Make `sums`, which the last step has, those of all steps of the update, and the gradients
        of the models, those of the last step, the mean of all, in the memory of those before.
        Forget the steps before.
        """
        before, self.before, self.sums = self.before, None, sums
        if before is None:
            return
        self.sums = Sums(*(old + new for old, new in zip(before["sums"], sums)))
        part = sums.weight / self.sums.weight if self.sums.weight else 0.0
        for model, gradients in zip(models, before["gradients"]):
            # Of a worker that joins other parameters may be frozen.
            for name, p in model.named_parameters():
                old, new = gradients.get(name), p.grad
                if old is not None:
                    old = old.to(p.device)
                    p.grad = old.mul_(1 - part) if new is None else old.lerp_(new.to(old), part)
                elif new is not None and p.requires_grad:
                    p.grad = new * part


def trained(model: Any) -> List[Tuple[str, Tensor]]:
    """The parameters of a model that are trained, with their names."""
    return [(name, p) for name, p in model.named_parameters() if p.requires_grad]
