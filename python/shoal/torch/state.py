"""What workers that join get: whatever has a `state_dict`."""

from __future__ import annotations

import contextlib
from typing import Any, Dict

import torch

import shoal


def keep(job: "shoal.Job", name: str, holder: Any) -> None:
    """Register a module, an optimizer, a scheduler or a GradScaler under a name that is not taken."""

    def get() -> Dict[str, Any]:
        # Schedulers keep functions among their numbers; every worker has its own.
        return {key: value for key, value in holder.state_dict().items() if not callable(value)}

    if isinstance(holder, torch.optim.Optimizer) and job.outside and not holder.state:
        fill(holder)
    own = isinstance(holder, (torch.nn.Module, torch.optim.Optimizer))
    job._state.register(job.unused(name), get, lambda value: load(holder, value), own=own)


def load(holder: Any, value: Dict[str, Any]) -> None:
    """Have a module, an optimizer, a scheduler or a GradScaler load its state, which may lie in its own memory."""
    if isinstance(holder, torch.nn.Module):
        for key, tensor in holder.state_dict(keep_vars=True).items():
            if _same(tensor, value.get(key)):
                value[key] = tensor  # torch copies no tensor onto itself, but does so with its memory
    holder.load_state_dict(Taken(value))


def _same(one: Any, other: Any) -> bool:
    if not isinstance(one, torch.Tensor) or not isinstance(other, torch.Tensor):
        return False
    return one.data_ptr() == other.data_ptr() and (one.dtype, one.shape, one.stride()) == (other.dtype, other.shape, other.stride())


def fill(optimizer: torch.optim.Optimizer) -> None:
    """Have an optimizer make its state, which it does in its first step. A worker that joins receives into that memory.

    Whatever else the step changes is replaced when the worker joins.
    """
    parameters = [p for group in optimizer.param_groups for p in group["params"] if p.requires_grad and p.grad is None]
    for p in parameters:
        p.grad = torch.zeros_like(p)
    # One that needs a closure, or sparse gradients, gets its state when it joins, and the others wait somewhat longer.
    with contextlib.suppress(Exception):
        type(optimizer).step(optimizer)
    for p in parameters:
        p.grad = None


class Taken(Dict[str, Any]):
    """A state that belongs to who loads it. Optimizers of torch 1 would copy it, and its memory has to be touched anew for that."""

    def __deepcopy__(self, _: Any) -> "Taken":
        return self


def keep_random_state(job: "shoal.Job") -> None:
    """Register torch's random state, which each worker has of its own."""

    def set(value: bytes) -> None:
        torch.set_rng_state(torch.frombuffer(bytearray(value), dtype=torch.uint8))

    job.register("torch random state", lambda: torch.get_rng_state().numpy().tobytes(), set, alike=False)
