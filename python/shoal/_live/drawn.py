"""The samples of the steps that come, drawn before they are asked for."""

from __future__ import annotations

from collections import deque
from typing import Deque, List, NamedTuple, Optional, Tuple

from ..cursor import Cursor, Order, Samples, Span

# How far ahead samples are drawn: many steps at once cost little more than one.
_AHEAD_STEPS, _AHEAD_SAMPLES = 64, 1 << 14


class LocalBatch(NamedTuple):
    """The samples of one worker in one step."""

    indices: Samples
    weight: int  # how many of them count; 0 = none, and the indices are those of others
    epoch: int


class Drawn:
    """One worker's samples of the next steps, for as long as the members stay the same. Only the
    thread of the training loop uses it.
    """

    def __init__(self) -> None:
        """With no samples drawn."""
        self.plan = 0  # counts how often the samples that were drawn ahead became void
        self.opened = 0  # number of steps opened since the plan changed last
        self._ahead: Deque[LocalBatch] = deque()  # of the next steps, the next one first
        self._place: Optional[Cursor] = None  # the place up to which samples are drawn; None = none
        self._order: Optional[Order] = None  # the order that samples are drawn by; None = none yet
        self._epoch = 0  # the epoch of `_order`

    def discard(self) -> None:
        """Throw away the samples that were drawn: the members or the place have changed."""
        self.plan += 1
        self.opened = 0
        self._ahead.clear()
        self._place = None

    def open(self, place: Cursor, rank: int, size: int) -> LocalBatch:
        """Take the samples of the next step of a rank among `size`, which is at `place`."""
        batch = self.look(0, place, rank, size)
        self._ahead.popleft()
        self.opened += 1
        return batch

    def look(self, k: int, place: Cursor, rank: int, size: int) -> LocalBatch:
        """The samples of a rank among `size` in the k-th next step (0: the next, at `place`), if
        the members stay the same. Draws them where they are not drawn yet.
        """
        while len(self._ahead) <= k:
            self._draw(self._place or place, rank, size)
        return self._ahead[k]

    def whole(self, place: Cursor) -> Samples:
        """All samples of the step at a place."""
        return self._order_at(place).take(place.part(0, 1))

    def _order_at(self, place: Cursor) -> Order:
        """The order of the samples in the epoch of a place."""
        if self._order is None or self._epoch != place.epoch:
            self._order, self._epoch = place.order(), place.epoch
        return self._order

    def _draw(self, cursor: Cursor, rank: int, size: int) -> None:
        """Draw the samples of the next steps from a place on, up to the end of an epoch."""
        order = self._order_at(cursor)
        spans: List[Span] = []
        counts: List[Tuple[int, int]] = []
        drawn, everyone = 0, [True] * size
        while cursor.epoch == self._epoch and len(counts) < _AHEAD_STEPS and drawn < _AHEAD_SAMPLES:
            part = cursor.part(rank, size)
            weight = sum(stop - start for start, stop in part)
            count = weight
            if not part:  # two, for a batch norm, if there are two
                part = cursor.head(2)
                count = min(2, cursor.count())
            spans += part
            counts.append((count, weight))
            drawn += count
            cursor = cursor.commit(size, everyone)
        self._place = cursor
        samples, at = order.take(spans), 0
        for count, weight in counts:
            self._ahead.append(LocalBatch(samples[at : at + count], weight, self._epoch))
            at += count
