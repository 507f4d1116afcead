"""The order of the samples of an epoch: which one stands at which position. It is the same as that
of the Go package data/cursor, bit by bit; docs/formats/cursor.md has the numbers.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Iterable, List, Tuple, Union

if TYPE_CHECKING:
    import numpy

# Indices of samples: an int64 array, or a list without NumPy.
Samples = Union[List[int], "numpy.ndarray[Any, numpy.dtype[numpy.int64]]"]

Span = Tuple[int, int]  # the positions from the first up to, not including, the second

MAX_SAMPLES = 1 << 62  # the largest number of samples of a data set, and of a step

_WORD = (1 << 64) - 1
# The constants of splitmix64 (Steele, Lea and Flood, 2014).
_GOLDEN = 0x9E3779B97F4A7C15
_FIRST = 0xBF58476D1CE4E5B9
_SECOND = 0x94D049BB133111EB
_ROUNDS = 8  # rounds of the Feistel network


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
