"""Attributes of an object, in place of which others stand for a while."""

from __future__ import annotations

import contextlib
from typing import Any, Iterator


@contextlib.contextmanager
def replaced(target: Any, **attributes: Any) -> Iterator[None]:
    """Replace attributes of an object in the block, such as methods: whoever calls these then calls
    what is given, and that may call what the object's class has made of the method. The object must
    not be used by other threads meanwhile.
    """
    before = {name: vars(target)[name] for name in attributes if name in vars(target)}
    vars(target).update(attributes)
    try:
        yield
    finally:
        for name in attributes:
            vars(target).pop(name, None)
        vars(target).update(before)
