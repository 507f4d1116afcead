"""Meetings of partners: a matching of all ranks in each step, which follows from a seed, and what
partners average.
"""

from __future__ import annotations

from typing import List, Tuple

from ..cursor import random_word


def partners(seed: int, step: int, size: int) -> List[int]:
    """The partner of each rank in a step; with an odd size one rank is its own, and rests. All
    workers find the same, and each matching is as likely as any other.
    """
    order = list(range(size))
    for i in range(size - 1, 0, -1):  # Fisher and Yates
        j = random_word(seed, step, i) % (i + 1)
        order[i], order[j] = order[j], order[i]
    found = list(range(size))
    for one, other in zip(order[::2], order[1::2]):
        found[one], found[other] = other, one
    return found


def part_of_step(elements: int, step: int, parts: int) -> slice:
    """The elements of an array, as a flat one, that partners average in a step: one of so many
    parts, in turns.
    """
    turn = step % parts
    return slice(elements * turn // parts, elements * (turn + 1) // parts)


def average_pair(w: List[object], theirs: List[object], weights: Tuple[int, int] = (1, 1)) -> None:
    """w := the mean of w and theirs with these weights, in place; where both are 0, the plain mean.
    A sum of two is the same in either order, so both partners have the same bytes then.
    """
    mine, other = weights if any(weights) else (1, 1)
    for replica, partner in zip(w, theirs):
        replica *= mine / (mine + other)  # type: ignore[operator]
        replica += partner * (other / (mine + other))  # type: ignore[operator]
