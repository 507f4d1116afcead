"""The samples of the local steps that come, drawn before they are asked for."""

from __future__ import annotations

from collections import deque
from typing import Deque, List, NamedTuple, Optional, Tuple

from ..cursor import Cursor, Order, Samples, Span

# How far ahead samples are drawn: many steps at once cost little more than one.
_AHEAD_STEPS, _AHEAD_SAMPLES = 64, 1 << 14


class LocalBatch(NamedTuple):
    """The samples of one worker in one local step, which is a whole round where that has one."""

    indices: Samples
    local_weight: int  # how many of them count; 0 = none, and the indices are those of others
    weight: int  # how many samples this worker has in the round
    epoch: int
    local_index: int = 0  # index of the local step in its round
    local_steps: int = 1  # number of local steps of the round


class SampleLookahead:
    """One worker's samples of the next steps, for as long as the members stay the same. Only the
    thread of the training loop uses it.
    """

    def __init__(self) -> None:
        """With no samples drawn."""
        self.plan = 0  # counts how often the samples that were drawn ahead became void
        self.opened_count = 0  # number of steps opened since the plan changed last
        self._ahead: Deque[LocalBatch] = deque()  # of the next steps, the next one first
        self._place: Optional[Cursor] = None  # the place up to which samples are drawn; None = none
        self._order: Optional[Order] = None  # the order that samples are drawn by; None = none yet
        self._epoch = 0  # the epoch of `_order`

    def discard(self) -> None:
        """Throw away the samples that were drawn: the members or the place have changed."""
        self.plan += 1
        self.opened_count = 0
        self._ahead.clear()
        self._place = None

    def take_next(self, place: Cursor, rank: int, size: int) -> LocalBatch:
        """Take the samples of the next local step of a rank among `size`, in the round at `place`
        or, where all local steps of that are taken, the one after.
        """
        batch = self.peek(0, place, rank, size)
        self._ahead.popleft()
        self.opened_count += 1
        return batch

    def peek(self, k: int, place: Cursor, rank: int, size: int) -> LocalBatch:
        """The samples of a rank among `size` in the k-th next local step (0: the next, in the round
        at `place`), if the members stay the same. Draws them where they are not drawn yet.
        """
        while len(self._ahead) <= k:
            self._draw(self._place or place, rank, size)
        return self._ahead[k]

    def samples_of_round(self, place: Cursor) -> Samples:
        """All samples of the round at a place."""
        return self._order_at(place).take(place.part(0, 1))

    def _order_at(self, place: Cursor) -> Order:
        """The order of the samples in the epoch of a place."""
        if self._order is None or self._epoch != place.epoch:
            self._order, self._epoch = place.order(), place.epoch
        return self._order

    def _draw(self, cursor: Cursor, rank: int, size: int) -> None:
        """Draw the samples of the next rounds from a place on, up to the end of an epoch."""
        order = self._order_at(cursor)
        spans: List[Span] = []
        batches: List[Tuple[int, LocalBatch]] = []  # with the number of their indices
        drawn, everyone = 0, [True] * size
        while (
            cursor.epoch == self._epoch and len(batches) < _AHEAD_STEPS and drawn < _AHEAD_SAMPLES
        ):
            pieces = cursor.pieces(rank, size)
            counts = [sum(stop - start for start, stop in piece) for piece in pieces]
            for local_index, (piece, count) in enumerate(zip(pieces, counts)):
                taken = count
                if not piece:  # two, for a batch norm, if there are two
                    piece = cursor.head(2)
                    taken = min(2, cursor.count())
                spans += piece
                drawn += taken
                about = (count, sum(counts), self._epoch, local_index, len(pieces))
                batches.append((taken, LocalBatch([], *about)))
            cursor = cursor.commit(size, everyone)
        self._place = cursor
        samples, at = order.take(spans), 0
        for taken, batch in batches:
            self._ahead.append(batch._replace(indices=samples[at : at + taken]))
            at += taken
