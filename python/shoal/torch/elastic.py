"""Gradients of a DistributedDataParallel whose workers come and go."""

from __future__ import annotations

import weakref
from datetime import timedelta
from typing import Any, Callable, Dict, List, Optional, Sequence, Set, Tuple

import torch
import torch.distributed as dist
from torch import Tensor
from torch.nn.parallel import DistributedDataParallel

import shoal

from .backend import ProcessGroup
from .bucket import Bucket, buckets
from .exchange import Exchange
from .mover import mover_of

_BUCKET_BYTES = 25 << 20
_FOREVER = timedelta(days=3650)
# Models that were wrapped before the job had a loader: they average over the workers that it began with.
rigid: "weakref.WeakSet[DistributedDataParallel]" = weakref.WeakSet()


def wrap(job: "shoal.Job", model: torch.nn.Module, options: Dict[str, Any], make: Callable[[Sequence[Tensor]], Bucket]) -> DistributedDataParallel:
    """`model` as a DistributedDataParallel that commits the open step of the job at the end of a backward pass.

    To torch it is alone: parts of DDP that speak to the other workers on their own account (the check of the parameters at the start,
    the new order of buckets after the first step, the broadcast of buffers before each forward) would not fit between the
    calls of a worker that joined later.
    """
    if options.get("process_group") is not None:
        raise ValueError("process_group cannot be chosen in a job with shoal.torch.loader: it averages over the members of the job")
    wrapped = DistributedDataParallel(model, **{**options, "process_group": _Alone(job, [0], _FOREVER)})
    average = Average(job, None, model, make, bool(options.get("find_unused_parameters")), [b for b in model.buffers() if b.is_floating_point()])
    register(wrapped, average)
    return wrapped


def register(wrapped: DistributedDataParallel, average: "Average") -> None:
    """Have the gradients of a DistributedDataParallel averaged by `average`."""
    # DDP looks at the types that a hook says, and does not understand postponed ones: a lambda says none.
    wrapped.register_comm_hook(average, lambda average, bucket: average.take(bucket))


class _Alone(ProcessGroup):
    """A group of this process only, which nothing outside can change."""

    def _new_group(self, ranks: Optional[List[int]]) -> "shoal.Group":
        return self._job.alone()


class Average:
    """The mean of all gradients of a backward pass, over the members of the job or over a group.

    The buckets of the agent's calls are not DDP's: those come in the order in which gradients were ready, which a worker that joins
    in the middle cannot know. They follow the order of the parameters, which is the same everywhere. A step completes
    as a whole, so nothing is waited for before DDP's last bucket is there; the hook waits then, for all of them.

    `statistics` are buffers of the model (running means and the like) that are averaged too, so that they are the same everywhere after the step.
    """

    def __init__(
        self,
        job: "shoal.Job",
        group: "Optional[shoal.Group]",
        model: torch.nn.Module,
        make: Callable[[Sequence[Tensor]], Bucket],
        find_unused: bool,
        statistics: Sequence[Tensor] = (),
    ):
        parameters = [p for p in model.parameters() if p.requires_grad]
        # Gradients are ready in about the reverse order of the parameters.
        self._buckets = buckets(parameters[::-1], _BUCKET_BYTES, make)
        self._place: Dict[Tensor, Tuple[int, int]] = {
            p: (i, j) for i, bucket in enumerate(self._buckets) for j, p in enumerate(bucket.parameters)
        }
        self._statistics = buckets(statistics, _BUCKET_BYTES)
        self._mover = mover_of(job, [*parameters, *statistics])
        for bucket in (*self._statistics, *self._buckets):
            self._mover.adopt(bucket)
        self._exchange = Exchange(job, [*self._statistics, *self._buckets], group)
        self._missing: List[int] = []  # gradients that a bucket still waits for
        self._full = 0  # buckets
        self._taken: List[Tuple[dist.GradBucket, torch.futures.Future]] = []
        self._used: Optional[Set[Tensor]] = set() if find_unused else None
        if find_unused:
            for p in parameters:
                p.register_hook(lambda _, p=p: self._used.add(p))  # type: ignore[misc, union-attr]

    def take(self, bucket: dist.GradBucket) -> torch.futures.Future[torch.Tensor]:
        """Take a bucket of DDP's; its future is complete after the last one."""
        if not self._taken:
            self._begin()
        future = self._mover.future()
        self._taken.append((bucket, future))
        with self._mover.fetching():
            for parameter, gradient in zip(bucket.parameters(), bucket.gradients()):
                i, j = self._place[parameter]
                unused = self._used is not None and parameter not in self._used
                self._buckets[i].put(j, None if unused else gradient)
                self._missing[i] -= 1
        while self._full < len(self._buckets) and not self._missing[self._full]:
            self._full += 1
        full, end = len(self._statistics) + self._full, bucket.is_last()
        self._mover.then(lambda: self._exchange.go(full, end))
        if end:
            taken, self._taken = self._taken, []
            self._mover.then(lambda: self._finish([bucket for bucket, _ in taken]))
            self._mover.complete([(future, bucket.buffer()) for bucket, future in taken])
        return future

    def _begin(self) -> None:
        self._mover.begin()
        self._exchange.begin()
        self._missing, self._full = [len(b.parameters) for b in self._buckets], 0
        with self._mover.fetching():
            for bucket in self._statistics:
                bucket.pack([b.detach() for b in bucket.parameters])

    def _finish(self, taken: List[dist.GradBucket]) -> None:
        gradients = {p: g for bucket in taken for p, g in zip(bucket.parameters(), bucket.gradients())}
        for bucket in self._exchange.arrivals():
            for tensor, average in zip(bucket.parameters, bucket.unpack()):
                if tensor in gradients:
                    self._bring(tensor, gradients[tensor], average)
                elif average is not None:  # a buffer of the model
                    self._mover.bring(tensor.detach(), average)
        if self._used is not None:
            self._used.clear()

    def _bring(self, parameter: Tensor, gradient: Tensor, average: Optional[Tensor]) -> None:
        if average is None:
            return
        self._mover.bring(gradient, average)
        if self._used is not None and parameter not in self._used:
            # DDP, which is alone, believes that nobody used it.
            if parameter.grad is None:
                parameter.grad = torch.empty_like(gradient)
            self._mover.bring(parameter.grad, average)
