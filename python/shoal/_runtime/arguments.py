"""What a program hands over is looked at where it does so. Each message says which argument it is,
what was given, and what is wanted.
"""

from __future__ import annotations

import operator
import reprlib
from typing import Any, Optional


def whole(name: str, value: Any, least: int, what: str, most: Optional[int] = None) -> int:
    """An integer, of NumPy too. Raises TypeError for what is none, and ValueError for one that is
    less than `least` or more than `most`.
    """
    try:
        number = operator.index(value)
    except TypeError:
        raise wrong(name, value, what) from None
    if isinstance(value, bool):
        raise wrong(name, value, what)
    if number < least or most is not None and number > most:
        raise ValueError(f"{name}={number}: {what}")
    return number


def wrong(name: str, value: Any, what: str) -> TypeError:
    """The error for a value of another type."""
    return TypeError(f"{name}={reprlib.repr(value)}: {what}")
