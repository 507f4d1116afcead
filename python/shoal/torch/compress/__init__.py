"""Gradients in fewer bytes: the values for `compress` of shoal.torch.ddp and shoal.torch.optimizer.

    "bf16", "fp16"     half the bytes: every gradient is rounded to 16 bits
    "int8"             a quarter: blocks of 256 share a scale; later steps correct the rounding
    TopK(0.01)         the largest hundredth of the elements; later steps move the others
    PowerSGD(rank=4)   matrices as products of two thin ones; later steps correct the error

All of them give the same mean to every worker, and lose no step when a worker is lost.
docs/design/compression.md has what each costs.
"""

from __future__ import annotations

import functools
from typing import Any, Callable, Dict, Sequence, Union

import torch
from torch import Tensor

from ..bucket import Bucket
from .int8 import Int8
from .power import PowerSGD
from .topk import TopK

Compression = Union[None, str, TopK, PowerSGD]

_NAMES: Dict[str, Callable[[Sequence[Tensor]], Bucket]] = {
    "bf16": functools.partial(Bucket, dtype=torch.bfloat16),
    "fp16": functools.partial(Bucket, dtype=torch.float16),
    "int8": Int8,
}


def bucket_maker(compress: Compression) -> Callable[[Sequence[Tensor]], Bucket]:
    """The function that makes a bucket of parameters for a value of `compress`. Raises ValueError
    for any other value.
    """
    if compress is None:
        return Bucket
    make: Any = None
    if isinstance(compress, str):
        make = _NAMES.get(compress)
    elif not isinstance(compress, type):
        make = getattr(compress, "bucket", None)
    if make is None:
        raise ValueError(
            f"compress={compress!r}: use one of {', '.join(map(repr, _NAMES))},"
            " shoal.torch.TopK(0.01), shoal.torch.PowerSGD(rank=4)"
        )
    return lambda parameters: (
        make(parameters) if parameters[0].is_floating_point() else Bucket(parameters)
    )
