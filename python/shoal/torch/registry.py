"""Registers optimizers, schedulers and GradScalers as they are made, so that workers that join get
their state although the script does not name them.
"""

from __future__ import annotations

import functools
import gc
import weakref
from typing import Any, Callable, Iterator, List

import torch
from torch.optim import lr_scheduler

# In the order of creation, which is the same on every worker: the script makes these objects on one
# thread. It has no lock.
_created: "List[weakref.ref[Any]]" = []

_Optimizer = torch.optim.Optimizer
# torch 1 calls it _LRScheduler, and torch 2 has both names.
_Scheduler = getattr(lr_scheduler, "LRScheduler", lr_scheduler._LRScheduler)
# In torch 2 the one for CUDA is a subclass.
_Scaler = getattr(torch.amp, "GradScaler", torch.cuda.amp.GradScaler)
# Those that do not call the __init__ of the base.
_OTHER_SCHEDULERS = [
    getattr(lr_scheduler, name)
    for name in ("ReduceLROnPlateau", "SequentialLR", "ChainedScheduler")
    if hasattr(lr_scheduler, name)
]
_SCHEDULERS = (_Scheduler, *_OTHER_SCHEDULERS)


def patch_constructors() -> None:
    """Replace the __init__ of torch's classes, so that objects that are made from now on are
    registered. Copies and unpickled objects are not. Called when shoal.torch is imported; a second
    call changes nothing.
    """
    for kind in (_Optimizer, _Scaler, *_SCHEDULERS):
        if "__init__" in vars(kind) and not hasattr(kind.__init__, "registered_by_shoal"):
            kind.__init__ = _registering_init(kind.__init__)


def _registering_init(init: Callable[..., None]) -> Callable[..., None]:
    """An __init__ that does what `init` does, and registers the object."""

    @functools.wraps(init)
    def register(self: Any, *arguments: Any, **options: Any) -> None:
        """Initialise an object as `init` does, and put a weak reference to it last in the list."""
        init(self, *arguments, **options)
        _created[:] = [ref for ref in _created if ref() is not None and ref() is not self]
        _created.append(weakref.ref(self))

    register.registered_by_shoal = True  # type: ignore[attr-defined]
    return register


def live_optimizers() -> List[torch.optim.Optimizer]:
    """The registered optimizers that are alive."""
    return [thing for thing in (ref() for ref in _created) if isinstance(thing, _Optimizer)]


def live_scalers() -> List[Any]:
    """The registered GradScalers that are alive and enabled."""
    made = (ref() for ref in _created)
    return [thing for thing in made if isinstance(thing, _Scaler) and thing.is_enabled()]


def record_overflow(optimizer: torch.optim.Optimizer, found: bool) -> None:
    """Have the GradScaler that steps this optimizer know whether a gradient of any worker is not
    finite. It has looked at those of its own worker only, and the next scale follows from that.
    """
    for scaler in live_scalers():
        record = scaler._per_optimizer_states.get(id(optimizer))
        if record is not None:
            scale = scaler._scale
            record["found_inf_per_device"] = {
                scale.device: torch.full((), float(found), device=scale.device)
            }


def belonging_to(managed: List[Any]) -> List[Any]:
    """The registered objects that are alive and belong to these modules and optimizers, but are not
    among them: optimizers with parameters of theirs, then schedulers of the optimizers, then
    GradScalers. Collects garbage first, where there are any.
    """
    if any(_belonging(managed)):
        gc.collect()  # garbage that is not collected yet would differ between workers
    return list(_belonging(managed))


def schedulers_of(optimizer: torch.optim.Optimizer) -> List[Any]:
    """The registered schedulers of an optimizer that are alive. May collect garbage."""
    return [thing for thing in belonging_to([optimizer]) if isinstance(thing, _SCHEDULERS)]


def _belonging(managed: List[Any]) -> Iterator[Any]:
    """What `belonging_to` returns, without collecting garbage before."""
    known = {id(thing) for thing in managed}
    made = [
        thing
        for thing in (ref() for ref in _created)
        if thing is not None and id(thing) not in known
    ]
    parameters = {id(p) for thing in managed for p in _parameters_of(thing)}
    for thing in made:
        if isinstance(thing, _Optimizer) and any(
            id(p) in parameters for p in _parameters_of(thing)
        ):
            known.add(id(thing))
            yield thing
    for thing in made:
        if isinstance(thing, _SCHEDULERS) and any(
            id(optimizer) in known for optimizer in _wrapped(getattr(thing, "optimizer", None))
        ):
            yield thing
    yield from (scaler for scaler in live_scalers() if id(scaler) not in known)


def _parameters_of(thing: Any) -> List[torch.Tensor]:
    """The parameters of a module or an optimizer; none of anything else."""
    if isinstance(thing, torch.nn.Module):
        return list(thing.parameters())
    return (
        [p for group in thing.param_groups for p in group["params"]]
        if isinstance(thing, _Optimizer)
        else []
    )


def _wrapped(optimizer: Any) -> Iterator[Any]:
    """An optimizer, and those that it is around: shoal's and Accelerate's are around the user's."""
    while isinstance(optimizer, _Optimizer):
        yield optimizer
        optimizer = vars(optimizer).get("inner", vars(optimizer).get("optimizer"))
