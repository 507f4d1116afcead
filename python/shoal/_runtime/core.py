"""Moves a thread away from a core that another rank polls on.

Ranks that poll yield their core between looks, so they never sleep, and the kernel places a thread
anew only when it wakes. Two ranks that share a core by chance therefore stay there, each waiting
while the other computes, even when another core is idle.
"""

from __future__ import annotations

import contextlib
import os

# A yield that takes this many nanoseconds let another thread work on this core. The agent needs
# less for a small call.
CROWDED_NS = 30_000
# A thread moves at most once in this many nanoseconds: threads of other programs may crowd every
# core.
_PAUSE_NS = 20_000_000


class Core:
    """The core that a rank has for its own: the r-th that this process may use for rank r, where
    there are as many cores as ranks. Any thread may use it, without a lock: where two move at once,
    both do.
    """

    def __init__(self, rank: int) -> None:
        """The core of a rank, to which a thread may move at once."""
        self._rank = rank
        self._earliest = 0  # the perf_counter_ns() before which no thread moves again

    def move_thread_here(self, now: int) -> None:
        """Move the calling thread to this core, free to leave it again; at most once in _PAUSE_NS,
        else it does nothing. `now` is perf_counter_ns().
        """
        if now < self._earliest or not hasattr(os, "sched_setaffinity"):
            return
        self._earliest = now + _PAUSE_NS
        # Refused where the set of allowed cores has just changed, and that has moved the thread,
        # and in a sandbox that forbids it.
        with contextlib.suppress(OSError):
            allowed = os.sched_getaffinity(0)
            try:
                os.sched_setaffinity(0, {sorted(allowed)[self._rank % len(allowed)]})
            finally:  # a Ctrl-C must not leave the thread tied to one core
                os.sched_setaffinity(0, allowed)
