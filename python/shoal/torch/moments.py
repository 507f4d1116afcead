"""Makes the state of optimizers alike that have stepped by themselves on each worker."""

from __future__ import annotations

import json
from array import array
from typing import Any, Dict, Iterator, List, Tuple

import torch
from torch import Tensor

import shoal
from shoal._runtime.log import log_line
from shoal._runtime.tree import Item, flatten, unflatten

from .bucket import make_buckets
from .registry import schedulers_of
from .state import initialize_some, load_state, without_functions


def broadcast_state(step: "shoal.Step", inner: torch.optim.Optimizer) -> None:
    """Set the state of an optimizer, the options of its groups and its schedulers on all workers to
    those of rank 0, or of another rank where that is lost. All of them call it in the same step,
    and wait for each other. An optimizer has state for the parameters that got a gradient, which
    may be others on each worker: then also for which ones it has follows from rank 0.
    """
    _broadcast_moments(step, inner)
    _broadcast_options(step, inner)


def _broadcast_moments(step: "shoal.Step", inner: torch.optim.Optimizer) -> None:
    """Set what an optimizer has of each parameter to that of rank 0, and the tensors among the
    options of its groups.
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
    options = [(group, key) for group in inner.param_groups for key in sorted(group)]
    tensors = [place[key] for place, key in places + options if isinstance(place[key], Tensor)]
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


def _broadcast_options(step: "shoal.Step", inner: torch.optim.Optimizer) -> None:
    """Set the options of an optimizer's groups, such as learning rates, and its schedulers to those
    of rank 0. A worker may have stepped a scheduler less often, where it left out a step.
    """
    schedulers = schedulers_of(inner)
    groups = [
        {k: value for k, value in group.items() if k != "params" and _is_plain(k, value)}
        for group in inner.param_groups
    ]
    states = [without_functions(s.state_dict()) for s in schedulers]
    for i, (scheduler, state) in enumerate(zip(schedulers, states)):
        if not _is_plain("", state):
            states[i] = None
            log_line(
                f"the state of a {type(scheduler).__name__} is not made the same on all workers,"
                " which average gradients from now on: it has more than numbers"
            )
    text = json.dumps(flatten("options", [groups, states], [])).encode()
    found_groups, found_states = unflatten(json.loads(_broadcast_text(step, text)), [])
    for scheduler, state in zip(schedulers, found_states):
        load_state(scheduler, state)
    for group, options in zip(inner.param_groups, found_groups):
        group.update(options)


def _is_plain(key: str, value: Any) -> bool:
    """Whether the option of a group, or a state, is of numbers and texts alone."""
    items: List[Item] = []
    try:
        flatten(key, value, items)
    except TypeError:
        return False
    return not items


def _broadcast_text(step: "shoal.Step", mine: bytes) -> bytes:
    """The text of rank 0, or of another rank where that is lost."""
    while True:
        (length,) = step.submit_aside(array("q", [len(mine)]), root=0).wait()
        text = array("B", mine if len(mine) == length else bytes(length))
        found = bytes(step.submit_aside(text, root=0).wait())
        if any(found):  # else that rank is lost, and the text of the next one has another length
            return found
