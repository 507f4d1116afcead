"""Memory fences from pure Python.

A client stores `tail` and then loads `agent_parked`; the agent stores `agent_parked` and then loads
`tail`. Unless each side puts a full fence between its store and its load, both can read the old
value and both go to sleep.
"""

from __future__ import annotations

import ctypes
import platform
import threading
from typing import Callable

_MEMBARRIER_QUERY = 0
# Of the commands this one fences the caller in any case; a private barrier is left out while the
# process has one thread. It interrupts only processes that have registered for it, and shoal's do
# not.
_MEMBARRIER_GLOBAL_EXPEDITED = 1 << 1
_MEMBARRIER_SYSCALL = {"aarch64": 283, "riscv64": 283, "ppc64le": 365, "s390x": 356}


def _fence_by_lock() -> Callable[[], object]:
    """Return a full fence for x86-64: a function that takes and releases a lock of its own."""
    # x86-64 reorders only a store with a later load, and any locked instruction forbids that.
    # Taking a free lock is one (a compare-and-swap), and the cheapest that Python offers. `with`,
    # so that a Ctrl-C cannot leave it taken.
    lock = threading.Lock()

    def fence() -> None:
        """Take the lock, and let go of it."""
        with lock:
            pass

    return fence


def _fence_by_membarrier(machine: str) -> Callable[[], object]:
    """Return a full fence for other processors: a function that makes the system call membarrier.
    Raises OSError where the kernel has none.
    """
    # Elsewhere a lock is only acquire and release, which lets the pair pass; the system call is a
    # full barrier on the processor that calls it.
    syscall = ctypes.CDLL(None, use_errno=True).syscall
    syscall.restype = ctypes.c_long
    number = _MEMBARRIER_SYSCALL.get(machine)
    # Where the system call is missing or forbidden, the query gives -1.
    known = -1 if number is None else syscall(number, _MEMBARRIER_QUERY, 0, 0)
    if known < 0 or not known & _MEMBARRIER_GLOBAL_EXPEDITED:
        raise OSError(
            f"shoal knows no memory fence for {machine}: run it on x86-64 or on arm64 with Linux"
            " 4.16 or later"
        )

    def fence() -> None:
        """Make the system call."""
        syscall(number, _MEMBARRIER_GLOBAL_EXPEDITED, 0, 0)

    return fence


def _no_fence() -> None:
    """Nothing, where the processor keeps the order by itself."""
    pass


def fences() -> "tuple[Callable[[], object], Callable[[], object]]":
    """Return two functions for any thread, (full, order).

    `full` orders everything. `order` keeps stores after stores and loads after loads: before a word
    is published, and after a word was seen. On x86-64 the processor does that on its own.
    """
    machine = platform.machine()
    if machine in ("x86_64", "AMD64"):
        return _fence_by_lock(), _no_fence
    full = _fence_by_membarrier(machine)
    return full, full
