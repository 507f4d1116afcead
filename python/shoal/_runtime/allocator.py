"""First-fit free lists over segments of bytes. Pure arithmetic: no memory, no agent, no locks."""

from __future__ import annotations

from bisect import bisect_left
from typing import List, Optional

ALIGN = 64


def round_up(n: int, step: int) -> int:
    """The smallest multiple of step that is not below n."""
    return -(-n // step) * step


class FreeList:
    """The free ranges of one segment, sorted by offset, never touching each other. It has no lock:
    the thread that calls a method holds that of the arena.
    """

    def __init__(self, size: int) -> None:
        """All of the `size` bytes are free."""
        self.size = size
        # Offsets at which the free ranges begin, and the offsets after their last bytes.
        self._starts: List[int] = [0]
        self._ends: List[int] = [size]

    def allocate(self, n: int) -> Optional[int]:
        """Take n bytes, rounded up to whole cache lines, out of the first range that has room.
        Returns their offset, a multiple of 64; None where no range has room.
        """
        n = round_up(max(n, 1), ALIGN)
        for i, start in enumerate(self._starts):
            if self._ends[i] - start >= n:
                if self._ends[i] - start == n:
                    del self._starts[i], self._ends[i]
                else:
                    self._starts[i] = start + n
                return start
        return None

    def free(self, start: int, n: int) -> None:
        """Make free what `allocate(n)` returned, and merge it with its free neighbours. Raises
        ValueError for bytes that are free already, or outside of the segment.
        """
        end = start + round_up(max(n, 1), ALIGN)
        i = bisect_left(self._starts, start)
        overlaps_left = i > 0 and self._ends[i - 1] > start
        overlaps_right = i < len(self._starts) and self._starts[i] < end
        if start < 0 or end > self.size or overlaps_left or overlaps_right:
            raise ValueError(f"freeing [{start}, {end}), which is not allocated")
        left = i > 0 and self._ends[i - 1] == start
        right = i < len(self._starts) and self._starts[i] == end
        if left and right:
            self._ends[i - 1] = self._ends[i]
            del self._starts[i], self._ends[i]
        elif left:
            self._ends[i - 1] = end
        elif right:
            self._starts[i] = start
        else:
            self._starts.insert(i, start)
            self._ends.insert(i, end)


def size_class(n: int) -> int:
    """The bytes that are staged for a request of n: the next of 1, 1.25, 1.5, 1.75 times a power of
    two, at least a page.
    """
    n = max(n, 4096)
    quarter = (1 << (n - 1).bit_length()) >> 3
    return round_up(n, quarter)
