"""What a worker tells its agent of a training step, with the call that commits it."""

from __future__ import annotations

import math
import struct
from time import perf_counter_ns

# Microseconds of data, compute and update, and the loss: bytes 176 to 191 of a descriptor.
_TOLD = struct.Struct("<IIIf")
NOTHING = bytes(_TOLD.size)  # what calls tell that commit no step
_MOST_US = (1 << 32) - 1
_MOST_LOSS = 3e38  # what a float32 holds


class Told:
    """Where the time of a step goes, by the clock of this worker, and its loss. Times are
    nanoseconds; 0 = it is not known. The thread of the training loop uses it, and the one that
    commits the step; it has no lock.

    A step is asked for (`asked`), its samples come (`waited`), its body begins (`given`), its last
    gradient is there (`computed`, or where that is not called `pack`), and its average is back
    (`averaged`); what follows up to the next `asked` is the update.
    """

    __slots__ = (
        *("_given", "_computed", "_ready", "_averaged", "_data", "_update", "_loss", "_before"),
        "last",
    )

    def __init__(self) -> None:
        """Without a step."""
        self._given = 0  # when the body of the step under way began
        self._computed = 0  # when its last gradient was there, where that is not when it is told
        self._ready = 0  # when it was told that its last gradient was there; 0 = it was not
        self._averaged = 0  # when its average was back
        self._data = 0  # waited for samples of the step under way
        self._update = 0  # of the step before
        self._before = 0  # computed in the local steps before this one of its round
        self._loss = 0.0  # reported last; 0 = none was, since the step before
        self.last = (0.0, 0.0, 0.0)  # seconds of data, compute and update in the step before

    def asked(self) -> None:
        """Note that the loop asks for its next step."""
        self._update = perf_counter_ns() - self._averaged if self._averaged else 0
        ready = self._ready or self._computed or self._averaged
        compute = self._before + (ready - self._given if ready and self._given else 0)
        self.last = (self._data / 1e9, compute / 1e9, self._update / 1e9)
        self._given = self._computed = self._ready = self._averaged = self._data = self._before = 0

    def asked_in_round(self) -> None:
        """Note that the loop asks for the next local step of the round under way. All that it does
        in a local step before the last is to compute, and what is told is of the whole round.
        """
        self._before += perf_counter_ns() - self._given if self._given else 0
        self._given = self._computed = 0

    def waited(self, since: int) -> None:
        """Note that the loop has waited for samples since a time of perf_counter_ns()."""
        self._data += perf_counter_ns() - since

    def met(self, since: int) -> None:
        """Note that the step under way has waited for another worker since a time of
        perf_counter_ns(), which is not to compute.
        """
        self._given += perf_counter_ns() - since if self._given else 0

    def given(self) -> None:
        """Note that the body of the loop begins a step."""
        self._given = perf_counter_ns()
        self._computed = 0

    def computed(self) -> None:
        """Note that the last gradient of the step is there, though the call that ends the step
        comes later. Only the first call in a step counts.
        """
        self._computed = self._computed or perf_counter_ns()

    def averaged(self) -> None:
        """Note that the average of the step is back."""
        self._averaged = perf_counter_ns()

    def report(self, loss: float) -> None:
        """Note the loss of this worker's samples, for the next `pack`."""
        if math.isfinite(loss) and abs(loss) < _MOST_LOSS:
            self._loss = loss

    def pack(self) -> bytes:
        """What is told of the step under way, whose last gradient is there, as the bytes of a
        descriptor.
        """
        self._ready = (self._computed or perf_counter_ns()) if self._given else 0
        compute = self._ready - self._given + self._before
        loss, self._loss = self._loss, 0.0
        times = [min(ns // 1000, _MOST_US) for ns in (self._data, compute, self._update)]
        return _TOLD.pack(*times, loss)
