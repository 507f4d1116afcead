"""An optimizer that averages gradients itself, for models that DistributedDataParallel does not
wrap.
"""

from __future__ import annotations

import contextlib
from collections import defaultdict
from typing import Any, Callable, Dict, List, Optional, Sequence

import torch
from torch import Tensor

import shoal
from shoal.sync import parse

from . import averaged
from .bucket import Bucket
from .compress import Compression, bucket_maker
from .local import local_steps
from .optimizer_wrapper import Wrapper, submit_whole
from .path import Path, Paths
from .replicas import Comparison
from .scale import check_rule, follow_batch
from .state import check_arguments, register_state, register_trained


def optimizer(
    opt: torch.optim.Optimizer,
    *others: Any,
    compress: Compression = None,
    lr_scaling: str = "auto",
    sync: Optional[str] = None,
) -> torch.optim.Optimizer:
    """Make `opt` step with gradients averaged over the workers of the job. All workers call it, on
    the thread of the training loop, and wait for each other.

    The result is a torch Optimizer that shares parameter groups and state with `opt`: schedulers,
    GradScaler, closures and checkpoints (`state_dict()` is that of `opt`) work on it; a copy of it
    is one of `opt`, which averages nothing. Each step does one fused all-reduce an element type.
    Parameters become those of rank 0 at once. Parameters of a model wrapped by `shoal.torch.ddp`
    are averaged there and left alone here; where that is all of them, `opt` itself is returned.

    Gradients are averaged by `step()`. What has to happen between the two, clipping say, calls
    `average_gradients()` first. In a job with `shoal.torch.loader` (make it first) the gradients
    are weighted by the samples that each worker had, and the average commits the step; workers that
    join get the state of `opt`, of its schedulers and a GradScaler (made after `import
    shoal.torch` and before the loop), and of what else is given, anything with a `state_dict`.
    (Buffers of the model, of batch norms say, are for `shoal.torch.ddp`.) A closure returns the
    loss of this worker's data; `step(closure)` returns its average over the workers.

    With `compress`, gradients take fewer bytes, as with `shoal.torch.ddp`.

    Where the loader has a `batch_range`, the learning rate follows the batch: during each step it
    is that of the optimizer and its schedules times a factor, which is 1 at the global_batch that
    the program states. "linear" multiplies by how many times that the batch is, "sqrt" by the
    square root of that, and "none" leaves the rate alone. "auto" takes "sqrt" for Adam and its kin.
    For SGD it takes the rate of the job's setting, which follows from the noise of the gradients,
    and without one "linear", from eight times on with the square root. The same holds where
    `shoal.torch.ddp` averages: `opt` itself is returned, and its step follows the batch.

    With `sync`, workers need not wait for each other in every step: each makes local steps with its
    own gradients, and they commit once a round.

        optimizer = shoal.torch.optimizer(opt, model, sync="diloco:every=16")
        for x, y in loader: ...                           # the loop stays as it is
        with optimizer.anchor():
            evaluate(model)

    "local", "diloco", "sma", "pair" and "hybrid" are strategies, "ssgd" is what there is without,
    with which "auto" begins and leaves the rest to the job; options stand after a colon, as in
    "diloco:every=16,lr=0.7,momentum=0.9", where `every` is how many local steps a round has.
    docs/design/strategies.md has what each of them does. All workers have the same anchor at every
    commit; within `optimizer.anchor()` the parameters are that, and checkpoints and workers that
    join get it. Give the model too: buffers such as running means become their means at each
    commit. A batch of the loader is for one local step, still `global_batch` samples over all
    workers, and every sample counts exactly once an epoch: of a worker that is lost within a round,
    its part of that round comes again. `average_gradients()` does nothing then, and what is clipped
    are the gradients of this worker. A GradScaler has a worker leave out its local step alone.
    `step(closure)`, `compress`, and models that DistributedDataParallel, shoal.torch.zero or a mesh
    has, do not go with local steps.

    Raises RuntimeError for sparse gradients, and where the ranks' parameters differ; ValueError for
    a `sync` that is none.
    """
    check_arguments(opt, others)
    check_rule(lr_scaling)
    job = shoal.join()
    # "auto" begins as without `sync`, and the setting of the job may choose another.
    chosen = None if sync is None else parse("ssgd" if sync == "auto" else sync)
    if sync is not None and chosen is not None and (
        sync == "auto" or not chosen.strategy.averages_gradients
    ):
        if compress is not None:
            raise ValueError(
                f'sync="{sync}" and compress do not go together: leave compress out; a longer'
                " round, every=64 say, takes fewer bytes"
            )
        made = local_steps(job, opt, others, chosen, sync)
        follow_batch(job, opt, opt, lr_scaling)
        for other in others:
            if not isinstance(other, torch.nn.Module):
                register_state(job, type(other).__name__, other)
        return made
    follow_batch(job, opt, opt, lr_scaling)
    if job.elastic:
        register_state(job, "optimizer", opt)
        for other in others:
            register_state(job, type(other).__name__, other, of_first=_has_own_buffers(job, other))
    # A step with one average has that of ddp, after which frozen parameters need none.
    once = job._progress is not None and job._progress.averages == 1
    known = averaged.of(job)
    own = [
        p
        for group in opt.param_groups
        for p in group["params"]
        if p not in known.by_ddp and not (once and p in known.frozen_by_ddp)
    ]
    if own:
        return Averaging(opt, own, bucket_maker(compress))
    opt.anchor = contextlib.nullcontext  # type: ignore[attr-defined] # as of the others
    return opt


def _has_own_buffers(job: "shoal.Job", thing: Any) -> bool:
    """Whether it is a module whose buffers, running means say, differ between workers: nobody
    averages those of a module that shoal.torch.ddp does not have.
    """
    return (
        isinstance(thing, torch.nn.Module)
        and any(b.is_floating_point() for b in thing.buffers())
        and not any(p in averaged.of(job).by_ddp for p in thing.parameters())
    )


class Averaging(Wrapper):
    """An optimizer around another: averages gradients, then lets the other step. Made by
    `optimizer`. The thread of the training loop uses it; `step`, `average_gradients` and
    `add_param_group` wait for the other workers.
    """

    def __init__(
        self,
        inner: torch.optim.Optimizer,
        parameters: List[Tensor],
        make: Callable[[Sequence[Tensor]], Bucket],
    ):
        """Take over the parameters, which become those of rank 0. All ranks call it together."""
        super().__init__(inner)
        job = shoal.join()
        # A group of its own: the calls made here never mix with the script's. Only the whole job
        # can go on without a member.
        self._job, self._group = job, job if job.elastic else job.group(list(range(job.size)))
        self._make = make
        self._buckets: List[Bucket] = []  # those of the path through the arena, which has this list
        self._paths = Paths(
            job,
            parameters,
            self._buckets,
            None if job.elastic else self._group,
            uncompressed=make is Bucket,
        )
        self._comparison = Comparison(job)
        self._add_parameters(parameters)

    def __repr__(self) -> str:
        """How many workers it averages over, and the wrapped optimizer."""
        return f"averaged over {self._job.size} workers: {self.inner!r}"

    def step(self, closure: Optional[Callable[[], Tensor]] = None) -> Any:
        """Average the gradients and take one step of the wrapped optimizer; returns the averaged
        loss of the closure.
        """
        if closure is not None:
            return self.inner.step(lambda: self._average_loss(closure))
        return self._step_together()

    def average_gradients(self) -> None:
        """Average the gradients now, in place, and wait for that; the next `step()` does not do it
        again, unless a backward pass comes before it.
        """
        if not self._averaged:
            self._average()
            self._averaged.set(p for bucket in self._buckets for p in bucket.parameters)

    def _average(self) -> None:
        """Average the gradients, in place, and wait for that."""
        self._comparison.note_members()
        self._comparison.compare(p for bucket in self._buckets for p in bucket.parameters)
        path = self._submit_buckets(self._paths.choose())
        while not path.exchange.try_commit():
            self._comparison.note_members()
            path = self._submit_buckets(self._paths.choose(void=True))
        for bucket in path.exchange.averaged_buckets():
            for parameter, average in zip(bucket.parameters, bucket.unpack()):
                if average is None:
                    # Nobody has one whose samples count; this worker's may be such as do not.
                    parameter.grad = None
                    continue
                if parameter.grad is None:
                    parameter.grad = torch.empty_like(parameter)
                path.copier.copy_out(parameter.grad.detach(), average)
        path.copier.order_after_copies_out()

    def _submit_buckets(self, path: Path) -> Path:
        """Begin a step on a path with the gradients, and return the path."""
        submit_whole(path, lambda bucket: [p.grad for p in bucket.parameters])
        return path

    def add_param_group(self, param_group: Dict[str, Any]) -> None:
        """Add a group, on every rank; its parameters become those of rank 0."""
        self.inner.add_param_group(param_group)
        added = self.inner.param_groups[-1]["params"]
        known = averaged.of(self._job)
        self._add_parameters([p for p in added if p not in known.by_ddp])

    def _add_parameters(self, parameters: List[Tensor]) -> None:
        """Average these parameters from now on; they become those of rank 0. All ranks call it
        together, and wait for each other.
        """
        averaged.of(self._job).by_optimizer.update(parameters)
        by_type: Dict[torch.dtype, List[Tensor]] = defaultdict(list)
        for parameter in parameters:
            by_type[parameter.dtype].append(parameter)
        if self._job.elastic:
            self._register_parameters(parameters)
        for members in by_type.values():
            start = Bucket(members)
            start.pack([p.detach() for p in members])
            self._group.broadcast(start.buffer, root=0)
            for parameter, value in zip(members, start.parts):
                parameter.detach().copy_(value)
            self._buckets.append(self._make(members))
            self._paths.arena.copier.adopt(self._buckets[-1])

    def _register_parameters(self, parameters: List[Tensor]) -> None:
        """Have workers that join get the values of these parameters."""

        def set(values: List[Tensor]) -> None:
            """Set the parameters to those of the others, between two steps."""
            for parameter, value in zip(parameters, values):
                parameter.detach().copy_(value)

        self._job.register(
            self._job.unused("parameters"), lambda: [p.detach() for p in parameters], set
        )
        register_trained(self._job, parameters)

    def _average_loss(self, closure: Callable[[], Tensor]) -> Tensor:
        """Call the closure, average the gradients that it has made, and return the average of its
        loss, for which it waits. Raises RuntimeError in a job with a loader.
        """
        if self._job.elastic:
            raise RuntimeError(
                "shoal: step(closure) averages as often as the closure is called, and a step of the"
                " loader is one average"
            )
        with torch.enable_grad():
            loss = closure()
        self._average()
        self._averaged.clear()
        # Optimizers that look at the loss (LBFGS) must see the same one on every rank, or they part
        # ways.
        return self._group.allreduce(torch.as_tensor(loss).detach().clone(), op="mean")
