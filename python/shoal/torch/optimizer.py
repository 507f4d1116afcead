"""An optimizer that averages gradients itself, for models that DistributedDataParallel does not
wrap.
"""

from __future__ import annotations

from collections import defaultdict
from typing import Any, Callable, Dict, List, Optional, Sequence

import torch
from torch import Tensor

import shoal

from . import averaged, registry
from .bucket import Bucket
from .compress import Compression, bucket_maker
from .path import Path, Paths
from .scale import check_rule, follow_batch
from .state import check_arguments, register_state


def optimizer(
    opt: torch.optim.Optimizer,
    *others: Any,
    compress: Compression = None,
    lr_scaling: str = "auto",
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

    Raises RuntimeError for sparse gradients, and where the ranks' parameters differ.
    """
    check_arguments(opt, others)
    check_rule(lr_scaling)
    job = shoal.join()
    follow_batch(job, opt, opt, lr_scaling)
    if job.elastic:
        register_state(job, "optimizer", opt)
        for other in others:
            register_state(job, type(other).__name__, other)
    own = [
        p
        for group in opt.param_groups
        for p in group["params"]
        if p not in averaged.by_ddp
    ]
    return Averaging(opt, own, bucket_maker(compress)) if own else opt


class Averaging(torch.optim.Optimizer):
    """An optimizer around another: averages gradients, then lets the other step. Made by
    `optimizer`. The thread of the training loop uses it; `step`, `average_gradients` and
    `add_param_group` wait for the other workers.
    """

    # GradScaler then leaves unscaling and the look for infinities to step().
    _step_supports_amp_scaling = True

    def __init__(
        self,
        inner: torch.optim.Optimizer,
        parameters: List[Tensor],
        make: Callable[[Sequence[Tensor]], Bucket],
    ):
        """Take over the parameters, which become those of rank 0. All ranks call it together."""
        # Not the base's __init__: groups, state and defaults are those of `inner`, through
        # __getattr__.
        self.inner = inner
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
            plain=make is Bucket,
        )
        self._averaged = False  # the gradients are averages, of which no step was made yet
        self._add_parameters(parameters)

    def __getattr__(self, name: str) -> Any:
        """What this wrapper does not have is the wrapped optimizer's."""
        if name == "inner":  # not there yet while a copy is being made
            raise AttributeError(name)
        return getattr(self.inner, name)

    def __reduce_ex__(self, _: Any) -> Any:
        """How copy and pickle make an optimizer of this one: the wrapped one, which averages
        nothing. Protocol 1 is the one in which an object may be of another class than it will be.
        """
        return self.inner.__reduce_ex__(1)

    def __repr__(self) -> str:
        """How many workers it averages over, and the wrapped optimizer."""
        return f"averaged over {self._job.size} workers: {self.inner!r}"

    def step(self, closure: Optional[Callable[[], Tensor]] = None) -> Any:
        """Average the gradients and take one step of the wrapped optimizer; returns the averaged
        loss of the closure.
        """
        if closure is not None:
            return self.inner.step(lambda: self._average_loss(closure))
        # Set by GradScaler. Each rank divides by its own scale before the average, and looks for
        # infinities after it, so all ranks take the step or none, and have the same scale then.
        scale, guarded = self.__dict__.get("grad_scale"), "found_inf" in self.__dict__
        if scale is not None:
            for gradient in self._gradients():
                gradient.div_(scale)
        self.average_gradients()
        self._averaged = False
        if guarded:
            overflow = not all(torch.isfinite(gradient).all() for gradient in self._gradients())
            registry.record_overflow(self, overflow)
            if overflow:
                return None
        return self.inner.step()

    def average_gradients(self) -> None:
        """Average the gradients now, in place, and wait for that; the next `step()` does not do it
        again.
        """
        if self._averaged:
            return
        path = self._submit_buckets(self._paths.choose())
        while not path.exchange.try_commit():
            path = self._submit_buckets(self._paths.choose(void=True))
        for bucket in path.exchange.averaged_buckets():
            for parameter, average in zip(bucket.parameters, bucket.unpack()):
                if average is not None:
                    if parameter.grad is None:
                        parameter.grad = torch.empty_like(parameter)
                    path.copier.copy_out(parameter.grad, average)
        path.copier.order_after_copies_out()
        self._averaged = True

    def _submit_buckets(self, path: Path) -> Path:
        """Begin a step on a path, copy the gradients into its buckets, wait for the copies, and
        submit the buckets. Returns the path.
        """
        path.copier.begin_step()
        path.exchange.begin_step()
        copied = []
        for bucket in path.buckets:
            with path.copier.copying_in():
                bucket.pack([p.grad for p in bucket.parameters])
            copied.append(path.copier.after_copies_in())
        for full, there in enumerate(copied, 1):
            there.synchronize()
            path.exchange.submit_full(full, end=full == len(copied))
        return path

    def zero_grad(self, *args: Any, **kwargs: Any) -> None:
        """As torch's; the next `step()` averages again."""
        self._averaged = False
        self.inner.zero_grad(*args, **kwargs)

    def state_dict(self) -> Dict[str, Any]:
        """The wrapped optimizer's."""
        return self.inner.state_dict()

    def load_state_dict(self, state_dict: Dict[str, Any]) -> None:
        """Load the wrapped optimizer's state, as saved with or without this wrapper."""
        self.inner.load_state_dict(state_dict)

    def add_param_group(self, param_group: Dict[str, Any]) -> None:
        """Add a group, on every rank; its parameters become those of rank 0."""
        self.inner.add_param_group(param_group)
        self._add_parameters(self.inner.param_groups[-1]["params"])

    def _add_parameters(self, parameters: List[Tensor]) -> None:
        """Average these parameters from now on; they become those of rank 0. All ranks call it
        together, and wait for each other.
        """
        averaged.by_optimizer.update(parameters)
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

    def _gradients(self) -> List[Tensor]:
        """The gradients that there are, of the parameters that are averaged here."""
        return [p.grad for bucket in self._buckets for p in bucket.parameters if p.grad is not None]

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
        self._averaged = False
        self.average_gradients()
        self._averaged = False
        # Optimizers that look at the loss (LBFGS) must see the same one on every rank, or they part
        # ways.
        return self._group.allreduce(torch.as_tensor(loss).detach().clone(), op="mean")
