"""Divides an optimizer's state among workers: pure arithmetic. docs/design/zero.md has the reasons.

All parameters lie one after the other in one vector, each from a multiple of GRAIN on. The vector
is cut into a share for each worker, and each share is held by its owner and by one other
worker, its buddy.
"""

from __future__ import annotations

import itertools
from typing import Dict, Iterator, List, NamedTuple, Optional, Sequence, Tuple

# Elements. Cuts lie on multiples of it, so that torch's vector code does the same with a part of a
# parameter as with all of it.
GRAIN = 64

Span = Tuple[int, int]  # from, to


def round_up(n: int) -> int:
    """The smallest multiple of GRAIN that is not below n."""
    return -(-n // GRAIN) * GRAIN


class Partition(NamedTuple):
    """The shares of the workers 0 to n-1."""

    shares: Tuple[Span, ...]  # by worker; an empty span = it has none
    buddies: Tuple[Optional[int], ...]  # the other holder of each share; None = there is none

    def held(self, rank: int) -> List[Span]:
        """The shares that a worker holds, in order: its own, and those whose buddy it is."""
        return [
            share
            for r, share in enumerate(self.shares)
            if rank in (r, self.buddies[r]) and share[0] < share[1]
        ]

    def cuts(self) -> List[int]:
        """Where the shares begin, by worker, and where the last one ends."""
        return [0, *itertools.accumulate((stop for _, stop in self.shares), max)]


def partition(total: int, hosts: Sequence[int]) -> Partition:
    """The shares of a vector of `total` elements for workers on these hosts; -1 is a worker that
    gets nothing.

    Shares are equal up to GRAIN. The workers stand in a ring in which hosts take turns, and each is
    the buddy of the next one: with as many workers on every host the loss of a host takes both
    copies of nothing.
    """
    present = [r for r, host in enumerate(hosts) if host >= 0]
    shares: List[Span] = [(0, 0)] * len(hosts)
    buddies: List[Optional[int]] = [None] * len(hosts)
    grains, n = round_up(total) // GRAIN, len(present)
    for i, r in enumerate(present):
        shares[r] = (grains * i // n * GRAIN, grains * (i + 1) // n * GRAIN)
    turn: Dict[int, int] = {}
    order = []
    for r in present:
        turn[hosts[r]] = turn.get(hosts[r], -1) + 1
        order.append((turn[hosts[r]], r))
    ring = [r for _, r in sorted(order)]
    if n > 1:
        for i, r in enumerate(ring):
            buddies[r] = ring[i - 1]
    return Partition(tuple(shares), tuple(buddies))


class Slice(NamedTuple):
    """A part of a parameter that a worker holds."""

    parameter: int  # its number
    start: int  # first element in the vector of all parameters
    stop: int  # the element after the last one


def slices(places: Sequence[Span], held: Sequence[Span]) -> Iterator[Slice]:
    """The parts of parameters, which lie at `places`, that are within the held spans, in order."""
    for number, (first, last) in enumerate(places):
        for start, stop in held:
            if max(first, start) < min(last, stop):
                yield Slice(number, max(first, start), min(last, stop))


def overlap(a: Span, b: Span) -> Optional[Span]:
    """The intersection of two spans; None = it is empty."""
    start, stop = max(a[0], b[0]), min(a[1], b[1])
    return (start, stop) if start < stop else None
