"""What a worker tells its agent of a training step, with the call that commits it."""

from __future__ import annotations

import math
import struct
from time import perf_counter_ns

# Microseconds of data, compute and update, and the loss: bytes 176 to 191 of a descriptor.
_TIMES_AND_LOSS = struct.Struct("<IIIf")
NO_STEP_TIMES = bytes(_TIMES_AND_LOSS.size)  # what calls tell that commit no step
_MOST_US = (1 << 32) - 1
_MOST_LOSS = 3e38  # what a float32 holds


class StepTimer:
    """Where the time of a step goes, by the clock of this worker, and its loss. Times are
    nanoseconds; 0 = it is not known. The thread of the training loop uses it, and the one that
    commits the step; it has no lock.

    A step is asked for (`record_step_request`), its samples come (`add_data_wait`), its body begins
    (`record_body_start`), its last gradient is there (`record_gradients_ready`, or where that is
    not called `pack`), and its average is back (`record_average_done`); what follows up to the next
    `record_step_request` is the update.
    """

    __slots__ = (
        *("_body_start", "_gradients_ready", "_reported", "_average_done", "_data_wait"),
        *("_update", "_loss", "_earlier_compute", "last_step_seconds"),
    )

    def __init__(self) -> None:
        """Without a step."""
        self._body_start = 0  # when the body of the step under way began
        # When its last gradient was there, where that is not when it is told.
        self._gradients_ready = 0
        self._reported = 0  # when its last gradient was there, as `pack` told; 0 = not told yet
        self._average_done = 0  # when its average was back
        self._data_wait = 0  # waited for samples of the step under way
        self._update = 0  # of the step before
        self._earlier_compute = 0  # computed in the local steps before this one of its round
        self._loss = 0.0  # reported last; 0 = none was, since the step before
        # Of data, compute and update in the step before.
        self.last_step_seconds = (0.0, 0.0, 0.0)

    def record_step_request(self) -> None:
        """Note that the loop asks for its next step."""
        self._update = perf_counter_ns() - self._average_done if self._average_done else 0
        ready = self._reported or self._gradients_ready or self._average_done
        in_step = ready - self._body_start if ready and self._body_start else 0
        compute = self._earlier_compute + in_step
        self.last_step_seconds = (self._data_wait / 1e9, compute / 1e9, self._update / 1e9)
        self._body_start = self._gradients_ready = self._reported = self._average_done = 0
        self._data_wait = self._earlier_compute = 0

    def record_local_step_request(self) -> None:
        """Note that the loop asks for the next local step of the round under way. All that it does
        in a local step before the last is to compute, and what is told is of the whole round.
        """
        self._earlier_compute += perf_counter_ns() - self._body_start if self._body_start else 0
        self._body_start = self._gradients_ready = 0

    def add_data_wait(self, since_ns: int) -> None:
        """Note that the loop has waited for samples since a time of perf_counter_ns()."""
        self._data_wait += perf_counter_ns() - since_ns

    def add_partner_wait(self, since_ns: int) -> None:
        """Note that the step under way has waited for another worker since a time of
        perf_counter_ns(), which is not to compute.
        """
        self._body_start += perf_counter_ns() - since_ns if self._body_start else 0

    def record_body_start(self) -> None:
        """Note that the body of the loop begins a step."""
        self._body_start = perf_counter_ns()
        self._gradients_ready = 0

    def record_gradients_ready(self) -> None:
        """Note that the last gradient of the step is there, though the call that ends the step
        comes later. Only the first call in a step counts.
        """
        self._gradients_ready = self._gradients_ready or perf_counter_ns()

    def record_average_done(self) -> None:
        """Note that the average of the step is back."""
        self._average_done = perf_counter_ns()

    def record_loss(self, loss: float) -> None:
        """Note the loss of this worker's samples, for the next `pack`. One that no float32 holds is
        left out.
        """
        if math.isfinite(loss) and abs(loss) < _MOST_LOSS:
            self._loss = loss

    def pack(self) -> bytes:
        """What is told of the step under way, whose last gradient is there, as the bytes of a
        descriptor.
        """
        self._reported = (self._gradients_ready or perf_counter_ns()) if self._body_start else 0
        compute = self._reported - self._body_start + self._earlier_compute
        loss, self._loss = self._loss, 0.0
        times = [min(ns // 1000, _MOST_US) for ns in (self._data_wait, compute, self._update)]
        return _TIMES_AND_LOSS.pack(*times, loss)
