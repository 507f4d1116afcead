"""Moving away from a core that another rank polls on.

Ranks that poll give their core away between looks, so they never sleep, and the kernel places a
thread anew only when it wakes. Two ranks that share a core by chance therefore stay together, each
waiting while the other computes, with an idle core beside them.
"""

from __future__ import annotations

import os

# A yield that takes this long let somebody else work on this core. The agent needs less for a small
# call.
CROWDED_NS = 30_000
# How often a thread may move: a crowd that is none of the job's ranks would be there again.
_PAUSE_NS = 20_000_000


class Core:
    """The core of its own that rank r has where there are as many cores as ranks: the r-th that
    this process may use.
    """

    def __init__(self, rank: int) -> None:
        self._rank = rank
        self._earliest = 0

    def leave(self, now: int) -> None:
        """Move the calling thread to its own core, free to leave again. `now` is
        perf_counter_ns().
        """
        if now < self._earliest or not hasattr(os, "sched_setaffinity"):
            return
        self._earliest = now + _PAUSE_NS
        allowed = os.sched_getaffinity(0)
        try:
            os.sched_setaffinity(0, {sorted(allowed)[self._rank % len(allowed)]})
        except OSError:
            # the set of allowed cores has just changed: whoever changed it has moved us
            pass
        finally:  # a Ctrl-C must not leave the thread tied to one core
            os.sched_setaffinity(0, allowed)
