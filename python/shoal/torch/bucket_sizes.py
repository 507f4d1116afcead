"""The size of gradient buckets, which the workers of a model find while they train."""

from __future__ import annotations

import time
from array import array
from collections import deque
from statistics import median
from typing import Deque, Dict, Optional, Tuple

import shoal

_FIRST, _MOST = 16, 1024  # steps until the next decision, at first and at most
_TRIAL = 8  # steps that a size is tried for
_WORTH = 0.97  # a new size stays if its steps take at most this part of the time before


class StepClock:
    """Times steps, from the first full bucket until the last mean is in its place, in seconds. The
    thread of the copier's tasks records, and the one that runs backward takes the medians between
    two steps.
    """

    def __init__(self) -> None:
        """A clock that has timed nothing."""
        # The times of time.perf_counter() at which the first and the newest bucket was ready.
        self._began = self._filled = 0.0
        # The seconds of the newest backward passes and steps.
        self._backward: Deque[float] = deque(maxlen=_TRIAL)
        self._took: Deque[float] = deque(maxlen=_TRIAL)

    def record_full(self, first: bool, last: bool) -> None:
        """Note the time at which a bucket of DDP's is ready; it may be the first or the last of the
        step.
        """
        self._filled = time.perf_counter()
        if first:
            self._began = self._filled
        if last:
            self._backward.append(self._filled - self._began)

    def record_end(self) -> None:
        """Note the time at which all means are in their places."""
        self._took.append(time.perf_counter() - self._began)

    def take_medians(self) -> Tuple[float, float]:
        """The seconds of a backward pass and of a whole step, as medians of the newest ones, which
        are then forgotten; 0 where there are none.
        """
        backward_s = median(self._backward) if self._backward else 0.0
        took_s = median(self._took) if self._took else 0.0
        self._backward.clear()
        self._took.clear()
        return backward_s, took_s


class BucketSizes:
    """The size of buckets, in bytes. All workers have the same one in every step.

    The agent of rank 0 proposes a size, by a model of the network that is fitted to the job's own
    all-reduces. The workers try it for a few steps. It stays if the slowest worker's steps took
    less time; else the size before comes back. All workers decide in the same steps, by numbers
    that they exchange, and ever more rarely. After a change of the members everything begins anew.
    One thread uses it, the one that runs backward.
    """

    def __init__(self, job: "shoal.Job", gradient_bytes: int, size: int) -> None:
        """Begin with buckets of `size` bytes, for gradients of `gradient_bytes`."""
        self._job, self._gradient_bytes = job, gradient_bytes
        self.size = size
        self.clock = StepClock()
        self._generation: Optional[int] = None  # the generation that the fields below are about
        self._due = 0  # the step of the next decision
        self._patience = _FIRST  # steps from that decision to the one after it
        self._before = 0  # the size before the trial under way; 0 = no trial
        self._took: Dict[int, int] = {}  # microseconds of a step, by size

    def size_for_step(self, step: "shoal.Step") -> int:
        """The size for the open step, of which nothing is submitted yet. In some steps the workers
        decide on it first, by a call that all of them make. Waits for them then.
        """
        if self._generation != self._job.generation:
            self._generation = self._job.generation
            self.clock.take_medians()
            self._due, self._patience, self._before, self._took = (
                step.number + _FIRST,
                _FIRST,
                0,
                {},
            )
        if step.number >= self._due:
            backward_s, took_s = self.clock.take_medians()
            asks = self._job.rank == 0 and not self._before
            proposal = (
                self._job._backend.best_bucket_bytes(self._gradient_bytes, self.size, backward_s)
                if asks
                else 0
            )
            known = array("q", [proposal, round(1e6 * took_s)])
            step.submit_aside(known, "max").wait()
            self._decide(*known)
            self._due = step.number + (_TRIAL if self._before else self._patience)
        return self.size

    def _decide(self, proposal: int, took_us: int) -> None:
        """Begin a trial of the proposed size (0 = none is proposed), or end the trial under way;
        `took_us` are the microseconds of a step of the slowest worker. The same on all workers.
        """
        self._took[self.size] = took_us
        if self._before:
            if took_us > _WORTH * self._took[self._before]:
                self.size = self._before
            self._before = 0
        elif proposal and proposal not in self._took:
            self._before, self.size = self.size, proposal
        else:
            self._patience = min(2 * self._patience, _MOST)
