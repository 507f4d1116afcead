"""Checks of arguments, at the call that gets them. Each message names the argument, its value, and
what is wanted instead.
"""

from __future__ import annotations

import operator
import reprlib
from typing import Any, Dict, List, Optional, Tuple


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


def as_batch_range(value: Any, batch: int, name: str, most: int) -> Optional[Tuple[int, int]]:
    """The value of an argument batch_range as (least, most) samples of a step; None stays None.
    `batch` is what the program states, in the argument `name`, and `most` the most that a step can
    have. Raises TypeError for what is no pair of integers, and ValueError where one is below 1 or
    above `most`, they are reversed, or `batch` is not between them.
    """
    if value is None:
        return None
    what = "the least and the most samples of a step, as batch_range=(64, 1024)"
    try:
        low, high = value
    except (TypeError, ValueError):
        raise wrong_type("batch_range", value, what) from None
    low = as_integer("batch_range: the least", low, 1, "an integer from 1 to 2**62", most)
    high = as_integer("batch_range: the most", high, 1, "an integer from 1 to 2**62", most)
    if low > high:
        raise ValueError(f"batch_range=({low}, {high}) is reversed: give {what}")
    if not low <= batch <= high:
        raise ValueError(
            f"batch_range=({low}, {high}) does not contain {name}={batch}, with which the job"
            f" begins: give {what}"
        )
    return low, high


def as_catalogue(value: Any) -> List[Dict[str, Any]]:
    """The value of an argument catalogue as a list of dicts, whose shapes are lists of int. Raises
    TypeError for what is no list of mappings, and for a shape that is none of integers.
    """
    what = 'a list of tensors as {"name": "up", "dtype": "f32", "shape": [8, 4]}'
    try:
        listed = [dict(tensor) for tensor in value]
    except (TypeError, ValueError):
        raise wrong_type("catalogue", value, what) from None
    for tensor in listed:
        try:
            tensor["shape"] = [operator.index(n) for n in tensor["shape"]]
        except (TypeError, KeyError):
            raise wrong_type("catalogue", tensor, what) from None
    return listed


def wrong_type(name: str, value: Any, what: str) -> TypeError:
    """The TypeError for an argument of a wrong type, for the caller to raise: one line. `what` says
    what is wanted.
    """
    return TypeError(f"{name}={' '.join(reprlib.repr(value).split())}: {what}")
