"""When the next checkpoint is made: by steps, by time, or as the job decides."""

from __future__ import annotations

import time
from datetime import timedelta
from typing import List, Optional, Tuple, Union

from .._runtime.arguments import as_integer

_MAX_STEPS_AHEAD = 1 << 40  # steps: more than any job makes
# Seconds between two checkpoints where the program leaves that to the job, as long as its setting
# says nothing of it. The policy of shoal has the same: decide/saves.go.
_DEFAULT_SECONDS = 600.0


class Schedule:
    """When the workers make a checkpoint, which is the same on all of them. The thread of the
    training loop uses it, between two steps. Times are seconds of time.monotonic().
    """

    def __init__(self, every: Union[int, timedelta, str]) -> None:
        """A checkpoint after so many steps or so much time; "auto" = after the time that the job
        chooses. Raises TypeError or ValueError for what means nothing.
        """
        what = (
            "after how many steps the next one is made, an integer from 1 on, or after what time,"
            ' as timedelta(minutes=10), or "auto"'
        )
        self.auto = every == "auto"
        # A checkpoint is made every `_steps` steps; 0 = after every `_seconds` seconds instead.
        self._steps, self._seconds = 0, _DEFAULT_SECONDS
        if isinstance(every, timedelta):
            if every <= timedelta(0):
                raise ValueError(f"every={every!r}: {what}")
            self._seconds = every.total_seconds()
        elif not self.auto:
            self._steps = as_integer("every", every, 1, what)
        # The step before which all workers ask each other whether a checkpoint is due, and the step
        # of the newest checkpoint, -1 = there is none. Workers that join get both.
        self._next_check_step, self.newest_step = self._steps or 1, -1
        # `_interval_start` is the time from which the wait for the next checkpoint counts;
        # `_checked_time` and `_checked_step` are the time and the step at which the workers last
        # asked each other.
        self._interval_start = self._checked_time = time.monotonic()
        self._checked_step = 0

    def chosen_interval_steps(self) -> Optional[int]:
        """How many steps the job has chosen to have between checkpoints, 0 = it has chosen nothing;
        None = the program says when.
        """
        return self._steps if self.auto else None

    def get(self) -> List[int]:
        """What workers that join, and those that go on from a checkpoint, take over with `set`."""
        interval = self.chosen_interval_steps()
        return [self._next_check_step, self.newest_step] + ([interval] if interval else [])

    def set(self, value: List[int]) -> None:
        """Take over when the next checkpoint is due, from the members or from a checkpoint, and the
        steps that the job has chosen, where this program leaves that to it.
        """
        self._next_check_step, self.newest_step = value[:2]
        if self.auto:
            self._steps = value[2] if len(value) > 2 else 0

    def follow_setting(self, steps: int) -> None:
        """Make a checkpoint each so many steps from the newest one on, as the job's setting says;
        0 = it says nothing of it. Where the program says when, nothing changes.
        """
        if self.auto and steps != self._steps:
            self._steps = steps
            self._next_check_step = max(self.newest_step, 0) + steps if steps else 0

    def is_agreement_due_at(self, step: int) -> bool:
        """Whether the workers ask each other before the step after so many."""
        return step >= self._next_check_step

    def check_due(self, step: int) -> Tuple[bool, int]:
        """Whether a checkpoint is due by this worker's count or clock, and else after how many
        steps to ask again. Called before `record_agreed` or `postpone`.
        """
        now = time.monotonic()
        step_seconds = (now - self._checked_time) / max(step - self._checked_step, 1)
        steps_ahead = min(
            int((self._interval_start + self._seconds - now) / 2 / max(step_seconds, 1e-6)),
            _MAX_STEPS_AHEAD,
        )
        self._checked_time, self._checked_step = now, step
        return self._steps > 0 or now - self._interval_start >= self._seconds, max(steps_ahead, 1)

    def record_agreed(self, step: int, saved: bool) -> None:
        """Note that the workers have agreed on a checkpoint after so many steps, and whether there
        was memory for it.
        """
        self._next_check_step, self._interval_start = step + (self._steps or 1), self._checked_time
        if saved:
            self.newest_step = step

    def postpone(self, step: int, steps: int) -> None:
        """Note that there is none yet, and that the workers ask again so many steps later."""
        self._next_check_step = step + steps

    def restart_interval(self, step: int) -> None:
        """Wait for the next checkpoint as if this process had made the one after so many steps."""
        self._next_check_step, self.newest_step = step + (self._steps or 1), step
        self._interval_start = self._checked_time = time.monotonic()
        self._checked_step = step
