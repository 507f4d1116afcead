"""Which parameters are averaged already, and by what. It is noted beside the parameters and not on
them: a copy of a parameter, or one that was loaded from a file, is averaged by nobody.
"""

from __future__ import annotations

import weakref
from typing import Dict, Iterable

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


by_ddp = TensorSet()  # averaged in the backward pass of a model that shoal.torch.ddp wrapped
frozen_by_ddp = TensorSet()  # took no gradient when shoal.torch.ddp wrapped their model
by_optimizer = TensorSet()  # averaged by shoal.torch.optimizer
