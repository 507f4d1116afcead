"""The place of a job in its data: which samples the next round of steps trains on, who takes which,
and which are committed.

The same as the Go package data/cursor, bit by bit; docs/formats/cursor.md has the numbers. Pure: a
`Cursor` is a value, a commit gives the next one, and equal cursors on different hosts give equal
batches.
"""

from __future__ import annotations

import dataclasses
import itertools
import struct
from typing import Iterable, Iterator, List, NamedTuple, Sequence, Tuple, Union

from ._order import MAX_SAMPLES, Order, Samples, Span, random_word

__all__ = ["MAX_ROUND", "MAX_SAMPLES", "Cursor", "Order", "Samples", "Span", "random_word"]

MAX_LEFT = 180  # the largest number of spans that an encoding has room for
MAX_SHARES = 256  # the largest number of ranks among which work can be divided unequally
MAX_ROUND = 1 << 16  # the largest number of steps of a round

_HEAD = struct.Struct("<6Q2I")  # the fields of _Head
_SPAN = struct.Struct("<2Q")
_SETTING = struct.Struct("<2I")  # round, and the number of shares
# Flags of an encoding: not shuffled; what is left is a batch of its own; round and shares follow
# the spans.
_PLAIN, _APART, _HAS_SETTING = 1, 2, 4


@dataclasses.dataclass(frozen=True)
class Cursor:
    """A place in the data, made by `Cursor.start`, `unpack` and `commit`. It never changes, so any
    thread may use it; the methods only compute.

    From one commit to the next is a round: one optimizer step, or up to `round` of them, which each
    worker makes on its own. A worker's part of a round is cut into a piece for each of its local
    steps. Who is lost in a round has committed nothing of it.

    The positions below `next` that are not in `left` are committed. `left` goes first into the next
    round, or with `apart` is that round. It is never larger than the largest round since nothing
    was left. Where the round was made smaller than `left`, it takes the first positions of it, and
    the rest stays for those after. `left` has at most as many spans as runs of neighbouring ranks
    were lost since nothing was left (the Go package has the proof).
    """

    samples: int  # number of samples in an epoch
    # Number of samples in an optimizer step, over all workers. Only the steps of the last round of
    # an epoch have fewer, and with `apart` one that completes the one before.
    batch: int
    seed: int = 0
    shuffle: bool = True
    epoch: int = 0  # the epoch of the next step, from 0 on
    step: int = 0  # number of committed optimizer steps, over all epochs
    next: int = 0  # the first position of the epoch that was never handed out
    # Positions that were handed out and are not committed, because their worker was lost: spans in
    # ascending order that do not touch each other.
    left: Tuple[Span, ...] = ()
    # What is left is a batch of its own, so that all batches hold the same samples as they do
    # without a loss. Then the step after a loss completes the one before.
    apart: bool = False
    # Number of optimizer steps from one commit to the next, which workers make on their own, at
    # most MAX_ROUND; 0 and 1 = each step is committed. The last round of an epoch may have fewer.
    round: int = 0
    # The part of the work of each rank, in whole numbers that are compared with each other; () =
    # all have the same, and so they have where their number is another one than that of the ranks.
    shares: Tuple[int, ...] = ()

    @classmethod
    def start(
        cls, samples: int, batch: int, seed: int = 0, shuffle: bool = True, apart: bool = False
    ) -> "Cursor":
        """The start of the first epoch. Raises ValueError when samples or batch is below 1 or above
        2^62, or the seed below 0 or above 2^64 - 1.
        """
        cursor = cls(samples, batch, seed, shuffle, apart=apart)
        if not 0 <= seed < 1 << 64:
            raise ValueError(f"seed {seed}; it takes 0 to 2^64-1")
        cursor._validate()
        return cursor

    def with_round(self, steps: int) -> "Cursor":
        """The same place with rounds of so many optimizer steps from the next one on. Raises
        ValueError for a number below 0 or above MAX_ROUND.
        """
        cursor = dataclasses.replace(self, round=steps)
        cursor._validate_setting()
        return cursor

    def order(self) -> Order:
        """The order of the samples in this epoch."""
        return Order(self.samples, self.seed, self.epoch, self.shuffle)

    @property
    def reached(self) -> int:
        """The epoch of the last step that was committed, also where that ended it: who loops over
        epochs is in that one until the next loop begins.

        Before the first step it is the first.
        """
        return self.epoch - (self.step > 0 and self.next == 0 and self.epoch > 0)

    def count(self) -> int:
        """How many samples the next round has over all workers: `batch` for each of its steps, or
        what the epoch still has when that is less. With `apart` it is what is left, if anything is.
        """
        left = self._count_left()
        if self.apart and left:
            return left
        return min(self.batch * max(self.round, 1), left + self.samples - self.next)

    def local_steps(self) -> int:
        """Of how many optimizer steps the next round is: of as many as it takes with `batch`
        samples or fewer in each, and of `round` at most.
        """
        return min(-(-self.count() // self.batch), max(self.round, 1))

    def part(self, rank: int, size: int) -> List[Span]:
        """The positions that a rank takes of the next round, ascending.

        The round is the first count() of those in `left` and then those from `next` on, up to the
        end of the epoch. It falls into contiguous parts, as large as the `shares` of the ranks say,
        where there is one for each; else the first ranks take one more than the others, which may
        have none. A part has at least two positions where a whole batch has two for each rank,
        because a batch norm cannot compute with one: fewer ranks take a smaller batch then, and by
        shares there are parts without any.
        """
        if not 0 <= rank < size:
            raise ValueError(f"rank {rank} of {size} workers")
        if len(self.shares) == size and len(set(self.shares)) > 1:
            lengths = self._divide_by_shares()
            start = sum(lengths[:rank])
            return _join_touching(self._batch_spans(start, start + lengths[rank]))
        count, taking = self.count(), size
        if self.batch // 2 >= size > count // 2:
            taking = max(count // 2, 1)
        each, more = divmod(count, taking)
        if rank >= taking:
            return []
        start = each * rank + min(more, rank)
        return _join_touching(self._batch_spans(start, start + each + (rank < more)))

    def pieces(self, rank: int, size: int) -> List[List[Span]]:
        """The part that a rank takes of the next round, cut into a piece for each of its local
        steps.

        The pieces are contiguous, and the first ones have one position more than the others, which
        may have none. A piece has at least two positions where a whole batch has two for each rank
        and the part has two: fewer local steps take a smaller part then.
        """
        part, steps = self.part(rank, size), self.local_steps()
        if steps == 1:
            return [part]
        taking, n = steps, _count(part)
        if self.batch // 2 >= size and n // 2 < steps:
            taking = max(n // 2, 1)
        each, more = divmod(n, taking)
        lengths = [each + (i < more) for i in range(taking)] + [0] * (steps - taking)
        ends = list(itertools.accumulate(lengths))
        return [list(_cut(part, end - k, end)) for k, end in zip(lengths, ends)]

    def _divide_by_shares(self) -> List[int]:
        """How many positions each rank takes by its share, by the method of the largest remainder:
        each gets its quota rounded down, and those with the largest remainders one more; where they
        are equal, the lower ranks. Where a whole batch has two positions for each rank, pairs are
        divided so, and of an odd number the first rank with the largest share takes one more.
        """
        unit = 2 if self.batch // 2 >= len(self.shares) else 1
        units, odd = divmod(self.count(), unit)
        total = sum(self.shares)
        quotas = [divmod(units * share, total) for share in self.shares]
        parts = [quota for quota, _ in quotas]
        by_remainder = sorted(range(len(parts)), key=lambda rank: -quotas[rank][1])  # stable
        for rank in by_remainder[: units - sum(parts)]:
            parts[rank] += 1
        lengths = [part * unit for part in parts]
        lengths[self.shares.index(max(self.shares))] += odd
        return lengths

    def head(self, most: int) -> List[Span]:
        """The first positions of the next round, `most` or as many as it has."""
        return _join_touching(self._batch_spans(0, min(most, self.count())))

    def parts(self, size: int) -> List[List[Span]]:
        """The parts of all ranks of the next round."""
        _check_size(size)
        return [self.part(rank, size) for rank in range(size)]

    def commit(self, size: int, done: Sequence[bool]) -> "Cursor":
        """The cursor after the next round: the parts of those whose done is true are part of the
        result.

        The others' parts come first in the round after, and then what of `left` the round has not
        reached; with `apart` they are that round. When all of an epoch is committed, the next one
        begins.

        It is exact whatever was lost, but a result that does not fit() cannot be handed to others.
        Then leave it, and run the round again with those who are there: where this one fits, so
        does what a round without a loss makes of it.
        """
        _check_size(size)
        if len(done) != size:
            raise ValueError(
                f"a commit of {size} workers says for {len(done)} of them whether they are done"
            )
        lost = [span for rank in range(size) if not done[rank] for span in self.part(rank, size)]
        count, before = self.count(), self._count_left()
        lost += self._batch_spans(count, before)  # what the round has not reached
        left = tuple(_join_touching(lost))
        epoch, next = self.epoch, self.next + max(0, count - before)
        if next == self.samples and not left:
            epoch, next = epoch + 1, 0
        step = self.step + self.local_steps()
        return dataclasses.replace(self, epoch=epoch, step=step, next=next, left=left)

    def fits(self) -> bool:
        """Whether `pack` can encode it: `left` has at most 180 spans."""
        return len(self.left) <= MAX_LEFT

    def pack(self) -> bytes:
        """The encoding of docs/formats/cursor.md, at most 3456 bytes. Raises ValueError when the
        cursor does not fit.
        """
        if not self.fits():
            raise ValueError(
                f"{len(self.left)} spans are left over from lost workers, the limit is {MAX_LEFT}: "
                "run the step again from the cursor before it"
            )
        setting = b""
        if self.round or self.shares:
            setting = _SETTING.pack(self.round, len(self.shares))
            setting += struct.pack(f"<{len(self.shares)}H", *self.shares)
        flags = (0 if self.shuffle else _PLAIN) | (_APART if self.apart else 0)
        flags |= _HAS_SETTING if setting else 0
        head = _HEAD.pack(
            self.epoch,
            self.next,
            self.step,
            self.samples,
            self.batch,
            self.seed,
            flags,
            len(self.left),
        )
        return head + b"".join(_SPAN.pack(*span) for span in self.left) + setting

    @classmethod
    def unpack(cls, data: Union[bytes, bytearray, memoryview]) -> "Cursor":
        """Read an encoding, all of data. Raises ValueError when it is not what `pack` gives for a
        cursor that can be.
        """
        if len(data) < _HEAD.size:
            raise _invalid_cursor(f"{len(data)} bytes, the head alone has {_HEAD.size}")
        head = _Head(*_HEAD.unpack_from(data))
        if head.flags > _PLAIN | _APART | _HAS_SETTING:
            raise _invalid_cursor(f"unknown flags {head.flags:#x}")
        if head.spans > MAX_LEFT:
            raise _invalid_cursor(f"{head.spans} spans, the limit is {MAX_LEFT}")
        want = at = _HEAD.size + head.spans * _SPAN.size
        round = 0
        shares: Tuple[int, ...] = ()
        if head.flags & _HAS_SETTING:
            if len(data) < at + _SETTING.size:
                raise _invalid_cursor(f"{len(data)} bytes, the shares begin at {at}")
            round, count = _SETTING.unpack_from(data, at)
            want += _SETTING.size + 2 * count
            if count > MAX_SHARES or len(data) < want:
                raise _invalid_cursor(
                    f"{len(data)} bytes, with {count} shares; it takes up to {MAX_SHARES}"
                )
            shares = struct.unpack_from(f"<{count}H", data, at + _SETTING.size)
            if not round and not shares:
                raise _invalid_cursor("it says that it has shares or a round, and has none")
        if len(data) != want:
            raise _invalid_cursor(
                f"{len(data)} bytes, with {head.spans} spans and {len(shares)} shares it has {want}"
            )
        left = tuple(
            (first, second)
            for first, second in _SPAN.iter_unpack(memoryview(data)[_HEAD.size : at])
        )
        shuffle, apart = not head.flags & _PLAIN, bool(head.flags & _APART)
        place = (head.epoch, head.step, head.next)
        told = (shuffle, *place, left, apart, round, shares)
        cursor = cls(head.samples, head.batch, head.seed, *told)
        cursor._validate()
        return cursor

    def committed(self) -> int:
        """How many samples are committed, over all epochs."""
        return self.epoch * self.samples + self.next - self._count_left()

    def _count_left(self) -> int:
        """The number of positions in `left`."""
        return _count(self.left)

    def _batch_spans(self, lo: int, hi: int) -> Iterator[Span]:
        """The positions of the next round from the lo-th to before the hi-th, as spans."""
        return _cut((*self.left, (self.next, self.samples)), lo, hi)

    def _validate(self) -> None:
        """Raise ValueError for what no sequence of commits can give."""
        if not 1 <= self.samples <= MAX_SAMPLES:
            raise _invalid_cursor(f"{self.samples} samples; it takes 1 to 2^62")
        if not 1 <= self.batch <= MAX_SAMPLES:
            raise _invalid_cursor(f"a batch of {self.batch} samples; it takes 1 to 2^62")
        if self.epoch > MAX_SAMPLES or self.step > MAX_SAMPLES:
            raise _invalid_cursor(
                f"epoch {self.epoch} and step {self.step}; neither goes beyond 2^62"
            )
        if self.next > self.samples:
            raise _invalid_cursor(f"position {self.next} of {self.samples}")
        if self.next == self.samples and not self.left:
            raise _invalid_cursor("nothing is left of the epoch, and the next has not begun")
        end = -1
        for start, stop in self.left:
            if not end < start < stop <= self.next:
                raise _invalid_cursor(
                    f"span {start} to {stop} is empty, out of order, touches the one before or goes"
                    f" beyond {self.next}"
                )
            end = stop
        self._validate_setting()

    def _validate_setting(self) -> None:
        """Raise ValueError for a round or shares that cannot be."""
        if not 0 <= self.round <= MAX_ROUND:
            raise _invalid_cursor(f"a round of {self.round} steps; it takes up to {MAX_ROUND}")
        if len(self.shares) > MAX_SHARES:
            raise _invalid_cursor(f"{len(self.shares)} shares; it takes up to {MAX_SHARES}")
        if self.shares and not (0 <= min(self.shares) and 0 < max(self.shares) < 1 << 16):
            raise _invalid_cursor(f"shares {self.shares}; they are from 0 to 65535, and not all 0")


class _Head(NamedTuple):
    """The first fields of an encoding, in their order."""

    epoch: int
    next: int
    step: int
    samples: int
    batch: int
    seed: int
    flags: int
    spans: int


def _invalid_cursor(why: str) -> ValueError:
    """The error for what is no place in a data set, for the caller to raise."""
    return ValueError(f"this is no place in a data set: {why}")


def _check_size(size: int) -> None:
    """Raise ValueError for a number of workers below 1."""
    if size < 1:
        raise ValueError(f"{size} workers; it takes one at least")


def _count(spans: Iterable[Span]) -> int:
    """The number of positions of spans."""
    return sum(stop - start for start, stop in spans)


def _cut(spans: Iterable[Span], lo: int, hi: int) -> Iterator[Span]:
    """The positions of spans from the lo-th to before the hi-th, as spans."""
    for start, stop in spans:
        if lo >= hi:
            return
        first, second = min(lo, stop - start), min(hi, stop - start)
        if first < second:
            yield start + first, start + second
        lo, hi = lo - first, hi - second


def _join_touching(spans: Iterable[Span]) -> List[Span]:
    """The spans, those that touch as one."""
    joined: List[Span] = []
    for start, stop in spans:
        if joined and joined[-1][1] == start:
            start = joined.pop()[0]
        joined.append((start, stop))
    return joined
