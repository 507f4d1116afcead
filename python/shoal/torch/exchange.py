"""The calls that average the buckets of a step over the workers."""

from __future__ import annotations

from typing import Any, Iterator, List, Optional, Sequence

import torch

import shoal
from shoal._runtime.protocol import NARROW

from . import averaged, registry
from .bucket import Bucket, BucketCall, StepInfo
from .sample import sample_of_step


def require_open_step(job: "shoal.Job") -> "shoal.Step":
    """The step of the job under way, which an average commits. Raises RuntimeError where no step is
    open, or it is committed already.
    """
    step = job.step
    if step is None:
        raise RuntimeError(
            "shoal: gradients outside of the loop over shoal.torch.loader: train there, and use the"
            " plain model and optimizer elsewhere"
        )
    if step.committed:
        progress = job._progress
        assert progress is not None  # it has opened the step
        advice = progress.one_average or _advice_on_second_average(job)
        raise RuntimeError(
            f"shoal: step {step.number} was committed by an average, and this is one more. {advice}"
        )
    return step


def _advice_on_second_average(job: "shoal.Job") -> str:
    """What to do about a second average in a step, by the optimizers that there are."""
    optimizers = registry.live_optimizers()
    trained = [p for opt in optimizers for group in opt.param_groups for p in group["params"]]
    known = averaged.of(job)
    if any(p in known.by_ddp and p in known.by_optimizer for p in trained):
        return (
            "shoal.torch.optimizer was called before shoal.torch.ddp, and both average the same"
            " gradients: call it after that"
        )
    if any(isinstance(opt, torch.optim.LBFGS) for opt in optimizers):
        return (
            "LBFGS computes gradients several times a step: use another optimizer, or leave out"
            " shoal.torch.loader and shoal.torch.ddp, since shoal.torch.optimizer(opt) averages"
            " what each closure computes"
        )
    return (
        "Several backward passes of one model: all but the last under no_sync(), each with its"
        " forward pass in the block too. Several models, each with a loss of its own:"
        " shoal.torch.loader(…, averages=2) takes two averages a step. Several models with one"
        " loss: wrap one module that holds them all"
    )


class Exchange:
    """Averages buckets over the workers of a job, in the order of the list, step after step.

    With a group the calls are those of the group. Without one they make up the open step of the
    job, and the last call commits it.

    The negotiation calls of a bucket complete while the next bucket is filled; its payload calls
    are submitted after the negotiation calls of that next one. So every worker makes the same calls
    in the same order, however many buckets are full at once. The thread that runs backward calls
    `begin_step` and `try_commit`, and that of the copier's tasks, which may be the same,
    `submit_full` and `averaged_buckets`.
    """

    def __init__(
        self, job: "shoal.Job", buckets: Sequence[Bucket], group: "Optional[shoal.Group]" = None
    ):
        """Average these buckets by calls of a group, or by the steps of the job."""
        self._job, self._group, self._buckets = job, group, buckets
        self._takes_samples = False  # samples are chosen also where no bucket sends one itself
        # The step of the job that the calls are parts of; None = none yet, or a group's calls.
        self._step: "Optional[shoal.Step]" = None
        self._steps = 0  # number of steps begun with a group
        self._sample: Optional[slice] = None  # StepInfo.sample of this step
        self._generation: Optional[int] = None  # generation of the last step; None = none yet
        self._answers: List[List[Any]] = []  # the negotiation calls of this step, by bucket
        self._submitted = 0  # number of buckets whose payload calls are submitted
        self._calls: List[List[Any]] = []  # the payload calls of this step, by bucket

    def begin_step(self) -> None:
        """Begin a step, before any bucket is filled. The copier's tasks of the last step have ended
        by then. Raises RuntimeError where no step of the job is open, or it is committed already.
        """
        info = self._step_info()
        self._sample = info.sample
        for bucket in self._buckets:
            bucket.begin_step(info)
        self._answers, self._submitted, self._calls = [], 0, []

    def _step_info(self) -> StepInfo:
        """What the buckets must know of the step that begins; takes the open step of the job, or
        counts one of the group. Raises RuntimeError where no step of the job is open, or it is
        committed already.
        """
        fresh, self._generation = self._generation != self._job.generation, self._job.generation
        if self._group is not None:
            self._steps += 1
            return StepInfo(
                self._group.rank, self._group.size, self._steps, 1 / self._group.size, fresh
            )
        self._step = require_open_step(self._job)
        # Else the agent has the gradients. Buckets may have been added since the step before.
        sampled = self._takes_samples or any(bucket.samples for bucket in self._buckets)
        return StepInfo(
            self._job.rank,
            self._job.size,
            self._step.number,
            self._step.weight / self._step.samples_of_ranks(range(self._job.size)),
            fresh,
            sample_of_step(self._step.number, self._buckets) if sampled else None,
        )

    def submit_full(self, full: int, end: bool) -> None:
        """Submit the calls of the first `full` buckets, which are full. `end`: no more buckets will
        be filled in this step, and all are submitted. It may wait for the negotiation calls of
        earlier buckets.
        """
        with self._job.grouped():
            while len(self._answers) < (len(self._buckets) if end else full):
                asked = [
                    self._submit_negotiation(part)
                    for part in self._buckets[len(self._answers)].negotiation_calls()
                ]
                self._answers.append(asked)
                self._submit_payloads(len(self._answers) - bool(asked))
            if end:
                self._submit_payloads(len(self._buckets))

    def try_commit(self) -> bool:
        """Return whether the step is committed, after the last `submit_full`. False when it is
        void, and must be made again from `begin_step`; here it never is, since the calls of the
        agent go on without a lost worker.
        """
        return True

    def averaged_buckets(self) -> Iterator[Bucket]:
        """The buckets in their order, each as soon as it has its mean, for which this waits. An
        error of any call is raised once all calls are complete.
        """
        calls = [call for given in self._calls for call in given]
        try:
            for bucket, given in zip(self._buckets, self._calls):
                for call in given:
                    call.wait()
                yield bucket
        finally:
            for call in reversed(calls):
                call.wait()
            if self._group is None:
                self._job._backend.step_timer.record_average_done()

    def _submit_payloads(self, upto: int) -> None:
        """Submit the payload calls of the first `upto` buckets, after waiting for their negotiation
        calls.
        """
        for i in range(self._submitted, upto):
            for call in self._answers[i]:
                call.wait()
            parts = self._buckets[i].payload_calls()
            last = i == len(self._buckets) - 1
            self._calls.append(
                [self._submit_part(part, last and part is parts[-1]) for part in parts]
            )
        self._submitted = max(self._submitted, upto)

    def _submit_part(self, part: BucketCall, last: bool) -> Any:
        """Begin one payload call; the last one of a step of the job commits it."""
        if self._group is None:
            assert self._step is not None
            return self._step.share(
                part.tensor, last, part.op, part.narrow, tag=part.tag, weight=part.weight
            )
        return self._group.allreduce_async(part.tensor, part.op, flags=NARROW if part.narrow else 0)

    def _submit_negotiation(self, part: BucketCall) -> Any:
        """Begin one negotiation call."""
        if self._group is None:
            step = self._step
            return step.submit_aside(part.tensor, part.op, part.root)  # type: ignore[union-attr]
        if part.root is not None:
            return self._group.broadcast_async(part.tensor, part.root)
        return self._group.allreduce_async(part.tensor, part.op)
