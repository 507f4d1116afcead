"""Makes the state of optimizers alike that have stepped by themselves on each worker."""

from __future__ import annotations

from array import array
from typing import Any, Dict, Iterator, List, Tuple

import torch
from torch import Tensor

import shoal

from .bucket import make_buckets
from .state import initialize_some


def broadcast_state(step: "shoal.Step", inner: torch.optim.Optimizer) -> None:
    """Set the state of an optimizer on all workers to that of rank 0, or of another rank where that
    is lost. All of them call it in the same step, and wait for each other. An optimizer has state
    for the parameters that got a gradient, which may be others on each worker: then also for which
    ones it has follows from rank 0.
    """
    parameters = [p for group in inner.param_groups for p in group["params"]]
    stateful = array("B", [bool(inner.state.get(p)) for p in parameters])
    has = step.submit_aside(stateful, root=0).wait()
    for parameter in (p for p, there in zip(parameters, has) if not there):
        inner.state.pop(parameter, None)
    lacking = [p for p, there in zip(parameters, has) if there and not inner.state.get(p)]
    if lacking:
        initialize_some(inner, lacking)
    places = list(_state_entries(inner))
    tensors = [place[key] for place, key in places if isinstance(place[key], Tensor)]
    numbers = [(place, key) for place, key in places if type(place[key]) in (int, float)]
    counts = torch.tensor([float(place[key]) for place, key in numbers], dtype=torch.float64)
    buckets = make_buckets([*tensors, *([counts] if numbers else [])])
    for bucket in buckets:
        bucket.pack([t.detach() for t in bucket.parameters])
        step.submit_aside(bucket.buffer, root=0).wait()
        for tensor, part in zip(bucket.parameters, bucket.parts):
            tensor.detach().copy_(part)
    for (place, key), value in zip(numbers, counts.tolist()):
        place[key] = type(place[key])(value)


def _state_entries(inner: torch.optim.Optimizer) -> Iterator[Tuple[Dict[str, Any], str]]:
    """Where the state of an optimizer lies, in an order that is the same on all workers: the dict
    of a parameter, and a key of it.
    """
    parameters: List[Tensor] = [p for group in inner.param_groups for p in group["params"]]
    for parameter in parameters:
        state = inner.state.get(parameter, {})
        for key in sorted(state):
            yield state, key
