"""Gradients of a DistributedDataParallel whose workers come and go."""

from __future__ import annotations

import weakref
from datetime import timedelta
from typing import Any, Dict, List, Optional, Set, Tuple

import torch
import torch.distributed as dist
from torch import Tensor
from torch.nn.parallel import DistributedDataParallel

import shoal

from .backend import ProcessGroup
from .bucket import Bucket, buckets

_BUCKET_BYTES = 25 << 20
_FOREVER = timedelta(days=3650)
# Models that were wrapped before the job had a loader: they average over the workers that it began with.
rigid: "weakref.WeakSet[DistributedDataParallel]" = weakref.WeakSet()


def wrap(job: "shoal.Job", model: torch.nn.Module, options: Dict[str, Any]) -> DistributedDataParallel:
    """`model` as a DistributedDataParallel that commits the open step of the job at the end of a backward pass.

    To torch it is alone: parts of DDP that speak to the other workers on their own account (the check of the parameters at the start,
    the new order of buckets after the first step, the broadcast of buffers before each forward) would not fit between the
    calls of a worker that joined later.
    """
    if options.get("process_group") is not None:
        raise ValueError("process_group cannot be chosen in a job with shoal.torch.loader: it averages over the members of the job")
    wrapped = DistributedDataParallel(model, **{**options, "process_group": _Alone(job, [0], _FOREVER)})
    average = _Average(job, model, bool(options.get("find_unused_parameters")))
    # DDP looks at the types that a hook says, and does not understand postponed ones: a lambda says none.
    wrapped.register_comm_hook(average, lambda average, bucket: average.take(bucket))
    return wrapped


class _Alone(ProcessGroup):
    """A group of this process only, which nothing outside can change."""

    def _new_group(self, ranks: Optional[List[int]]) -> "shoal.Group":
        return self._job.alone()


class _Average:
    """The weighted mean of all gradients of a backward pass.

    The buckets of the agent's calls are not DDP's: those come in the order in which gradients were ready, which a worker that joins
    in the middle cannot know. They follow the order of the parameters, which is the same everywhere. A step completes
    as a whole, so nothing is waited for before DDP's last bucket is there; the hook waits then, for all of them.
    """

    def __init__(self, job: "shoal.Job", model: torch.nn.Module, find_unused: bool):
        self._job = job
        parameters = [p for p in model.parameters() if p.requires_grad]
        # Gradients are ready in about the reverse order of the parameters.
        self._buckets = buckets(parameters[::-1], _BUCKET_BYTES)
        self._place: Dict[Tensor, Tuple[int, int]] = {
            p: (i, j) for i, bucket in enumerate(self._buckets) for j, p in enumerate(bucket.parameters)
        }
        self._model = model
        self._statistics = buckets(self._running(), _BUCKET_BYTES)
        self._missing: List[int] = []  # gradients that a bucket still waits for
        self._posted = 0
        self._calls: List[Any] = []
        self._taken: List[Tuple[dist.GradBucket, torch.futures.Future]] = []
        self._used: Optional[Set[Tensor]] = set() if find_unused else None
        if find_unused:
            for p in parameters:
                p.register_hook(lambda _, p=p: self._used.add(p))  # type: ignore[misc, union-attr]

    def take(self, bucket: dist.GradBucket) -> torch.futures.Future[torch.Tensor]:
        """Take a bucket of DDP's; its future is complete after the last one."""
        step = self._job.step
        if step is None:
            raise RuntimeError("shoal: a backward pass outside of the loop over shoal.torch.loader: use the plain model there")
        if not self._taken:
            self._missing = [len(b.parameters) for b in self._buckets]
            self._posted, self._calls = 0, []
            for own in self._buckets:
                own.begin()
        future: torch.futures.Future[torch.Tensor] = torch.futures.Future()
        self._taken.append((bucket, future))
        for parameter, gradient in zip(bucket.parameters(), bucket.gradients()):
            i, j = self._place[parameter]
            unused = self._used is not None and parameter not in self._used
            self._buckets[i].put(j, None if unused else gradient)
            self._missing[i] -= 1
        last = bucket.is_last()
        while self._posted < len(self._buckets) and (last or not self._missing[self._posted]):
            if self._posted == len(self._buckets) - 1:
                self._post_statistics(step)
            self._calls.append(step.share(self._buckets[self._posted].buffer, last=self._posted == len(self._buckets) - 1))
            self._posted += 1
        if last:
            self._finish()
        return future

    def _post_statistics(self, step: "shoal.Step") -> None:
        """Average the buffers of the model (running means and the like) too, so that they are the same everywhere after the step."""
        for bucket in self._statistics:
            bucket.pack([b.detach() for b in bucket.parameters])
            self._calls.append(step.share(bucket.buffer, last=False))

    def _running(self) -> List[Tensor]:
        return [b for b in self._model.buffers() if b.is_floating_point()]

    def _finish(self) -> None:
        taken, self._taken = self._taken, []
        for call in reversed(self._calls):
            call.wait()
        averages = [b.unpack() for b in self._buckets]
        for bucket, future in taken:
            for parameter, gradient in zip(bucket.parameters(), bucket.gradients()):
                i, j = self._place[parameter]
                average = averages[i][j]
                if average is None:
                    continue
                gradient.copy_(average)
                if self._used is not None and parameter not in self._used:
                    # DDP, which is alone, believes that nobody used it.
                    parameter.grad = average.clone() if parameter.grad is None else parameter.grad.copy_(average)
        for bucket in self._statistics:
            for buffer, average in zip(bucket.parameters, bucket.parts):
                buffer.detach().copy_(average)
        if self._used is not None:
            self._used.clear()
        for bucket, future in taken:
            future.set_result(bucket.buffer())
