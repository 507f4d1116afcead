"""Strategies as people write them: NAME[:key=value,…], such as "diloco:every=16,lr=0.7"."""

from __future__ import annotations

import difflib
import math
from typing import Dict, NamedTuple, Sequence, Type

from .contract import Strategy
from .diloco import Diloco
from .hybrid import Hybrid
from .local import Local
from .pair import Pair
from .sma import Sma
from .ssgd import Ssgd

MOST_STEPS = 1 << 16  # most local steps of a round

STRATEGIES: Dict[str, Type[Strategy]] = {
    kind.name: kind for kind in (Ssgd, Local, Diloco, Sma, Pair, Hybrid)
}


class Sync(NamedTuple):
    """A strategy and how many local steps its rounds have."""

    strategy: Strategy
    every: int


def parse(text: str) -> Sync:
    """The strategy that a text names. Options are separated by commas or, as in settings of a job,
    by colons. Raises TypeError for what is no text, and ValueError for another name or key, or for
    a value that is not allowed, with what there is.
    """
    if not isinstance(text, str):
        raise TypeError(
            f"sync={text!r} is {type(text).__name__}: give a text, as \"diloco:every=16\""
        )
    name, *words = text.replace(",", ":").split(":")
    name = name.strip()
    if name not in STRATEGIES:
        raise ValueError(
            f"sync={text!r}: there is no strategy {name!r}{_meant(name, list(STRATEGIES))}; there"
            f" are {', '.join(STRATEGIES)}"
        )
    kind, every = STRATEGIES[name], STRATEGIES[name].every
    options: Dict[str, float] = {}
    known = [*([] if kind.averages_gradients else ["every"]), *kind.options]
    for word in words:
        key, equals, value = (part.strip() for part in word.partition("="))
        if key == "every" and kind.averages_gradients:
            raise ValueError(
                f"sync={text!r}: {name} averages gradients in every step; strategies with local"
                " steps are " + ", ".join(n for n in STRATEGIES if n != name)
            )
        if key not in known:
            has = f"has {', '.join(known)}" if known else "has no options"
            raise ValueError(f"sync={text!r}: {name} {has}, no {key!r}{_meant(key, known)}")
        number = _number(value) if equals else math.nan
        if key == "every":
            if not number.is_integer() or not 1 <= number <= MOST_STEPS:
                raise ValueError(
                    f"sync={text!r}: every is how many local steps a round has, an integer from 1"
                    f" to {MOST_STEPS}, not {value!r}"
                )
            every = int(number)
        elif not math.isfinite(number) or not kind.options[key].allowed(number):
            raise ValueError(
                f"sync={text!r}: {key} of {name} is {kind.options[key].words}, not {value!r}"
            )
        else:
            options[key] = number
    return Sync(kind(**options), every)


def _number(text: str) -> float:
    """The number that a text is; NaN where it is none."""
    try:
        return float(text)
    except ValueError:
        return math.nan


def _meant(word: str, known: Sequence[str]) -> str:
    """The known word that somebody may have meant, as a question; "" where none is near."""
    near = difflib.get_close_matches(word.lower(), known, 1)
    return f" (did you mean {near[0]}?)" if near else ""
