"""Shared results: memory that all workers of a host see, and only the agent writes."""

from __future__ import annotations

import ctypes
import mmap
import os
import threading
from collections import deque
from typing import Any, Callable, Deque, List, Optional, Tuple

from ..errors import ArenaError, ShoalError
from .arena import Drop, Place
from .arguments import wrong_type
from .fork import Mapping
from .link import Link, Refused, TooManyFiles


class SharedResult:
    """A range of this process's addresses at which it sees a shared result. The memory mapped there
    changes with the members of the job. Only `SharedResults` changes `id` and `generation`, with
    its lock held, but for `make_private`.
    """

    def __init__(self, group: int, name: str, nbytes: int) -> None:
        """Reserve addresses for nbytes. Until `SharedResults.bind` the memory there is of this
        process alone. Raises ArenaError where there is no room for it.
        """
        self.group, self.name, self.nbytes = group, name, nbytes
        try:
            self.memory = mmap.mmap(-1, max(nbytes, 1), mmap.MAP_PRIVATE)
        except (OSError, OverflowError, ValueError) as err:
            raise ArenaError(
                f"cannot map {nbytes} bytes for the shared result {name!r}: {err}. Check its shape,"
                " or raise `ulimit -v`"
            ) from None
        self.mapping = Mapping(self.memory, -1)
        self.id = 0  # the number of its segment
        # The generation whose shared memory is mapped here; 0 = memory of this process alone.
        self.generation = 0
        # A weak reference to the object that arrays over the memory keep alive.
        self.block: Callable[[], Any] = lambda: None

    def make_private(self) -> None:
        """Put memory of this process alone in the place of the shared memory, because a job of one
        writes the result itself: on the thread that makes the call that does, without a lock.
        """
        if self.generation:
            self.generation = 0
            self.mapping.make_private()


# A place in a shared result: the result, and the offset in bytes.
SharedPlace = Tuple[SharedResult, int]


class SharedResults:
    """The shared results of one worker. Methods may be called from any thread; without a link
    nothing is shared.
    """

    def __init__(self, link: Optional[Link] = None) -> None:
        """No results yet. Without a link, all of them are memory of this process."""
        self._link = link
        # Held before the link's turn. Guards `all`, and the memory of every result.
        self._lock = threading.Lock()
        # Replaced, never changed: `locate` reads it without the lock.
        self.all: List[SharedResult] = []
        # The `block` of results that nothing refers to any more. Written without the lock where the
        # last array dies, at any line of any thread.
        self._dropped: Deque[Drop] = deque()

    def find_or_make(self, group: int, name: str, nbytes: int) -> Tuple[SharedResult, memoryview]:
        """The result of a name, and its memory to read, kept as long as something refers to that. A
        new one has memory of this process alone, until `bind`. Raises ValueError where the name is
        taken by another size. It may wait for the agent, to tell it of results that are not used.
        """
        if not isinstance(name, str):
            raise wrong_type("name", name, "the name of a shared result, a text")
        if not 1 <= len(name.encode()) <= 255:
            raise ValueError(f"name={name!r}: a shared result has a name of 1 to 255 bytes")
        with self._lock:
            self._free_dropped()
            for result in self.all:
                if (result.group, result.name) == (group, name):
                    if result.nbytes != nbytes:
                        raise ValueError(
                            f"the shared result {name!r} has {result.nbytes} bytes on this rank"
                            f" already, not {nbytes}: give it another name"
                        )
                    block = result.block()
                    if block is not None:
                        return result, memoryview(block).toreadonly()
            result = SharedResult(group, name, nbytes)
            block = (ctypes.c_ubyte * nbytes).from_buffer(result.memory)
            result.block = drop = Drop(block, self._dropped)
            drop.memory = result
            self.all = [*self.all, result]
            return result, memoryview(block).toreadonly()

    def bind(self, share: SharedPlace, generation: int) -> Place:
        """Map the memory that the members of a generation share at the result's addresses. Returns
        where in the arena the share lies.

        The agent is asked, and waited for, once a generation: it may be another memory then.
        """
        result, offset = share
        if result.generation != generation:
            assert self._link is not None
            self._link.check()  # before the lock, which a forked child may have inherited taken
            with self._lock:
                self._request_memory(self._link, result, generation)
        return result.id, offset

    def _request_memory(self, link: Link, result: SharedResult, generation: int) -> None:
        """Ask the agent for the memory of a result in a generation, wait for it, and map it. The
        lock is held.
        """
        if result.generation != generation:  # unless another thread was faster
            message = {
                "type": "shared",
                "group": result.group,
                "name": result.name,
                "bytes": max(result.nbytes, 1),
            }
            try:
                reply, fds = link.request(message, "shared")
            except (Refused, TooManyFiles) as err:
                raise ArenaError(str(err)) from None
            number = reply.get("id")
            if len(fds) != 1 or not isinstance(number, int):
                for fd in fds:
                    os.close(fd)
                raise ArenaError(
                    f"the agent's answer is no shared result: {reply}, {len(fds)} descriptors"
                )
            result.mapping.map_fd(fds[0])
            result.id, result.generation = number, generation

    def locate(self, address: int, nbytes: int) -> Optional[SharedPlace]:
        """The shared result in which [address, address+nbytes) lies; None when it lies in none.
        Takes no lock.
        """
        for result in self.all:
            offset = address - result.mapping.address
            if 0 <= offset < max(result.nbytes, 1) and offset + nbytes <= result.nbytes:
                return result, offset
        return None

    def mappings(self) -> List[Mapping]:
        """The mappings of all results, which a forked child makes private. Takes no lock."""
        return [result.mapping for result in self.all]

    def _free_dropped(self) -> None:
        """Close and forget the results that nothing refers to any more, and tell the agent. The
        lock is held.
        """
        while self._dropped:
            drop = self._dropped.popleft()
            result, drop.memory = drop.memory, None  # for the result has the drop
            if result is None:
                continue
            self.all = [r for r in self.all if r is not result]
            result.mapping.close_fd()
            # A new result of the same name may have the same number.
            if result.id and self._link is not None and all(r.id != result.id for r in self.all):
                try:
                    self._link.request({"type": "free", "id": result.id}, "freed")
                except ShoalError:
                    # a lost agent has nothing to give back, and that of a group that was freed is
                    # gone
                    pass
