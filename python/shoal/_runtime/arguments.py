"""Checks of arguments, at the call that gets them. Each message names the argument, its value, and
what is wanted instead.
"""

from __future__ import annotations

import operator
import reprlib
from typing import Any, Optional


def as_integer(name: str, value: Any, least: int, what: str, most: Optional[int] = None) -> int:
    """The value of an argument as an int. Raises TypeError for a value that is no integer (NumPy's
    integers are), and ValueError for one below `least` or above `most`. `what` says in the error
    what is wanted.
    """
    try:
        number = operator.index(value)
    except TypeError:
        raise wrong_type(name, value, what) from None
    if isinstance(value, bool):
        raise wrong_type(name, value, what)
    if number < least or most is not None and number > most:
        raise ValueError(f"{name}={number}: {what}")
    return number


def wrong_type(name: str, value: Any, what: str) -> TypeError:
    """The TypeError for an argument of a wrong type, for the caller to raise. `what` says what is
    wanted.
    """
    return TypeError(f"{name}={reprlib.repr(value)}: {what}")
