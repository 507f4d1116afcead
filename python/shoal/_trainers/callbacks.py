"""A Trainer's callbacks: their state, which workers that join get, and its progress bar."""

from __future__ import annotations

import contextlib
from typing import Any, Dict, List

from transformers.trainer_callback import ExportableState, ProgressCallback

from shoal._live.object_collectives import pack, unpack


def states_of(callbacks: List[Any]) -> List[List[Any]]:
    """The states of callbacks, for `take_states` on another worker: of each the name of its class,
    and its attributes, packed.
    """
    return [[type(callback).__qualname__, _attributes_of(callback)] for callback in callbacks]


def take_states(callbacks: List[Any], states: List[List[Any]]) -> None:
    """Give callbacks what `states_of` has returned for those of another worker."""
    left = list(states)
    for callback in callbacks:
        # By its class: the others may have more callbacks, or these in another order.
        kind = type(callback).__qualname__
        place = next((i for i, state in enumerate(left) if state[0] == kind), None)
        attributes = {} if place is None else left.pop(place)[1]
        vars(callback).update((name, unpack(value)) for name, value in attributes.items())


def _attributes_of(callback: Any) -> Dict[str, bytes]:
    """The state of a callback: those of its attributes that can be sent, packed, by name. Nothing
    of those of transformers that keep no state. The callback stays as it is.
    """
    own = isinstance(callback, ExportableState)
    if not own and type(callback).__module__.startswith("transformers."):
        return {}  # bars and writers, which each worker has for itself
    found = {}
    for name, value in vars(callback).items():
        with contextlib.suppress(TypeError):
            found[name] = pack(value)
    return found


def show_progress(trainer: Any) -> None:
    """Begin the progress bars of a Trainer that has trained without one, at the step it is at.
    Before the training, which begins them itself, there is no number of steps yet.
    """
    for callback in trainer.callback_handler.callbacks if trainer.state.max_steps else ():
        if isinstance(callback, ProgressCallback) and callback.training_bar is None:
            callback.on_train_begin(trainer.args, trainer.state, trainer.control)
            callback.training_bar.update(trainer.state.global_step)
            callback.current_step = trainer.state.global_step
