"""The state of objects with a `state_dict` for workers that join. The script names the objects, or
they were registered when they were made.

The thread of the training loop calls the functions, and between two steps those that they register
with the job. The objects stay the script's.
"""

from __future__ import annotations

import contextlib
import random
import sys
import weakref
from collections import Counter
from typing import Any, Callable, Dict, List, Optional, Sequence

import torch

import shoal
from shoal._runtime.arguments import wrong_type
from shoal._runtime.log import log_line
from shoal._runtime.protocol import HUGE_PAGE
from shoal._runtime.tree import allocate_zeros, flatten

from . import registry

# Of each job, what is registered of torch's: the modules, the optimizers, and so on.
_managed: "weakref.WeakKeyDictionary[shoal.Job, List[Any]]" = weakref.WeakKeyDictionary()


def check_arguments(opt: Any, others: Sequence[Any]) -> None:
    """Raise TypeError where `opt` is no optimizer, or one of `others` has no state_dict."""
    if isinstance(opt, type) or not hasattr(opt, "param_groups"):
        raise wrong_type("opt", opt, "an optimizer, as torch.optim.SGD(model.parameters(), lr=0.1)")
    for other in others:
        if (
            isinstance(other, type)
            or not hasattr(other, "state_dict")
            or not hasattr(other, "load_state_dict")
        ):
            raise wrong_type(
                "others",
                other,
                "what workers that join get too, with a state_dict() and a load_state_dict(); of"
                " anything else job.register takes the state",
            )


def register_state(
    job: "shoal.Job", name: str, holder: Any, named: bool = True, of_first: bool = False
) -> None:
    """Register the state of a module, an optimizer, a scheduler or a GradScaler with the job, under
    a name that is not taken. `named`: the script has asked for it.
    """
    # What torch.compile returns puts its own name before those of the model.
    holder = getattr(holder, "_orig_mod", holder)

    def get() -> Any:
        """The state, without the functions that schedulers keep among their numbers: every worker
        has its own.
        """
        return without_functions(holder.state_dict())

    if isinstance(holder, torch.optim.Optimizer) and job.outside and not holder.state:
        initialize_state(holder)
    in_place = isinstance(holder, (torch.nn.Module, torch.optim.Optimizer))
    job._state.register(
        job.unused(name),
        get if named else _guarded(type(holder).__name__, get),
        lambda value: load_state(holder, value),
        in_place=in_place,
        of_first=of_first,
    )
    if isinstance(holder, torch.nn.Module):
        register_trained(job, list(holder.parameters()))
    mark_registered(job, holder)


def register_trained(job: "shoal.Job", parameters: Sequence[torch.Tensor]) -> None:
    """Have workers that join train the same ones of these parameters as the others. A script may
    freeze some while it trains, or have some take gradients again, and a worker that joins later
    does not come by that place. A program that goes on from a checkpoint says itself what it
    trains.
    """

    def set(trained: List[bool]) -> None:
        """Take over which of them take gradients."""
        for parameter, takes in zip(parameters, trained):
            if parameter.requires_grad != takes:
                parameter.requires_grad_(takes)

    job._state.register(
        job.unused("trained parameters"),
        lambda: [p.requires_grad for p in parameters],
        set,
        alike=False,
        checkpointed=False,
    )


def mark_registered(job: "shoal.Job", holder: Any) -> None:
    """Note that the state of a module or an optimizer is registered. The objects that belong to it
    are registered too when the loop begins.
    """
    if job not in _managed:
        _managed[job] = []
        job._state.discover = lambda: _register_belonging(job)
    _managed[job].append(holder)


def _register_belonging(job: "shoal.Job") -> None:
    """Register the objects that belong to the registered ones of a job, and were made since: its
    `discover`.
    """
    for thing in registry.belonging_to(_managed[job]):
        register_state(
            job,
            "optimizer" if isinstance(thing, torch.optim.Optimizer) else type(thing).__name__,
            thing,
            named=False,
        )


def _guarded(kind: str, get: Callable[[], Any]) -> Callable[[], Any]:
    """A function like `get` that returns None where the state cannot be sent: the script did not
    ask for it, and must not fail because of it. The user is told once.
    """
    said: List[str] = []

    def guarded() -> Any:
        """The state, or None where it cannot be sent, of which the user is told the first time."""
        try:
            state = get()
            flatten(kind, _without_tensors(state), [])
            return state
        except Exception as err:  # whatever a state_dict may raise
            if not said:
                said.append(
                    f"workers that join do not get the state of a {kind} that was made here: {err}"
                )
                log_line(said[0])
            return None

    return guarded


def _without_tensors(value: Any) -> Any:
    """A nested value with None in the place of its tensors."""
    if isinstance(value, dict):
        return {key: _without_tensors(v) for key, v in value.items()}
    if isinstance(value, (list, tuple)):
        return [_without_tensors(v) for v in value]
    return None if isinstance(value, torch.Tensor) else value


def without_functions(value: Any) -> Any:
    """A nested value without the entries of dicts that are functions; its dicts and lists are
    new.
    """
    if isinstance(value, dict):
        return {key: without_functions(v) for key, v in value.items() if not callable(v)}
    return [without_functions(v) for v in value] if isinstance(value, list) else value


def load_state(holder: Any, value: Optional[Dict[str, Any]]) -> None:
    """Load the state of a module, an optimizer, a scheduler or a GradScaler, which may lie in its
    own memory already, and may keep the value. None = the state could not be sent, and nothing is
    loaded. Raises ValueError for the state of an optimizer of another kind, or with other groups of
    parameters, and for that of a module with other tensors.
    """
    if value is None:
        return
    if isinstance(holder, torch.optim.Optimizer):
        _check_same_kind(holder, value)
    if isinstance(holder, torch.nn.Module):
        for key, tensor in holder.state_dict(keep_vars=True).items():
            if _is_same_memory(tensor, value.get(key)):
                # torch copies no tensor onto itself, but does so with its memory
                value[key] = tensor
    groups = vars(holder).get("param_groups") if isinstance(holder, torch.optim.Optimizer) else None
    try:
        holder.load_state_dict(OwnedState(value))
    except (RuntimeError, ValueError) as err:
        if isinstance(holder, torch.optim.Optimizer):
            advice = (
                "make all groups of parameters before the loop, and give those that train later"
                " lr=0 until then"
            )
        elif isinstance(holder, torch.nn.Module):
            advice = (
                "make all parameters and buffers in __init__, in the shape that they keep, or give"
                " register_buffer persistent=False"
            )
        else:
            raise
        raise ValueError(
            f"the state to go on from is not for the {type(holder).__name__} here, as if it had"
            f" changed while it trained: {advice}. torch says: {' '.join(str(err).split())}"
        ) from None
    _restore_counters(holder)
    # others may have the same groups: an optimizer around this one, or inside
    if groups is not None:
        for group, loaded in zip(groups, holder.param_groups):
            group.update(loaded)
        holder.param_groups = groups


def _check_same_kind(optimizer: torch.optim.Optimizer, value: Dict[str, Any]) -> None:
    """Raise ValueError where a state is that of an optimizer of another kind, by the options of its
    groups: torch would load it, and train with what the other one has, its learning rate too. With
    another version of torch either of them may have more options, but not both.
    """
    there = {name for group in value.get("param_groups", ()) for name in group}
    here = {name for group in optimizer.param_groups for name in group}
    lacking, unknown = sorted(here - there), sorted(there - here)
    if lacking and unknown:
        raise ValueError(
            f"the state of an optimizer with {', '.join(unknown)} is not for"
            f" {type(optimizer).__name__}, which has {', '.join(lacking)}"
        )


def _restore_counters(scheduler: Any) -> None:
    """Have a MultiStepLR, also one inside other schedulers, count its milestones by a Counter
    again, which was sent as a dict. Anything else stays as it is.
    """
    for name, value in list(getattr(scheduler, "__dict__", {}).items()):
        if name == "milestones" and type(value) is dict:
            scheduler.milestones = Counter(value)
        elif name == "_schedulers":
            for inner in value:
                _restore_counters(inner)


def _is_same_memory(one: Any, other: Any) -> bool:
    """Whether two tensors are the same elements of the same memory."""
    if not isinstance(one, torch.Tensor) or not isinstance(other, torch.Tensor):
        return False
    return one.data_ptr() == other.data_ptr() and (one.dtype, one.shape, one.stride()) == (
        other.dtype,
        other.shape,
        other.stride(),
    )


def initialize_state(optimizer: torch.optim.Optimizer) -> None:
    """Make an optimizer allocate its state, which it does in its first step, so that a worker that
    joins receives into that memory.

    The state of the other workers then replaces all that the step has changed.
    """
    parameters = [
        p
        for group in optimizer.param_groups
        for p in group["params"]
        if p.requires_grad and p.grad is None
    ]
    for p, gradient in zip(parameters, _zeros_like_each(parameters)):
        p.grad = gradient
    # An optimizer that needs a closure or sparse gradients gets its state when the worker joins,
    # for which the others wait somewhat longer.
    with contextlib.suppress(Exception):
        type(optimizer).step(optimizer)
    for p in parameters:
        p.grad = None


def initialize_some(optimizer: torch.optim.Optimizer, parameters: Sequence[torch.Tensor]) -> None:
    """Make an optimizer allocate its state for some parameters, by a step in which these alone have
    a gradient, of zeros. All parameters and gradients are as before then.
    """
    everyone = [p for group in optimizer.param_groups for p in group["params"]]
    gradients, values = [p.grad for p in everyone], [p.detach().clone() for p in parameters]
    for p in everyone:
        p.grad = None
    for p, gradient in zip(parameters, _zeros_like_each(parameters)):
        p.grad = gradient
    try:
        type(optimizer).step(optimizer)
    finally:
        for p, gradient in zip(everyone, gradients):
            p.grad = gradient
        for p, value in zip(parameters, values):
            p.detach().copy_(value)


def _zeros_like_each(tensors: Sequence[torch.Tensor]) -> List[torch.Tensor]:
    """Zeros like each tensor. Those of one type share memory, so that less memory is touched."""
    most: Dict[Any, int] = {}
    for t in tensors:
        most[t.dtype, t.device] = max(t.numel(), most.get((t.dtype, t.device), 0))
    zeros = {kind: _untouched_zeros(n, *kind) for kind, n in most.items()}
    plain = [type(t.data) is torch.Tensor and t.is_contiguous() for t in tensors]
    return [
        zeros[t.dtype, t.device][: t.numel()].view(t.shape) if p else torch.zeros_like(t)
        for t, p in zip(tensors, plain)
    ]


def _untouched_zeros(n: int, dtype: torch.dtype, device: torch.device) -> torch.Tensor:
    """A tensor of n zeros. On the CPU a large one has no memory of its own until it is written to:
    what is read is one page of zeros.
    """
    nbytes = n * torch.empty((), dtype=dtype).element_size()
    if device.type != "cpu" or nbytes < HUGE_PAGE:
        return torch.zeros(n, dtype=dtype, device=device)
    return torch.frombuffer(allocate_zeros(nbytes), dtype=dtype)


class OwnedState(Dict[str, Any]):
    """A state that the loading object may keep. Optimizers of torch 1 would otherwise copy it,
    which touches new memory.
    """

    def __deepcopy__(self, _: Any) -> "OwnedState":
        """The state itself: nothing is copied."""
        return self


def keep_random_state(job: "shoal.Job") -> None:
    """Register the state of the global random generators: torch's, on the CPU and on the devices,
    NumPy's and Python's. Each worker has its own, and a worker that joins gets that of rank 0.
    """

    def get() -> Dict[str, Any]:
        """The states of all generators of this process."""
        on_devices = torch.cuda.get_rng_state_all() if torch.cuda.is_initialized() else []
        state = {
            "torch": torch.get_rng_state().numpy().tobytes(),
            "cuda": [s.numpy().tobytes() for s in on_devices],
            "python": random.getstate(),
        }
        if "numpy" in sys.modules:
            kind, keys, *rest = sys.modules["numpy"].random.get_state()
            state["numpy"] = (kind, keys.tolist(), *rest)
        return state

    def set(value: Dict[str, Any]) -> None:
        """Set the generators to these states, as far as they are here."""
        tensors = [
            torch.frombuffer(bytearray(state), dtype=torch.uint8)
            for state in (value["torch"], *value["cuda"])
        ]
        torch.set_rng_state(tensors[0])
        for device, state in enumerate(tensors[1 : 1 + torch.cuda.device_count()]):
            torch.cuda.set_rng_state(state, device)
        random.setstate(value["python"])
        if "numpy" in value and "numpy" in sys.modules:
            sys.modules["numpy"].random.set_state(value["numpy"])

    if job.unused("random state") == "random state":  # no other loader has registered it
        job.register("random state", get, set, alike=False)
