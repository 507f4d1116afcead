"""The buffers of a model, such as running means, which are averaged beside its parameters."""

from __future__ import annotations

from typing import Dict, Iterable, List, Sequence, Tuple

import torch
from torch import Tensor

from .bucket import Bucket, make_buckets


class Buffers:
    """The floating-point buffers of some models, wherever their modules have them: a module may put
    another tensor in the place of one in any forward pass, as by `self.mean = 0.9 * self.mean +
    0.1 * x.mean()`. One thread at a time uses it.
    """

    def __init__(self, models: Iterable[torch.nn.Module]):
        """Find the buffers, and make buckets for them."""
        found: Dict[int, Tuple[torch.nn.Module, str, Tensor]] = {}
        for module in (m for model in models for m in model.modules()):
            for name, buffer in module._buffers.items():
                if buffer is not None and buffer.is_floating_point():
                    found.setdefault(id(buffer), (module, name, buffer))
        self.buckets = make_buckets([buffer for _, _, buffer in found.values()])
        for bucket in self.buckets:
            bucket.gradient = False
        self._places = [[found[id(b)][:2] for b in bucket.parameters] for bucket in self.buckets]

    @property
    def tensors(self) -> List[Tensor]:
        """The buffers as they were when they were found last."""
        return [buffer for bucket in self.buckets for buffer in bucket.parameters]

    def find(self, buckets: Sequence[Bucket]) -> None:
        """Have the first of some buckets, which are the ones here or for the same buffers, be for
        the tensors that the modules have now. One of another shape is not averaged.
        """
        for bucket, places in zip(buckets, self._places):
            now = [module._buffers.get(name) for module, name in places]
            bucket.parameters[:] = [
                old if new is None or new.shape != old.shape else new
                for old, new in zip(bucket.parameters, now)
            ]
