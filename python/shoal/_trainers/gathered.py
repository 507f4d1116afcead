"""Nested values of several workers as one, for Accelerate's `gather`, `reduce` and
`pad_across_processes`.
"""

from __future__ import annotations

from typing import Any, Callable, Iterable, List

import torch
from accelerate.utils.operations import honor_type, send_to_device


def joined(own: Any, values: Iterable[Any], device: Any, flat: bool = False) -> Any:
    """Nested values of several workers as one, as `concatenate` makes it, with the types of `own`,
    that of this worker; if `flat`, a list of what each of them has, as `gather_object` makes it.
    """
    if flat:
        return send_to_device([x for value in values for x in value], device)
    return in_types_of(own, concatenate(list(values), device))


def concatenate(values: List[Any], device: Any) -> Any:
    """Nested values of several workers as one, with the tensors, and what lists have that are
    without tensors, one after the other; of anything else the list of all workers' values.
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


def sum_scaled(values: List[Any], scale: float, device: Any, largest: bool = False) -> Any:
    """The sums of nested values of several workers, or the `largest` ones, each times `scale`; what
    is no tensor is the first worker's.
    """

    def combine(tensors: List[torch.Tensor]) -> torch.Tensor:
        """The sum of tensors, or the largest, times `scale`."""
        found = torch.stack(tensors).amax(0) if largest else torch.stack(tensors).sum(0)
        return (found if scale == 1 else found * scale).to(device)  # whole numbers stay whole

    return _combined(values, combine)


def mean_scaled(values: List[Any], weights: List[int], scale: float, device: Any) -> Any:
    """The means of nested values of several workers by their weights, each times `scale`; where all
    weights are 0, the plain means. What is no tensor is the first worker's.
    """
    parts = weights if any(weights) else [1] * len(weights)

    def combine(tensors: List[torch.Tensor]) -> torch.Tensor:
        """The mean of tensors, times `scale`; of whole numbers a float."""
        dtype = tensors[0].dtype
        exact = dtype.is_floating_point or dtype.is_complex
        # A sum of short floats may be beyond what they hold, where the mean is not.
        wide = torch.promote_types(dtype, torch.float64)
        found = sum(x.to(wide) * part for x, part in zip(tensors, parts) if part) / sum(parts)
        return (found * scale).to(device, dtype if exact else torch.get_default_dtype())

    return _combined(values, combine)


def _combined(values: List[Any], combine: Callable[[List[torch.Tensor]], torch.Tensor]) -> Any:
    """What `combine` makes of the tensors at each place of nested values of several workers; what
    is no tensor is the first worker's.
    """
    first = values[0]
    if torch.is_tensor(first):
        return combine(values)
    if isinstance(first, dict):
        return {key: _combined([v[key] for v in values], combine) for key in first}
    if isinstance(first, (list, tuple)):
        return honor_type(first, (_combined(list(x), combine) for x in zip(*values)))
    return first


def in_types_of(own: Any, value: Any) -> Any:
    """What `concatenate`, `sum_scaled` or `mean_scaled` has returned, with the named tuples and the
    kinds of dicts that `own` has, a worker's value as it was before it was sent.
    """
    if isinstance(own, dict):
        return type(own)({key: in_types_of(own[key], value[key]) for key in own})
    if isinstance(own, tuple) or isinstance(own, list) and any(torch.is_tensor(x) for x in own):
        return honor_type(own, (in_types_of(*pair) for pair in zip(own, value)))
    return value


def size_along(tensor: Any, dim: int) -> int:
    """The size of a tensor along a dimension; 0 where it has no such dimension."""
    return int(tensor.shape[dim]) if -tensor.dim() <= dim < tensor.dim() else 0


def pad_along(tensor: Any, dim: int, size: int, value: float, first: bool) -> Any:
    """A tensor that is filled with `value` up to a size along a dimension, at its beginning if
    `first`, else at its end; the same tensor where nothing lacks, or it has no such dimension.
    """
    lacks = size - size_along(tensor, dim)
    if not lacks:
        return tensor
    shape = list(tensor.shape)
    shape[dim] = lacks
    filling = tensor.new_full(shape, value)
    return torch.cat([filling, tensor] if first else [tensor, filling], dim)
