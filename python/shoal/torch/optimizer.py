"""An optimizer that averages gradients itself, for models that DistributedDataParallel does not
wrap.
"""

from __future__ import annotations

from collections import defaultdict
from typing import Any, Callable, Dict, List, Optional, Sequence

import torch
from torch import Tensor

import shoal

from .bucket import Bucket
from .compress import Compression, maker
from .path import Path, Paths
from .state import check, keep


def optimizer(
    opt: torch.optim.Optimizer, *others: Any, compress: Compression = None
) -> torch.optim.Optimizer:
    """Make `opt` step with gradients averaged over the workers of the job.

    The result is a torch Optimizer that shares parameter groups and state with `opt`: schedulers,
    GradScaler, closures and checkpoints (`state_dict()` is that of `opt`) work on it. Each step
    does one fused all-reduce an element type. Parameters become those of rank 0 at once. Parameters
    of a model wrapped by `shoal.torch.ddp` are averaged there and left alone here; where that is
    all of them, `opt` itself is returned.

    Gradients are averaged by `step()`. What has to happen between the two, clipping say, calls
    `average_gradients()` first. In a job with `shoal.torch.loader` (make it first) the gradients
    are weighted by the samples that each worker had, and the average commits the step; workers that
    join get the state of `opt`, of its schedulers and a GradScaler (made behind `import
    shoal.torch` and before the loop), and of what else is given, anything with a `state_dict`.
    (Buffers of the model, of batch norms say, are for `shoal.torch.ddp`.) A closure returns the
    loss of this worker's data; `step(closure)` returns its average over the workers.

    With `compress`, gradients take fewer bytes, as with `shoal.torch.ddp`.

    Raises RuntimeError for sparse gradients, and where the ranks' parameters differ.
    """
    check(opt, others)
    job = shoal.join()
    if job.elastic:
        keep(job, "optimizer", opt)
        for other in others:
            keep(job, type(other).__name__, other)
    own = [
        p
        for group in opt.param_groups
        for p in group["params"]
        if not getattr(p, "averaged_by_ddp", False)
    ]
    return Averaging(opt, own, maker(compress)) if own else opt


class Averaging(torch.optim.Optimizer):
    """An optimizer around another: averages gradients, then lets the other step. Made by
    `optimizer`.
    """

    # GradScaler then leaves unscaling and the look for infinities to step().
    _step_supports_amp_scaling = True

    def __init__(
        self,
        inner: torch.optim.Optimizer,
        parameters: List[Tensor],
        make: Callable[[Sequence[Tensor]], Bucket],
    ):
        # Not the base's __init__: groups, state and defaults are those of `inner`, through
        # __getattr__.
        self.inner = inner
        job = shoal.join()
        # A group of its own: the calls made here never mix with the script's. Only the whole job
        # can go on without a member.
        self._job, self._group = job, job if job.elastic else job.group(list(range(job.size)))
        self._make = make
        self._buckets: List[Bucket] = []
        self._paths = Paths(
            job,
            parameters,
            self._buckets,
            None if job.elastic else self._group,
            plain=make is Bucket,
        )
        self._averaged = False
        self._manage(parameters)

    def __getattr__(self, name: str) -> Any:
        if name == "inner":  # not there yet while a copy is being made
            raise AttributeError(name)
        return getattr(self.inner, name)

    def __repr__(self) -> str:
        return f"averaged over {self._job.size} workers: {self.inner!r}"

    def step(self, closure: Optional[Callable[[], Tensor]] = None) -> Any:
        """Average the gradients and take one step of the wrapped optimizer; returns the averaged
        loss of the closure.
        """
        if closure is not None:
            return self.inner.step(lambda: self._evaluate(closure))
        # Set by GradScaler. Each rank divides by its own scale before the average, and looks for
        # infinities after it, so all ranks take the step or none, even where their scales differ.
        scale, guarded = self.__dict__.get("grad_scale"), "found_inf" in self.__dict__
        if scale is not None:
            for gradient in self._gradients():
                gradient.div_(scale)
        self.average_gradients()
        self._averaged = False
        if guarded and not all(torch.isfinite(gradient).all() for gradient in self._gradients()):
            return None
        return self.inner.step()

    def average_gradients(self) -> None:
        """Average the gradients now, in place; the next `step()` does not do it again."""
        if self._averaged:
            return
        path = self._reduce(self._paths.choose())
        while not path.exchange.committed():
            path = self._reduce(self._paths.choose(void=True))
        for bucket in path.exchange.averaged():
            for parameter, average in zip(bucket.parameters, bucket.unpack()):
                if average is not None:
                    if parameter.grad is None:
                        parameter.grad = torch.empty_like(parameter)
                    path.copier.copy_out(parameter.grad, average)
        path.copier.copied_out()
        self._averaged = True

    def _reduce(self, path: Path) -> Path:
        path.copier.begin()
        path.exchange.begin()
        copied = []
        for bucket in path.buckets:
            with path.copier.copying_in():
                bucket.pack([p.grad for p in bucket.parameters])
            copied.append(path.copier.copied_in())
        for full, there in enumerate(copied, 1):
            there.synchronize()
            path.exchange.submit(full, end=full == len(copied))
        return path

    def zero_grad(self, *args: Any, **kwargs: Any) -> None:
        """As torch's."""
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
        self._manage(self.inner.param_groups[-1]["params"])

    def _manage(self, parameters: List[Tensor]) -> None:
        by_type: Dict[torch.dtype, List[Tensor]] = defaultdict(list)
        for parameter in parameters:
            parameter.averaged_by_optimizer = True
            by_type[parameter.dtype].append(parameter)
        if self._job.elastic:
            self._keep(parameters)
        for members in by_type.values():
            start = Bucket(members)
            start.pack([p.detach() for p in members])
            self._group.broadcast(start.buffer, root=0)
            for parameter, value in zip(members, start.parts):
                parameter.detach().copy_(value)
            self._buckets.append(self._make(members))
            self._paths.arena.copier.adopt(self._buckets[-1])

    def _keep(self, parameters: List[Tensor]) -> None:
        def set(values: List[Tensor]) -> None:
            for parameter, value in zip(parameters, values):
                parameter.detach().copy_(value)

        self._job.register(
            self._job.unused("parameters"), lambda: [p.detach() for p in parameters], set
        )

    def _gradients(self) -> List[Tensor]:
        return [p.grad for bucket in self._buckets for p in bucket.parameters if p.grad is not None]

    def _evaluate(self, closure: Callable[[], Tensor]) -> Tensor:
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
