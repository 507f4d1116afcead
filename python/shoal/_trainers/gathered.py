"""Nested values of several workers as one, for Accelerate's `gather` and `reduce`."""

from __future__ import annotations

from typing import Any, List

import torch


def concatenate(values: List[Any], device: Any) -> Any:
    """Nested values of several workers as one, with the tensors, and what lists have that are
    without tensors, one behind the other; of anything else the list of all workers' values.
    """
    first = values[0]
    if torch.is_tensor(first):
        return torch.cat([v.reshape(1) if v.dim() == 0 else v for v in values]).to(device)
    if isinstance(first, dict):
        return {key: concatenate([v[key] for v in values], device) for key in first}
    if isinstance(first, tuple):
        return tuple(concatenate(list(parts), device) for parts in zip(*values))
    if isinstance(first, list):
        if any(torch.is_tensor(x) for x in first):
            return [concatenate(list(parts), device) for parts in zip(*values)]
        return [x for v in values for x in v]
    return values


def sum_scaled(values: List[Any], scale: float, device: Any) -> Any:
    """The sums of nested values of several workers, each times `scale`; what is no tensor is the
    first worker's.
    """
    first = values[0]
    if torch.is_tensor(first):
        return (torch.stack(values).sum(0) * scale).to(device)
    if isinstance(first, dict):
        return {key: sum_scaled([v[key] for v in values], scale, device) for key in first}
    if isinstance(first, (list, tuple)):
        return type(first)(sum_scaled(list(parts), scale, device) for parts in zip(*values))
    return first
