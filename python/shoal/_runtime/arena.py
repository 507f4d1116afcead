"""The worker's side of the arena: segments mapped from the agent, buffers in them, staging for
foreign memory.
"""

from __future__ import annotations

import ctypes
import mmap
import os
import threading
import weakref
from bisect import bisect_right
from collections import deque
from typing import Any, Callable, Deque, Dict, List, Optional, Tuple

from ..errors import ArenaError, ShoalError
from .allocator import FreeList, round_up, size_class
from .fork import Mapping
from .link import Link, Refused, TooManyFiles
from .protocol import HUGE_PAGE, PAGE

POOL_BYTES = 16 << 20  # bytes of a segment of many buffers; a larger buffer has one of its own
# A place in the arena: segment id and offset in bytes.
Place = Tuple[int, int]


class Segment:
    """One mapped memfd of the agent. Only the arena has it: its lock guards the free list and
    `unpin`, and the other fields are not changed after `__init__`.
    """

    def __init__(self, number: int, size: int, fd: int, pooled: bool, lazy: bool) -> None:
        """Map the agent's memfd `fd` of `size` bytes, with `lazy` before it has pages. The segment
        owns the descriptor from now on. Raises ArenaError, and closes the descriptor, where there
        is no room for it.
        """
        try:
            self.memory = mmap.mmap(-1, size + HUGE_PAGE, mmap.MAP_PRIVATE)
        except (OSError, ValueError) as err:
            os.close(fd)
            raise ArenaError(
                f"cannot map {size} bytes of shared memory: {err}. Free arrays, or raise"
                " `ulimit -v`"
            ) from None
        self.id = number
        self.size = size
        # Whether the segment holds many buffers and is kept. Else it has one, and is freed with it.
        self.pooled = pooled
        # at a multiple of a huge page: else each would be mapped as 512 small pages
        self.mapping = Mapping(self.memory, -1, HUGE_PAGE)
        self.mapping.map_fd(fd, writable=True, populate=not lazy)
        self.base = self.mapping.address
        self.free_list = FreeList(size)
        # Called with the base before the segment is unmapped; None = the segment is not pinned.
        self.unpin: Optional[Callable[[int], None]] = None


class Staging:
    """Arena memory that holds a copy of foreign memory during a call. Who borrowed it with
    `Arena.stage` gives it back with `Arena.give_back`. The fields are not changed.
    """

    __slots__ = ("place", "address", "size")

    def __init__(self, place: Place, address: int, size: int) -> None:
        """Memory of `size` bytes at a place of the arena and its address here."""
        self.place = place
        self.address = address
        self.size = size


class Drop(weakref.ref[Any]):
    """A reference to an object over memory that is free once the object is gone, when it appends
    itself to a deque. Who made it keeps it until then.

    A finalizer of Python's own would run Python code: a Ctrl-C there is printed and lost, and so is
    the memory.
    """

    # Which memory it is, as who made it says; None where that was interrupted before.
    memory: Any = None

    def __new__(cls, block: Any, dropped: Deque[Drop]) -> Drop:
        """A reference to `block` that goes into `dropped`."""
        return super().__new__(cls, block, dropped.append)  # type: ignore[arg-type]


class Arena:
    """All segments of one worker. Methods may be called from any thread.

    Lock order: the arena's lock, then the link's turn. Where an array dies none is taken: that
    may be inside either.
    """

    def __init__(self, link: Link, settle: Callable[[], None]) -> None:
        """An arena without segments. `settle` is called, with the lock held, when memory is
        short.
        """
        self._link = link
        self._settle = settle  # lets go of the arrays of calls that are complete
        # Guards the table, and the segments in it; held while the agent is asked for one.
        self._lock = threading.Lock()
        # Base addresses, ascending, and their segments. Replaced, never changed: `locate` reads it
        # without the lock.
        self._table: Tuple[List[int], List[Segment]] = ([], [])
        # Memory that is in use, as segment, offset and bytes, by the id() of what refers to it.
        self._used: Dict[int, Drop] = {}
        # Of these, what is to be freed. Written where the last array dies, at any line of any
        # thread.
        self._dropped: Deque[Drop] = deque()
        # Staging that no call uses, by size in bytes. Used without the lock, by atomic operations.
        self._spare: Dict[int, List[Staging]] = {}

    def locate(self, address: int, nbytes: int) -> Optional[Place]:
        """The segment and offset at which [address, address+nbytes) lies; None for foreign memory.
        Takes no lock.
        """
        bases, segments = self._table
        i = bisect_right(bases, address) - 1
        if i < 0:
            return None
        segment = segments[i]
        offset = address - segment.base
        if offset >= segment.size or offset + nbytes > segment.size:
            return None
        return segment.id, offset

    def buffer(self, nbytes: int, lazy: bool = False) -> Any:
        """A new writable object of nbytes with the buffer protocol, aligned to 64 bytes. The caller
        owns it; the memory is freed when nothing refers to it.

        Its bytes are whatever the last user left. Where no segment has room, this asks the agent
        for another one and waits for it. With `lazy`, memory of POOL_BYTES or more comes before its
        pages do.
        """
        self._link.check()  # before the lock, which a forked child may have inherited taken
        with self._lock:
            segment, offset = self._allocate(nbytes, lazy)
            block = (ctypes.c_ubyte * nbytes).from_buffer(
                segment.memory, segment.mapping.first + offset
            )
            drop = Drop(block, self._dropped)
            drop.memory = segment, offset, nbytes
            self._used[id(drop)] = drop
        return block

    def copy_in(self, text: bytes) -> memoryview:
        """A new copy of some bytes in the arena, for the agent to read. It lies there as long as
        the caller keeps the result.
        """
        block = memoryview(self.buffer(len(text))).cast("B")
        block[:] = text
        return block

    def extent(self, memory: memoryview) -> Dict[str, int]:
        """The segment, offset and length of arena memory, as messages to the agent name it; zeros
        for memory of no bytes.
        """
        if not memory.nbytes:
            return {"id": 0, "offset": 0, "bytes": 0}
        place = self.locate(ctypes.addressof(ctypes.c_ubyte.from_buffer(memory)), memory.nbytes)
        assert place is not None
        return {"id": place[0], "offset": place[1], "bytes": memory.nbytes}

    def stage(self, nbytes: int) -> Staging:
        """Borrow at least nbytes, which nobody else uses until they are given back. A steady
        program gets the same few buffers again and again; for a new one the agent may be asked and
        waited for.
        """
        size = size_class(nbytes)
        spare = self._spare.get(size)
        if spare:
            try:
                return spare.pop()
            except IndexError:
                pass  # another thread was faster
        self._link.check()
        with self._lock:
            segment, offset = self._allocate(size)
        return Staging((segment.id, offset), segment.base + offset, size)

    def give_back(self, staging: Staging) -> None:
        """Put memory from `stage` with the spare memory, once no call uses it. Takes no lock."""
        self._spare.setdefault(staging.size, []).append(staging)

    def pin(
        self, address: int, pin: Callable[[int, int], None], unpin: Callable[[int], None]
    ) -> None:
        """Have the segment that holds an address pinned for a device, once: pin(base, bytes) now,
        unpin(base) before it is unmapped, both with the lock held, so they must not ask for arena
        memory. What `pin` raises is raised, and the segment may be pinned later.
        """
        with self._lock:
            bases, segments = self._table
            segment = segments[bisect_right(bases, address) - 1]
            if segment.unpin is None:
                pin(segment.base, segment.size)
                segment.unpin = unpin

    def mappings(self) -> List[Mapping]:
        """The mappings of all segments, which a forked child makes private. Takes no lock."""
        return [s.mapping for s in self._table[1]]

    def _allocate(self, nbytes: int, lazy: bool = False) -> Tuple[Segment, int]:
        """Allocate memory; returns its segment and offset. Where no segment has room, this frees
        what is not used any more, and then asks the agent for a segment. The lock is held.
        """
        self._free_dropped()
        found = self._allocate_in_pool(nbytes)
        if found is None:
            self._settle()
            self._free_dropped()
            found = self._allocate_in_pool(nbytes)
        if found is None:
            segment = self._add_segment(nbytes, lazy and nbytes >= POOL_BYTES)
            offset = segment.free_list.allocate(nbytes)
            assert offset is not None
            found = segment, offset
        return found

    def _allocate_in_pool(self, nbytes: int) -> Optional[Tuple[Segment, int]]:
        """Allocate memory in a segment of many buffers that is there; None where none has room. The
        lock is held.
        """
        if nbytes >= POOL_BYTES:
            return None  # a segment of its own, so that freeing it gives memory back
        for segment in self._table[1]:
            if segment.pooled:
                offset = segment.free_list.allocate(nbytes)
                if offset is not None:
                    return segment, offset
        return None

    def _free_dropped(self) -> None:
        """Free the memory that is in `_dropped`. The lock is held, and the agent may be told."""
        while self._dropped:
            drop = self._dropped.popleft()
            self._used.pop(id(drop), None)
            if drop.memory is not None:
                segment, offset, nbytes = drop.memory
                segment.free_list.free(offset, nbytes)
                if not segment.pooled:
                    self._remove_segment(segment)

    def _add_segment(self, nbytes: int, lazy: bool) -> Segment:
        """Ask the agent for another segment, wait for the answer, and put it in the table. The lock
        is held.
        """
        size = max(POOL_BYTES, round_up(nbytes, PAGE))
        if size >> 63:
            raise ArenaError(
                f"an array of {nbytes} bytes is larger than any memory: check its shape"
            )
        try:
            reply, fds = self._link.request(
                {"type": "segment", "bytes": size, **({"later": True} if lazy else {})}, "segment"
            )
        except Refused as err:
            raise ArenaError(str(err)) from None
        except TooManyFiles as err:
            self._return_to_agent(err.reply["id"])
            raise ArenaError(str(err)) from None
        number, got = reply.get("id"), reply.get("bytes")
        if len(fds) != 1 or not isinstance(number, int) or not isinstance(got, int) or got < size:
            for fd in fds:
                os.close(fd)
            raise ArenaError(
                f"the agent's answer to a request for {size} bytes is not a segment: {reply},"
                f" {len(fds)} descriptors. Install the package and the `shoal` binary from the same"
                " release"
            )
        try:
            segment = Segment(number, size, fds[0], nbytes < POOL_BYTES, lazy)
        except ArenaError:
            self._return_to_agent(number)
            raise
        bases, segments = self._table
        at = bisect_right(bases, segment.base)
        self._table = (
            bases[:at] + [segment.base] + bases[at:],
            segments[:at] + [segment] + segments[at:],
        )
        return segment

    def _remove_segment(self, segment: Segment) -> None:
        """Take a segment out of the table, unmap it, and tell the agent. The lock is held."""
        bases, segments = self._table
        at = segments.index(segment)
        self._table = (bases[:at] + bases[at + 1 :], segments[:at] + segments[at + 1 :])
        if segment.unpin is not None:
            segment.unpin(segment.base)
        segment.mapping.close_fd()
        self._return_to_agent(segment.id)

    def _return_to_agent(self, number: int) -> None:
        """Tell the agent that a segment is not used here, by its id. The lock is held."""
        try:
            self._link.request({"type": "free", "id": number}, "freed")
        except ShoalError:
            # a lost agent has nothing to give back, and a refusal only lasts until the worker
            # leaves
            pass
