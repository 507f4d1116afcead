"""The state of an optimizer for a parameter: tensors of the parameter's size, which can be cut, and
numbers.
"""

from __future__ import annotations

import contextlib
import copy
from collections import defaultdict
from typing import Any, Callable, Dict, NamedTuple, Optional, Sequence

import torch
from torch import Tensor


class StateKind(NamedTuple):
    """One entry of an optimizer's state of a parameter."""

    # Element type of a tensor that is cut with the parameter; None = a number, alike on all parts.
    dtype: Optional[torch.dtype]
    number: Callable[[float], Any]  # makes a number as the optimizer keeps it


def state_kinds(
    optimizer: torch.optim.Optimizer, group: int, parameter: Tensor
) -> Dict[str, StateKind]:
    """The state that an optimizer has or will have for a parameter of a group, by name. The
    optimizer stays as it is.

    Raises TypeError for an optimizer whose state is of another kind: it cannot work on a part of a
    parameter.
    """
    state, small = optimizer.state.get(parameter, {}), torch.Size([2, 3])
    if not state:
        return _kinds(optimizer, _state_after_trial(optimizer, group, parameter.dtype), small)
    kinds = _kinds(optimizer, state, parameter.shape)
    cut = [name for name, kind in kinds.items() if kind.dtype]
    if not parameter.dim():  # a shape does not tell then what is of the parameter, and what counts
        cut = [name for name in kinds if name != "step"]
        with contextlib.suppress(TypeError):  # Adagrad makes no step without a state
            trial = _state_after_trial(optimizer, group, parameter.dtype)
            cut = [name for name, kind in _kinds(optimizer, trial, small).items() if kind.dtype]

    def begin(part: Tensor, at: int) -> Dict[str, Any]:
        """The state for a part of the trial's parameter that begins with this element: where the
        optimizer has a tensor, elements of that, over and over.
        """
        places = torch.arange(at, at + part.numel()) % parameter.numel()
        return {
            name: value.detach().reshape(-1)[places].view(part.shape)
            if name in cut and torch.is_tensor(value)
            else copy.deepcopy(value)
            for name, value in state.items()
        }

    if not parameter.numel():  # nothing is cut
        return kinds
    trial = _state_after_trial(optimizer, group, parameter.dtype, begin)
    return kinds if parameter.dim() else _kinds(optimizer, trial, small)


def _kinds(
    optimizer: torch.optim.Optimizer, state: Dict[str, Any], shape: torch.Size
) -> Dict[str, StateKind]:
    """The kinds of an optimizer's state of a parameter of this shape, by name."""
    return {
        name: _state_kind_of(optimizer, name, value, shape)
        for name, value in state.items()
        if value is not None
    }


def _state_after_trial(
    optimizer: torch.optim.Optimizer,
    group: int,
    dtype: torch.dtype,
    begin: Callable[[Tensor, int], Dict[str, Any]] = lambda part, at: {},
) -> Dict[str, Any]:
    """The state of a copy of an optimizer after one step with a small parameter of this type; the
    optimizer stays as it is. begin(part, number of its first element) is the state before the step.
    Raises TypeError where that step fails, and where elements change otherwise when the parameter
    is cut, as with optimizers that look at norms or at rows.
    """
    before = torch.tensor([[0.5, -1.0, 2.0], [0.25, 4.0, -3.0]], dtype=dtype)
    gradient = torch.tensor([[0.5, 0.25, -2.0], [1.0, -0.125, 3.0]], dtype=dtype)
    whole, parts = before.clone(), [x.clone() for x in before.reshape(-1).split(4)]
    state = _step_copy(optimizer, group, [whole], [gradient], begin)[whole]
    _step_copy(optimizer, group, parts, gradient.reshape(-1).split(4), begin)
    change, apart = (whole - before).reshape(-1), torch.cat(parts) - before.reshape(-1)
    if not torch.allclose(change.double(), apart.double(), rtol=0.05, atol=1e-6):
        raise _unfit_error(optimizer, "a step with a part of a parameter is another one")
    return dict(state)


def _step_copy(
    optimizer: torch.optim.Optimizer,
    group: int,
    parameters: Sequence[Tensor],
    gradients: Sequence[Tensor],
    begin: Callable[[Tensor, int], Dict[str, Any]],
) -> Dict[Tensor, Dict[str, Any]]:
    """Make a step with these parameters, which are the parts of one, by a copy of an optimizer
    whose learning rate is not 0; returns the copy's state. `begin` gives that of before.
    """
    given = optimizer.param_groups[group]
    rate = given.get("lr", 0.1)
    trial = copy.copy(optimizer)
    trial.param_groups = [{**given, "params": list(parameters)}]
    trial.param_groups[0]["lr"] = torch.full_like(rate, 0.1) if torch.is_tensor(rate) else 0.1
    trial.state, at = defaultdict(dict), 0
    for parameter, gradient in zip(parameters, gradients):
        parameter.grad = gradient.clone()  # which the step may change
        trial.state[parameter].update(begin(parameter, at))
        at += parameter.numel()
    try:
        type(optimizer).step(trial)
    except Exception as err:  # whatever an optimizer of another kind may raise
        raise _unfit_error(optimizer, f"a step with one parameter fails: {err}") from err
    return trial.state


def _state_kind_of(
    optimizer: torch.optim.Optimizer, name: str, value: Any, shape: torch.Size
) -> StateKind:
    """The kind of one value in an optimizer's state of a parameter of this shape. Raises TypeError
    for one that cannot be cut.
    """
    if torch.is_tensor(value) and value.shape == shape and shape:
        return StateKind(value.dtype, float)
    if torch.is_tensor(value) and value.numel() == 1:
        dtype, like = value.dtype, value.shape
        return StateKind(None, lambda x: torch.full(like, x, dtype=dtype))
    if isinstance(value, (int, float)):
        return StateKind(None, type(value))
    raise _unfit_error(
        optimizer, f"its state {name!r} is neither a number nor as large as the parameter"
    )


def _unfit_error(optimizer: torch.optim.Optimizer, why: str) -> TypeError:
    """The error for an optimizer whose state cannot be cut, for the caller to raise."""
    return TypeError(
        f"{type(optimizer).__name__} cannot be sharded: {why}. shoal.torch.zero takes optimizers"
        " that treat each element by itself, as SGD and Adam do; use shoal.torch.ddp with this one"
    )
