"""What workers that join get: whatever has a `state_dict`."""

from __future__ import annotations

from typing import Any, Dict

import torch

import shoal


def keep(job: "shoal.Job", name: str, holder: Any) -> None:
    """Register a module, an optimizer, a scheduler or a GradScaler under a name that is not taken."""

    def get() -> Dict[str, Any]:
        # Schedulers keep functions among their numbers; every worker has its own.
        return {key: value for key, value in holder.state_dict().items() if not callable(value)}

    job.register(job.unused(name), get, holder.load_state_dict)


def keep_random_state(job: "shoal.Job") -> None:
    """Register torch's random state, which each worker has of its own."""

    def set(value: bytes) -> None:
        torch.set_rng_state(torch.frombuffer(bytearray(value), dtype=torch.uint8))

    job.register("torch random state", lambda: torch.get_rng_state().numpy().tobytes(), set, alike=False)
