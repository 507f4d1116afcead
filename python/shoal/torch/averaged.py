"""Which parameters a job averages already, and by what, and whether their gradients are averages.
It is noted beside the parameters and not on them: a copy of a parameter, or one that was loaded
from a file, is averaged by nobody, and neither is one of a job that was left.
"""

from __future__ import annotations

import weakref
from typing import Any, Dict, Iterable, Optional

from torch import Tensor


class TensorSet:
    """A set of tensors by identity, which keeps none of them alive. For one thread at a time."""

    def __init__(self) -> None:
        """Without tensors."""
        self._refs: "Dict[int, weakref.ref[Tensor]]" = {}  # by the id of the tensor

    def update(self, tensors: Iterable[Tensor]) -> None:
        """Add tensors. Each leaves the set when it is freed."""
        for tensor in tensors:
            key = id(tensor)
            self._refs[key] = weakref.ref(tensor, lambda _, key=key: self._refs.pop(key, None))

    def __contains__(self, tensor: Tensor) -> bool:
        """Whether this very tensor is in the set."""
        ref = self._refs.get(id(tensor))
        return ref is not None and ref() is tensor


class AverageMark:
    """Whether the gradients of an optimizer are averages, which the script has asked for before
    `step()`. A backward pass ends that, also where the script took no step with them: what it adds
    is of this worker alone. The thread that runs backward clears it, the one of the loop does all
    else, and they do so one after the other.
    """

    def __init__(self) -> None:
        """The gradients are not averages."""
        self._set = False
        self._watched = TensorSet()  # parameters of which a backward pass clears the mark

    def __bool__(self) -> bool:
        """Whether the gradients are averages."""
        return self._set

    def set(self, parameters: Iterable[Tensor]) -> None:
        """Note that the gradients of these parameters are averages now."""
        new = [p for p in parameters if p.requires_grad and p not in self._watched]
        for p in new:
            p.register_hook(self.clear)  # type: ignore[no-untyped-call]
        self._watched.update(new)
        self._set = True

    def clear(self, _: Optional[Tensor] = None) -> None:
        """Note that the gradients are not averages any more."""
        self._set = False


class Averaged:
    """What is averaged in one job. For the thread of the training loop, and of forward passes."""

    def __init__(self) -> None:
        """Nothing yet."""
        # averaged in the backward pass of a model that shoal.torch.ddp wrapped
        self.by_ddp = TensorSet()
        # took no gradient when shoal.torch.ddp wrapped their model
        self.frozen_by_ddp = TensorSet()
        self.by_optimizer = TensorSet()  # averaged by shoal.torch.optimizer or shoal.torch.zero
        # Models that were wrapped before the job had a loader. Their gradients are averaged over
        # the workers with which the job began, so none of these may be lost.
        self.rigid: "weakref.WeakSet[Any]" = weakref.WeakSet()


_of_job: "weakref.WeakKeyDictionary[Any, Averaged]" = weakref.WeakKeyDictionary()


def of(job: Any) -> Averaged:
    """What is averaged in a job."""
    return _of_job.setdefault(job, Averaged())
