"""Where training loops end, and which epoch a loop is in a program that has one loop in the other:
for each epoch, for each batch.
"""

from __future__ import annotations

import math
from typing import Optional

from .._runtime.arguments import as_integer
from .._runtime.log import log_line
from ..cursor import Cursor
from ..errors import ShoalError
from ..world import World
from .transfer import State


# The epochs of a loop that only a trainer ends: more than any training has, and so no goal.
FOREVER = 1 << 40


class End:
    """Where a training loop ends: after a number of epochs, of steps of the job or of statistical
    epochs, whichever comes first. Where none is given, each loop is one epoch: the first ends with
    the first, the second with the second, and so on. Only the thread of the training loop uses it.
    `epochs`, `steps` and `statistical` are where it ends, None = not by these; `Epochs.begin_loop`
    and the loader's `finish` change `epochs`, and the loader's `epochs` changes `statistical`.

    Raises TypeError or ValueError for what is no number of epochs or steps.
    """

    def __init__(
        self, epochs: Optional[int], steps: Optional[int], statistical: Optional[int] = None
    ) -> None:
        """The end after `epochs`, `steps` or `statistical` epochs; None = not by these."""
        self.each_loop_is_epoch = epochs is steps is statistical is None  # each loop is one epoch
        if epochs is not None:
            epochs = as_integer(
                "epochs",
                epochs,
                0,
                "how many epochs the whole training has, an integer from 0 on, or None",
            )
        if steps is not None:
            steps = as_integer(
                "steps",
                steps,
                0,
                "how many steps the whole training has, an integer from 0 on, or None",
            )
        if statistical is not None:
            statistical = as_integer(
                "statistical_epochs",
                statistical,
                0,
                "how many epochs of the stated batch the whole training is worth, an integer from"
                " 0 on, or None",
            )
        self.epochs = 1 if self.each_loop_is_epoch else epochs
        self.steps = steps
        self.statistical = statistical

    def is_reached_at(self, cursor: Cursor, effective: float) -> bool:
        """Whether the training has come to its end at a place in the data, where its samples are
        worth so many of the stated batch.
        """
        return (
            self.excludes_epoch(cursor.epoch)
            or self.steps is not None
            and cursor.step >= self.steps
            or self.is_worth_reached(cursor, effective)
        )

    def is_worth_reached(self, cursor: Cursor, effective: float) -> bool:
        """Whether the training has come to its number of statistical epochs, if it has one."""
        return self.statistical is not None and effective >= self.statistical * cursor.samples

    def excludes_epoch(self, epoch: int) -> bool:
        """Whether an epoch lies beyond the end."""
        return self.epochs is not None and epoch >= self.epochs

    def training_step_count(
        self, cursor: Cursor, loops: Optional[int], effective: float, efficiency: float
    ) -> Optional[int]:
        """The number of optimizer steps of the training, which is at `cursor`, as long as no worker
        is lost and the batch stays; None = the program has not said it. `loops` is how many loops
        of one epoch the training has, None = not known. The committed samples are worth so many
        `effective` ones of the stated batch, and each to come `efficiency`.
        """
        epochs = loops if self.each_loop_is_epoch else self.epochs
        ends = [] if self.steps is None else [self.steps]
        steps_per_epoch = -(-cursor.samples // cursor.batch)
        if epochs is not None and epochs < FOREVER:
            left = (cursor.epoch + 1) * cursor.samples - cursor.committed()
            more = -(-left // cursor.batch) + steps_per_epoch * (epochs - cursor.epoch - 1)
            ends.append(cursor.step + max(more, 0))
        if self.statistical is not None:
            worth = max(self.statistical * cursor.samples - effective, 0)
            steps_left = steps_per_epoch * worth / (efficiency * cursor.samples)
            ends.append(cursor.step + math.ceil(steps_left))
        return min(ends, default=None)

    def loop_step_count(self, cursor: Cursor, efficiency: float = 1.0) -> int:
        """The number of steps of a loop, which is one epoch or the whole training, as long as
        no worker is lost and the batch is that of now from the beginning to the end, of which a
        sample is worth `efficiency` samples of the stated one.
        """
        steps_per_epoch = -(-cursor.samples // cursor.batch)
        epochs = 1 if self.each_loop_is_epoch else self.epochs
        ends = [self.steps, None if epochs is None else steps_per_epoch * epochs]
        if self.statistical is not None:
            ends.append(math.ceil(steps_per_epoch * self.statistical / efficiency))
        return min(n for n in ends if n is not None)


class Epochs:
    """Counts the loops of this process that are one epoch each: the n-th ends with the n-th epoch
    of the job. Only the thread of the training loop uses it.

    A worker that joins has an outer loop that begins at 0. It makes no step in the loops of epochs
    that the job has already done, and is no member during them. It enters in the epoch that the
    others are in, and their state replaces what its program did to the state before. A program that
    goes on from a checkpoint does the same, with the state of the checkpoint.
    """

    def __init__(self, job: World, state: State) -> None:
        """Register with the state how many loops have ended here, for workers that join."""
        self.steps_in_loop = 0  # number of steps of the loop under way
        self.ended_loops = 0  # number of loops that have ended here
        self.loop_count: Optional[int] = None  # number of loops of the training; None = not known
        # The number of loops that have ended on the other workers; None = they did not tell.
        self.ended_loops_elsewhere: Optional[int] = None
        self._job = job
        self._loop_is_epoch = False  # the loop under way is one epoch
        self._warned = False  # the user was told that loops may make no step
        state.register(
            "loops over epochs",
            lambda: self.ended_loops,
            self._set_others,
            alike=False,
            checkpointed=False,
        )

    def _set_others(self, value: int) -> None:
        """Take over the number of loops that have ended on the others, when this worker joins."""
        self.ended_loops_elsewhere = value

    def begin_loop(self, end: End) -> None:
        """Note which kind of loop begins, and set the `epochs` of an `end` of one epoch.

        The program of a worker that the job has released ends here, with SystemExit: it would go
        through all epochs that remain without a step. The first worker, which runs what is after
        the loops of a job that was stopped, says so.
        """
        if end.each_loop_is_epoch and self._job.released:
            if self._job.first:
                log_line(
                    "the job was stopped, and its program ends with this loop over an epoch, which"
                    " has no step: nothing behind the loop over epochs is run. `if"
                    " shoal.join().released: break` at its end has rank 0 run that; so has `for"
                    " epoch in loader.epochs(…)`, with shoal.torch.loader"
                )
            raise SystemExit(0)
        self._loop_is_epoch = end.each_loop_is_epoch
        if end.each_loop_is_epoch:
            end.epochs = self.ended_loops + 1

    def count_broken_loop(self, epoch: Optional[int]) -> None:
        """Count a loop that was left by `break`, if it made a step: one without was a look at the
        first batch. `epoch` is that of the job, None before its first step.
        """
        if self._loop_is_epoch and self.steps_in_loop:
            self.ended_loops += 1
        if epoch is not None and self.loop_count is None:  # other loops may have gone further
            self.ended_loops = max(self.ended_loops, epoch)
        self._loop_is_epoch, self.steps_in_loop = False, 0

    def count_ended_loop(self, end: Optional[End], empty: bool = False) -> None:
        """Count a loop that has come to its end; `empty`: it made no step, which the user is told
        once.
        """
        if end is None or not end.each_loop_is_epoch:
            return
        job = self._job
        if empty and not self._warned and not job.released and (job.outside or job.rank == 0):
            self._warned = True
            log_line(
                f"the job has done epoch {self.ended_loops} already: loops over such epochs make no"
                " step here. `for epoch in loader.epochs(…)`, with shoal.torch.loader, leaves them"
                " out"
            )
        self.ended_loops += 1
        self._loop_is_epoch, self.steps_in_loop = False, 0

    def is_final_loop(self, end: End, cursor: Cursor, effective: float) -> bool:
        """Whether the training ends with this loop, which is over at a place in the data, as far as
        that is known.
        """
        return (
            not end.each_loop_is_epoch
            or self.ended_loops + 1 == self.loop_count
            or end.is_worth_reached(cursor, effective)
        )

    def entry_epoch(self, end: Optional[End]) -> Optional[int]:
        """The only epoch in which a worker can join during this loop; None = any."""
        return self.ended_loops if end is not None and end.each_loop_is_epoch else None

    def is_behind_job(self, end: Optional[End], cursor: Cursor) -> bool:
        """Whether the job, at `cursor`, is beyond the epoch of this loop."""
        return end is not None and end.each_loop_is_epoch and cursor.reached > self.ended_loops

    def check_joined_loop(self, end: Optional[End]) -> None:
        """Compare the loop of this worker, which has just joined, with that of the others.

        Raises ShoalError where they are in another one.
        """
        here, elsewhere = self.ended_loops, self.ended_loops_elsewhere
        if end is None or not end.each_loop_is_epoch or elsewhere in (None, here):
            return
        raise ShoalError(
            f"the other workers are in loop {elsewhere} over the epochs, and this one, which has"
            f" just joined, in loop {here}: loops were left by break, so which epoch they are"
            " in is not known from the data. Loop over `loader.epochs(…)`, which knows"
        )
