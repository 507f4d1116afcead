"""Forked children: a job belongs to the process that joined it.

A child (a DataLoader worker, say) inherits the arena as shared memory and the control socket as an
open descriptor. Left alone it could write into its parent's gradients, and its copy of the socket
would hide the parent's death from the agent. So right after the fork, before any other Python code
of the child, its mappings turn private and its descriptors close. `Mapping`, the shared mapping of
the arena, is here because it can turn private.
"""

from __future__ import annotations

import ctypes
import mmap
import os
import weakref
from typing import Any

from ..errors import ArenaError

_MAP_FIXED = 0x10
_MAP_POPULATE = 0x8000
# Looked up now: a forked child must not load libraries, the loader's lock may be held by a thread
# that is gone.
_libc = ctypes.CDLL(None, use_errno=True)
_mmap = _libc.mmap
_mmap.restype = ctypes.c_void_p
_mmap.argtypes = [
    ctypes.c_void_p,
    ctypes.c_size_t,
    ctypes.c_int,
    ctypes.c_int,
    ctypes.c_int,
    ctypes.c_long,
]


class Mapping:
    """A shared mapping, its address, and the descriptor that can map it once more. It has no lock,
    so that a forked child can call `make_private`: one thread at a time uses it, which holds the
    lock of its owner.
    """

    def __init__(self, memory: mmap.mmap, fd: int, spare: int = 0) -> None:
        """`memory` has `spare` extra bytes, so that the mapping can begin at a multiple of `spare`,
        which is `first` bytes into it.
        """
        start = ctypes.addressof(ctypes.c_ubyte.from_buffer(memory))
        self.first = -start % spare if spare else 0
        self.size = len(memory) - spare
        self.address = start + self.first
        self._fd = fd  # owned; -1 = none

    def map_fd(self, fd: int, writable: bool = False, populate: bool = True) -> None:
        """Map the memory of a descriptor at this address, shared, and with `populate` its pages at
        once. The mapping owns the descriptor from now on. Raises ArenaError, and closes it, where
        that fails.
        """
        access = mmap.PROT_READ | mmap.PROT_WRITE if writable else mmap.PROT_READ
        flags = mmap.MAP_SHARED | _MAP_FIXED | (_MAP_POPULATE if populate else 0)
        if _mmap(self.address, self.size, access, flags, fd, 0) != self.address:
            os.close(fd)
            raise ArenaError(
                f"cannot map {self.size} bytes of shared memory: {os.strerror(ctypes.get_errno())}."
                " Free arrays, or raise `ulimit -v`"
            )
        self.close_fd()
        self._fd = fd

    def make_private(self) -> None:
        """Replace the shared pages by private ones at the same address: reads go on, and writes are
        seen by this process only.
        """
        if self._fd < 0:
            return
        flags = mmap.MAP_PRIVATE | _MAP_FIXED
        if (
            _mmap(self.address, self.size, mmap.PROT_READ | mmap.PROT_WRITE, flags, self._fd, 0)
            != self.address
        ):
            # No memory to promise for copies (strict overcommit): then reads go on and a write
            # faults.
            _mmap(self.address, self.size, mmap.PROT_READ, flags, self._fd, 0)
        self.close_fd()

    def close_fd(self) -> None:
        """Close the descriptor; the mapping stays as long as its memory is referred to."""
        fd, self._fd = self._fd, -1
        if fd >= 0:
            os.close(fd)


# Objects with an `after_fork` method, which must take no lock.
_live: "weakref.WeakSet[Any]" = weakref.WeakSet()


def register(owner: Any) -> None:
    """Call owner.after_fork() in every child that this process forks from now on. The owner is not
    kept alive. `register` and `unregister` are for any thread.
    """
    _live.add(owner)


def unregister(owner: Any) -> None:
    """Undo `register`: the owner's descriptors are closed, and their numbers may be another's."""
    _live.discard(owner)


def _run_after_fork() -> None:
    """Call `after_fork` of all registered owners, in a child that has just been forked."""
    for owner in list(_live):
        owner.after_fork()
    _live.clear()


if hasattr(os, "register_at_fork"):  # not on Windows, where the package can still be a job of one
    os.register_at_fork(after_in_child=_run_after_fork)
