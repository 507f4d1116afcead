"""Which epoch a loop is, where a program has one loop in the other: for each epoch, for each
batch.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Iterator, Optional

from .._runtime.log import say
from ..errors import ShoalError

if TYPE_CHECKING:
    from ..steps import End, Progress


class Passes:
    """The loops of this process that are one epoch each: the n-th ends with the n-th epoch of the
    job.

    So a worker that joins, and whose outer loop begins at 0, makes no step in those loops that the
    job has behind it, and is no member then. It enters in the epoch that the others are in, and
    what its program did to the state before is replaced by theirs. A program that goes on from a
    checkpoint does the same, with the state of the checkpoint.
    """

    def __init__(self, progress: "Progress") -> None:
        self.made = 0  # steps of the loop under way
        self._progress = progress
        self._over = 0  # loops that have ended
        self._each = False  # the loop under way is one epoch
        self._count: Optional[int] = None  # loops that there are in all, if that is known
        self._told: Optional[int] = None  # how many have ended for the others
        self._said = False
        progress.state.register(
            "loops over epochs", lambda: self._over, self._tell, alike=False, kept=False
        )

    def _tell(self, value: int) -> None:
        self._told = value

    def begin(self, end: "End") -> None:
        """Begin a loop. The program of a worker that the job has released ends here: it would go
        through all epochs that are left without a step.
        """
        if end.each and self._progress.job.released:
            raise SystemExit(0)
        self._each = end.each
        if end.each:
            end.epochs = self._over + 1

    def left(self) -> None:
        """Count a loop that was left by `break`. One that has made no step was a look at the first
        batch.
        """
        if self._each and self.made:
            self._over += 1
        if self._progress.begun and self._count is None:  # other loops may have gone further
            self._over = max(self._over, self._progress.cursor.epoch)
        self._each, self.made = False, 0

    def end(self, end: "Optional[End]", empty: bool = False) -> None:
        """Count a loop that has come to its end, or that makes no step."""
        if end is None or not end.each:
            return
        job = self._progress.job
        if empty and not self._said and not job.released and (job.outside or job.rank == 0):
            self._said = True
            say(
                f"the job has epoch {self._over} behind it: loops over such epochs make no step"
                " here. `for epoch in loader.epochs(…)`, with shoal.torch.loader, leaves them out"
            )
        self._over += 1
        self._each, self.made = False, 0

    def final(self, end: "End") -> bool:
        """Whether the training ends with this loop, as far as that is known."""
        return not end.each or self._over + 1 == self._count

    def epoch(self, end: "Optional[End]") -> Optional[int]:
        """The epoch in which alone a worker can join; None = in any."""
        return self._over if end is not None and end.each else None

    def behind(self, end: "Optional[End]") -> bool:
        """Whether the job is beyond the epoch of this loop."""
        return end is not None and end.each and self._progress.cursor.reached > self._over

    def check(self, end: "Optional[End]") -> None:
        """Raise ShoalError where the others are in another loop than this worker, which has just
        joined.
        """
        if end is None or not end.each or self._told in (None, self._over):
            return
        raise ShoalError(
            f"the other workers are in loop {self._told} over the epochs, and this one, which has"
            f" just joined, in loop {self._over}: loops were left by break, so which epoch they are"
            " in is not known from the data. Loop over `loader.epochs(…)`, which knows"
        )

    def epochs(self, count: int) -> Iterator[int]:
        """The epochs from the one that the job is in, up to `count`."""
        progress = self._progress
        progress.leave()
        if not progress.begun:
            if not progress.arrive():
                return
            self._over = progress.cursor.reached if self._told is None else self._told
        elif self._over >= count and not progress.job.released:
            raise ShoalError(
                f"all {count} epochs of this loop are over: it goes on where the job is, so give it"
                " those of the whole training"
            )
        self._count = count
        try:
            while self._over < count and not progress.job.released:
                number = self._over
                yield number
                progress.leave()
                self._over = max(self._over, number + 1)
        finally:
            self._count = None
