"""The place of a job in its data: which samples the next step trains on, who takes which, and which
are committed.

The same as the Go package data/cursor, bit by bit; docs/formats/cursor.md has the numbers. Pure: a
`Cursor` is a value, a commit gives the next one, and equal cursors on different hosts give equal
batches.
"""

from __future__ import annotations

import dataclasses
import struct
from typing import TYPE_CHECKING, Any, Iterable, Iterator, List, NamedTuple, Sequence, Tuple, Union

if TYPE_CHECKING:
    import numpy

# Indices of samples: an int64 array, or a list without NumPy.
Samples = Union[List[int], "numpy.ndarray[Any, numpy.dtype[numpy.int64]]"]

Span = Tuple[int, int]  # the positions from the first up to, not including, the second

MAX_SAMPLES = 1 << 62  # the largest number of samples of a data set, and of a step
MAX_LEFT = 180  # the largest number of spans that an encoding has room for
MAX_SHARES = 256  # the largest number of ranks among which work can be divided unequally

_WORD = (1 << 64) - 1
# The constants of splitmix64 (Steele, Lea and Flood, 2014).
_GOLDEN = 0x9E3779B97F4A7C15
_FIRST = 0xBF58476D1CE4E5B9
_SECOND = 0x94D049BB133111EB
_ROUNDS = 8  # rounds of the Feistel network

_HEAD = struct.Struct("<6Q2I")  # the fields of _Head
_SPAN = struct.Struct("<2Q")
_SETTING = struct.Struct("<2I")  # round, and the number of shares
# Flags of an encoding: not shuffled; what is left is a batch of its own; round and shares follow
# the spans.
_PLAIN, _APART, _HAS_SETTING = 1, 2, 4


def _scramble(z: int) -> int:
    """The steps of splitmix64's mixing but the last, which does not reach the upper bits that a
    round takes.
    """
    z = (z ^ z >> 30) * _FIRST & _WORD
    return (z ^ z >> 27) * _SECOND & _WORD


def _mix(z: int) -> int:
    """splitmix64's mixing of 64 bits."""
    z = _scramble(z & _WORD)
    return z ^ z >> 31


def random_word(seed: int, epoch: int, place: int) -> int:
    """64 random bits that belong to a place of an epoch: always the same for the same three."""
    return _mix(_mix(_mix(seed + _GOLDEN) ^ epoch + _GOLDEN) ^ place + _GOLDEN)


class Order:
    """Which sample stands at which position of one epoch: a permutation of range(samples), computed
    and not stored. It is not changed after `__init__`: any thread may use it.

    A Feistel network over the smallest power of four that holds all samples, walked until it comes
    back into them. Another seed or another epoch gives an unrelated order; without `shuffle`
    position i holds sample i.
    """

    __slots__ = ("samples", "_half", "_keys")

    def __init__(self, samples: int, seed: int = 0, epoch: int = 0, shuffle: bool = True) -> None:
        """The order of the samples in an epoch, which follows from the seed. Raises ValueError for
        a number of samples outside of 0 to 2^62.
        """
        if not 0 <= samples <= MAX_SAMPLES:
            raise ValueError(f"an order of {samples} samples; it takes 0 to 2^62")
        self.samples = samples
        # Bits of one half of the network's domain; at least 1.
        self._half = max(1, (max(samples - 1, 0).bit_length() + 1) // 2)
        self._keys: List[int] = []  # keys of the network's rounds; empty = not shuffled
        if shuffle:
            state = _mix(seed + _GOLDEN)
            state = _mix((state ^ epoch) + _GOLDEN)
            self._keys = [_mix(state + i * _GOLDEN) for i in range(1, _ROUNDS + 1)]

    def at(self, position: int) -> int:
        """The sample at a position. Raises IndexError when the position is not in
        range(samples).
        """
        self._check_range(position, position + 1)
        if not self._keys:
            return position
        position = self._permute(position)
        while position >= self.samples:
            position = self._permute(position)
        return position

    def take(self, spans: Iterable[Span]) -> "Samples":
        """The samples at the positions of all spans, one after the other: int64 with NumPy, a list
        without.

        Raises IndexError when a position is not in range(samples).
        """
        spans = list(spans)
        for start, stop in spans:
            self._check_range(start, stop)
        try:
            import numpy
        except ImportError:
            return [self.at(position) for start, stop in spans for position in range(start, stop)]
        parts = [numpy.arange(start, stop, dtype=numpy.int64) for start, stop in spans]
        samples = numpy.concatenate(parts) if parts else numpy.empty(0, numpy.int64)
        if self._keys:
            self._permute_all(samples.view(numpy.uint64))
        return samples

    def _check_range(self, start: int, stop: int) -> None:
        """Raise IndexError for positions beyond the order."""
        if not 0 <= start <= stop <= self.samples:
            raise IndexError(f"positions {start} to {stop} of an order of {self.samples} samples")

    def _permute(self, x: int) -> int:
        """What the network makes of x: a permutation of its domain, whose values may lie outside
        the samples.
        """
        half, mask = self._half, (1 << self._half) - 1
        left, right = x >> half, x & mask
        for key in self._keys:
            left, right = right, left ^ _scramble(right ^ key) >> (64 - half)
        return left << half | right

    def _permute_all(self, walking: Any) -> None:
        """Replace every element of a uint64 array by `at` of it, in place."""
        import numpy
        from numpy import uint64

        # Plain ints would turn uint64 arrays into float64 ones before NumPy 2.
        half, mask, down = (
            uint64(self._half),
            uint64((1 << self._half) - 1),
            uint64(64 - self._half),
        )
        keys = [uint64(key) for key in self._keys]
        x, outside = walking, None
        while x.size:
            left, right = x >> half, x & mask
            for key in keys:
                z = right ^ key
                z ^= z >> uint64(30)
                z *= uint64(_FIRST)
                z ^= z >> uint64(27)
                z *= uint64(_SECOND)
                z >>= down
                left, right = right, left ^ z
            x = left << half | right
            if outside is None:
                walking[:] = x
                outside = numpy.flatnonzero(x >= uint64(self.samples))
            else:
                walking[outside] = x
                outside = outside[x >= uint64(self.samples)]
            x = walking[outside]


@dataclasses.dataclass(frozen=True)
class Cursor:
    """A place in the data, made by `Cursor.start`, `unpack` and `commit`. It never changes, so any
    thread may use it; the methods only compute.

    The positions below `next` that are not in `left` are committed. `left` goes first into the next
    batch, or with `apart` is that batch. It is never larger than the largest batch since nothing
    was left. Where `with_batch` has made the batch smaller than `left`, a batch takes the first
    positions of it, and the rest stays for those after. `left` has at most as many spans as runs of
    neighbouring ranks were lost since nothing was left (the Go package has the proof).
    """

    samples: int  # number of samples in an epoch
    # Number of samples in a step, over all workers. Only the last step of an epoch has fewer, and
    # with `apart` one that completes the one before.
    batch: int
    seed: int = 0
    shuffle: bool = True
    epoch: int = 0  # the epoch of the next step, from 0 on
    step: int = 0  # number of committed steps, over all epochs
    next: int = 0  # the first position of the epoch that was never handed out
    # Positions that were handed out and are not committed, because their worker was lost: spans in
    # ascending order that do not touch each other.
    left: Tuple[Span, ...] = ()
    # What is left is a batch of its own, so that all batches hold the same samples as they do
    # without a loss. Then the step after a loss completes the one before.
    apart: bool = False
    # Number of local steps from one commit to the next: 0, as the program says, or 1.
    round: int = 0
    # The part of the work of each rank, in whole numbers that are compared with each other; () =
    # all have the same, and so they have where their number is another one than that of the ranks.
    shares: Tuple[int, ...] = ()

    @classmethod
    def start(
        cls, samples: int, batch: int, seed: int = 0, shuffle: bool = True, apart: bool = False
    ) -> "Cursor":
        """The start of the first epoch. Raises ValueError when samples or batch is below 1 or above
        2^62.
        """
        cursor = cls(samples, batch, seed, shuffle, apart=apart)
        if not 0 <= seed <= _WORD:
            raise ValueError(f"seed {seed}; it takes 0 to 2^64-1")
        cursor._validate()
        return cursor

    def same_samples(self, other: "Cursor") -> bool:
        """Whether both are places in the same data but for the batch: as many samples, in the same
        order.
        """
        mine, theirs = ((c.samples, c.seed, c.shuffle) for c in (self, other))
        return mine == theirs

    def with_batch(self, batch: int) -> "Cursor":
        """The same place with batches of so many samples from the next step on. Whatever the
        batches are, each sample is trained on once. Where not takes_batch(), a batch that lost
        workers have left incomplete is completed all the same, by the next step. Raises ValueError
        for a batch below 1 or above 2^62.
        """
        if not 1 <= batch <= MAX_SAMPLES:
            raise ValueError(f"a batch of {batch} samples; it takes 1 to 2^62")
        return dataclasses.replace(self, batch=batch)

    def with_shares(self, shares: Sequence[int]) -> "Cursor":
        """The same place with the next batches divided by other shares. The result of a step does
        not depend on them, but for rounding: each sample counts as much. Raises ValueError where
        they cannot be.
        """
        cursor = dataclasses.replace(self, shares=tuple(shares))
        cursor._validate_setting()
        return cursor

    def takes_batch(self) -> bool:
        """Whether the next step can be the first of another batch. With `apart` it is not where a
        batch is incomplete: who trains takes the steps up to its end as one.
        """
        return not (self.apart and self.left)

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
        """How many samples the next batch has over all workers: `batch`, or what the epoch still
        has when that is less. With `apart` it is what is left, if anything is.
        """
        left = self._count_left()
        if self.apart and left:
            return left
        return min(self.batch, left + self.samples - self.next)

    def part(self, rank: int, size: int) -> List[Span]:
        """The positions that a rank takes of the next batch, ascending.

        The batch is the first count() of those in `left` and then those from `next` on, up to the
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
        """The first positions of the next batch, `most` or as many as it has."""
        return _join_touching(self._batch_spans(0, min(most, self.count())))

    def parts(self, size: int) -> List[List[Span]]:
        """The parts of all ranks of the next batch."""
        _check_size(size)
        return [self.part(rank, size) for rank in range(size)]

    def commit(self, size: int, done: Sequence[bool]) -> "Cursor":
        """The cursor after the step of the next batch: the parts of those whose done is true are
        part of the result.

        The others' parts come first in the batch after, and then what of `left` the batch has not
        reached; with `apart` they are that batch. When all of an epoch is committed, the next one
        begins.

        It is exact whatever was lost, but a result that does not fit() cannot be handed to others.
        Then leave it, and run the step again with those who are there: where this one fits, so does
        what a step without a loss makes of it.
        """
        _check_size(size)
        if len(done) != size:
            raise ValueError(
                f"a commit of {size} workers says for {len(done)} of them whether they are done"
            )
        lost = [span for rank in range(size) if not done[rank] for span in self.part(rank, size)]
        count, before = self.count(), self._count_left()
        lost += self._batch_spans(count, before)  # what the batch has not reached
        left = tuple(_join_touching(lost))
        epoch, next = self.epoch, self.next + max(0, count - before)
        if next == self.samples and not left:
            epoch, next = epoch + 1, 0
        return dataclasses.replace(self, epoch=epoch, step=self.step + 1, next=next, left=left)

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
        return sum(stop - start for start, stop in self.left)

    def _batch_spans(self, lo: int, hi: int) -> Iterator[Span]:
        """The positions of the next batch from the lo-th to before the hi-th, as spans."""
        for start, stop in (*self.left, (self.next, self.samples)):
            if lo >= hi:
                return
            first, second = min(lo, stop - start), min(hi, stop - start)
            if first < second:
                yield start + first, start + second
            lo, hi = lo - first, hi - second

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
        if self.round not in (0, 1):
            raise _invalid_cursor(f"{self.round} steps from commit to commit; it takes 1")
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


def _join_touching(spans: Iterable[Span]) -> List[Span]:
    """The spans, those that touch as one."""
    joined: List[Span] = []
    for start, stop in spans:
        if joined and joined[-1][1] == start:
            start = joined.pop()[0]
        joined.append((start, stop))
    return joined
