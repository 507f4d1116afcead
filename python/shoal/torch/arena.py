"""Tensors that lie in the arena, which collectives use where they are instead of copying."""

from __future__ import annotations

import operator
from typing import Iterable, Sequence, Union

import torch

import shoal
from shoal._runtime.arguments import wrong_type


def empty(shape: Union[int, Sequence[int]], dtype: torch.dtype = torch.float32) -> torch.Tensor:
    """A tensor in the arena, with arbitrary elements; `shape` in elements, `dtype` any of torch's.

    Collectives on the tensor copy nothing: the agent works on it in place. Its memory is freed with
    the last view of it. Joins the job where nobody has, and may wait for the agent; any thread may
    call it. Raises TypeError or ValueError for a shape that is none, and ArenaError where the agent
    has no memory.
    """
    what = "the length of a tensor, an integer from 0 on, or a list of one for each dimension"
    try:
        size = torch.Size(shape if isinstance(shape, Iterable) else [operator.index(shape)])
    except TypeError:
        raise wrong_type("shape", shape, what) from None
    if any(n < 0 for n in size):
        raise ValueError(f"shape={shape!r}: {what}")
    shape = size
    if shape.numel() == 0:
        return torch.empty(shape, dtype=dtype)
    return _over_buffer(shape.numel(), dtype, lazy=False).view(shape)


def empty_lazy(elements: int, dtype: torch.dtype) -> torch.Tensor:
    """As `empty`, for one element or more, but it does not wait until the agent has made the pages:
    for memory that is not used at once.
    """
    return _over_buffer(elements, dtype, lazy=True)


def _over_buffer(elements: int, dtype: torch.dtype, lazy: bool) -> torch.Tensor:
    """A tensor over new arena memory; `lazy` as Backend.buffer has it."""
    itemsize = torch.empty(0, dtype=dtype).element_size()
    memory = shoal.join()._backend.buffer(elements * itemsize, lazy)
    return torch.frombuffer(memory, dtype=dtype)
