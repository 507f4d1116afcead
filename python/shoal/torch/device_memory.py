"""How much memory of its GPU a worker needs, for the policy that chooses the batch."""

from __future__ import annotations

from typing import Any

import shoal
from shoal.steps import Progress

from . import cuda

# How many steps a worker makes with a batch before it tells what it needs: by then torch has all
# that it keeps for a step, and what the optimizer has made in the first one.
_STEPS = 8


class DeviceMemory:
    """Tells the agent, in a job whose batch may change, how much memory of its GPU this worker has
    needed: once some steps after the batch or the members have become others. The thread of the
    training loop uses it; it waits for nobody.
    """

    def __init__(self, job: "shoal.Job", progress: Progress):
        """Of a worker that has made no step yet."""
        self._job = job
        self._progress = progress
        self._now: Any = None  # batch, shares and members of the newest steps
        self._steps = 0  # of them

    def begin_step(self) -> None:
        """Count a step that begins, and tell the agent where it is time."""
        progress = self._progress
        if progress.batch_range is None:
            return
        now = (progress.cursor.batch, progress.cursor.shares, self._job.generation)
        if now != self._now:
            self._now, self._steps = now, 0
        self._steps += 1
        if self._steps == _STEPS:
            use = cuda.memory_use()
            if use is not None:
                self._job._backend.tell_memory(*use)
