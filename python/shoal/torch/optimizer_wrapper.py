"""What optimizers around another optimizer have in common."""

from __future__ import annotations

import contextlib
from typing import Any, Callable, Dict, Iterator, List, Optional, Sequence

import torch
from torch import Tensor

from . import averaged, registry
from .bucket import Bucket
from .path import Path


def _of_inner(name: str) -> Any:
    """An attribute of a wrapper that is the wrapped optimizer's, also where it is assigned."""
    return property(
        lambda wrapper: getattr(wrapper.inner, name),
        lambda wrapper, value: setattr(wrapper.inner, name, value),
    )


class Wrapper(torch.optim.Optimizer):
    """An optimizer around another, whose groups, state and defaults are its own too. The thread of
    the training loop uses it.
    """

    param_groups = _of_inner("param_groups")
    state = _of_inner("state")
    defaults = _of_inner("defaults")

    # GradScaler then leaves unscaling and the look for infinities to step().
    _step_supports_amp_scaling = True

    def __init__(self, inner: torch.optim.Optimizer):
        """Wrap `inner`."""
        # Not the base's __init__, which would give `inner` new groups.
        self.inner = inner
        self._averaged = averaged.AverageMark()

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

    def state_dict(self) -> Dict[str, Any]:
        """The wrapped optimizer's."""
        return self.inner.state_dict()

    def load_state_dict(self, state_dict: Dict[str, Any]) -> None:
        """Load the wrapped optimizer's state, as saved with or without this wrapper."""
        self.inner.load_state_dict(state_dict)

    @contextlib.contextmanager
    def anchor(self) -> Iterator[None]:
        """A block in which the parameters are the anchor: the same bytes on all workers, for an
        evaluation, or to save the model. Where gradients are averaged in each step they are that
        anyway, and the block changes nothing. Waits for nobody.

            with optimizer.anchor():
                evaluate(model)
        """
        yield

    def zero_grad(self, *args: Any, **kwargs: Any) -> None:
        """As torch's; the next `step()` averages again."""
        self._averaged.clear()
        self.inner.zero_grad(*args, **kwargs)

    def _gradients(self) -> List[Tensor]:
        """The gradients that there are, of all parameters, also of those that shoal.torch.ddp
        averages: a GradScaler leaves all of them to `step`.
        """
        parameters = [p for group in self.param_groups for p in group["params"]]
        return [p.grad for p in parameters if p.grad is not None]

    def _average(self) -> None:
        """Average the gradients, in place, and wait for that."""
        raise NotImplementedError

    def _step_together(self) -> Any:
        """Take one step with averaged gradients, as all workers do, and return what the wrapped
        optimizer does. Waits for the other workers.
        """
        # Each rank divides by its own scale before the average, and looks for infinities after it,
        # so all ranks take the step or none, and have the same scale then.
        guarded = self._unscale(self._gradients())
        if not self._averaged:
            self._average()
        self._averaged.clear()
        if guarded and self._overflowed(self._gradients()):
            return None
        return self.inner.step()

    def _unscale(self, gradients: Sequence[Tensor]) -> bool:
        """Divide the gradients by the scale of the GradScaler that steps this optimizer, where it
        has not done so itself. Returns whether a GradScaler steps it, which then is to be told of
        infinities by `_overflowed`.
        """
        scale, guarded = self.__dict__.get("grad_scale"), "found_inf" in self.__dict__
        if scale is not None:
            for gradient in gradients:
                gradient.div_(scale)
        return guarded

    def _overflowed(self, gradients: Sequence[Tensor]) -> bool:
        """Whether any gradient is not finite, of which the GradScaler is told."""
        overflow = not all(torch.isfinite(gradient).all() for gradient in gradients)
        registry.record_overflow(self, overflow)
        return overflow


def submit_whole(path: Path, tensors_of: Callable[[Bucket], Sequence[Optional[Tensor]]]) -> None:
    """Begin a step on a path, copy the tensors of each bucket into it, wait for the copies, and
    submit the buckets.
    """
    path.copier.begin_step()
    path.exchange.begin_step()
    copied = []
    for bucket in path.buckets:
        with path.copier.copying_in():
            bucket.pack(tensors_of(bucket))
        copied.append(path.copier.after_copies_in())
    for full, there in enumerate(copied, 1):
        there.synchronize()
        path.exchange.submit_full(full, end=full == len(copied))
