"""The state of a Trainer's callbacks, which workers that join get."""

from __future__ import annotations

import contextlib
from typing import Any, Dict

from transformers.trainer_callback import ExportableState

from shoal._live.object_collectives import pack


def attributes_of(callback: Any) -> Dict[str, bytes]:
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
