"""Training in steps: who takes which samples, and what happens between two steps when the members of the job change."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Any, Deque, Iterator, List, Optional, Tuple

from ._handover import State
from ._layout import MORE, STEP
from .cursor import Cursor, Order
from .errors import ShoalError
from .handle import Handle

if TYPE_CHECKING:
    from .cursor import Samples
    from .job import Job

# How far ahead samples are drawn: many steps at once cost little more than one.
_AHEAD_STEPS, _AHEAD_SAMPLES = 64, 1 << 14


class Step:
    """One step of training, over all workers: which samples this worker takes, and the all-reduce that commits it.

    `indices` are this worker's samples of the global batch, an int64 array (a list without NumPy), and `weight` says how many
    they are. Where a worker has none, weight is 0 and indices holds one sample of the batch, so that the same code runs.
    `count` is the size of the global batch, `number` counts the committed steps of the job before this one, `epoch` the epochs.
    """

    __slots__ = ("_progress", "indices", "weight", "count", "number", "epoch", "committed")

    def __init__(self, progress: "Progress", indices: "Samples", weight: int) -> None:
        cursor = progress.cursor
        self._progress = progress
        self.indices = indices
        self.weight = weight
        self.count = cursor.count()
        self.number = cursor.step
        self.epoch = cursor.epoch
        self.committed = False

    def allreduce(self, *arrays: Any) -> Any:
        """Replace each array on every worker by the mean over the global batch, and return it (a tuple of several).

        The arrays hold means over this worker's samples: gradients, losses. This commits the step, so give all arrays to
        one call. A worker that is lost before it called this is not part of the mean, one that is lost later is.
        """
        if not arrays:
            raise ValueError("step.allreduce needs at least one array: the gradient")
        job = self._progress.job
        with job.grouped():
            calls = [self.share(x, last=x is arrays[-1] and i == len(arrays) - 1) for i, x in enumerate(arrays)]
        # In the order of completion; an error of any is raised once all of them are over.
        for call in reversed(calls):
            call.wait()
        return arrays[0] if len(arrays) == 1 else arrays

    def share(self, x: Any, last: bool) -> "Handle[Any]":
        """The all-reduce of one array as a part of the step; the step is committed with the last part, and no part is
        complete before the last was submitted by every worker."""
        if self.committed:
            raise ShoalError("this step is committed already: give all arrays to one step.allreduce, or take the next step")
        self.committed = last
        return self._progress.job.allreduce_async(x, "mean", float(self.weight), flags=STEP if last else MORE)

    @property
    def last(self) -> bool:
        """Whether an epoch ended with this step. Known once it is committed: when a worker is lost, its samples come again."""
        if not self.committed:
            raise ShoalError("whether a step is the last of its epoch is known after step.allreduce")
        return self._progress.next().epoch != self.epoch


class Progress:
    """The place of a job in its data, and the passage from one step to the next. One for each job."""

    def __init__(self, job: "Job", state: State, samples: int, batch: int, seed: int, shuffle: bool) -> None:
        self.job = job
        self.cursor = Cursor.start(samples, batch, seed, shuffle)
        self.step: Optional[Step] = None  # that is under way
        self._state = state
        self._changed = False
        self._next: Optional[Cursor] = None  # the cursor after the step under way, once that is known
        self._ahead: Deque[Tuple["Samples", int]] = deque()
        self._order: Optional[Order] = None
        job._port.state_data(samples, batch, seed, shuffle)

    def changed(self) -> None:
        """The agent has written another view."""
        self._changed = True

    def over(self, epochs: int) -> bool:
        """Go to the place between this step and the next; whether `epochs` epochs are over there.

        Raises ShoalError when the step was not committed.
        """
        if self.step is not None:
            if not self.step.committed:
                raise ShoalError(
                    f"the loop body went through step {self.step.number} without an all-reduce of its gradient: call "
                    "step.allreduce(gradient), or use shoal.torch.ddp or shoal.torch.optimizer, once in every step"
                )
            self.cursor, self._next, self.step = self.next(), None, None
        if not self.job._port.late and self.cursor.epoch >= epochs:
            return True
        self._pass()
        return self.cursor.epoch >= epochs

    def next(self) -> Cursor:
        """The cursor after the committed step."""
        if self._next is None:
            view = self.job._port.view
            if self._changed and view.cursor:
                self._next = Cursor.unpack(view.cursor)
            else:
                self._next = self.cursor.commit(self.job.size, [True] * self.job.size)
        return self._next

    def open(self) -> Step:
        """The next step."""
        if not self._ahead:
            self._look_ahead()
        indices, weight = self._ahead.popleft()
        self.step = Step(self, indices, weight)
        return self.step

    def _pass(self) -> None:
        """Between two steps: the place where members join and leave."""
        job, port = self.job, self.job._port
        if not self._changed and not port.late:
            return
        port.enter()
        view = port.view
        self._changed = False
        self._ahead.clear()
        if view.released:
            raise SystemExit(0)  # not a member any more: what comes behind the loop is for those who finish the job
        if view.cursor:
            self.cursor = Cursor.unpack(view.cursor)
        if view.new:
            self._state.receive(job, view.joined)
        elif view.joined:
            self._state.send(job, view.joined, self.cursor.step)

    def _look_ahead(self) -> None:
        """Draw the samples of this worker for the next steps of the epoch."""
        rank, size = self.job.rank, self.job.size
        cursor = self.cursor
        if self._order is None or self._epoch != cursor.epoch:
            self._order, self._epoch = cursor.order(), cursor.epoch
        spans: List[Tuple[int, int]] = []
        counts: List[Tuple[int, int]] = []
        drawn, everyone = 0, [True] * size
        while cursor.epoch == self._epoch and len(counts) < _AHEAD_STEPS and drawn < _AHEAD_SAMPLES:
            part = cursor.part(rank, size)
            weight = sum(stop - start for start, stop in part)
            if not part:
                first = cursor.part(0, size)[0][0]
                part = [(first, first + 1)]
            spans += part
            counts.append((max(weight, 1), weight))
            drawn += counts[-1][0]
            cursor = cursor.commit(size, everyone)
        samples, at = self._order.take(spans), 0
        for count, weight in counts:
            self._ahead.append((samples[at : at + count], weight))
            at += count


def steps(progress: Progress, epochs: int) -> Iterator[Step]:
    """The steps of a job until `epochs` epochs are committed."""
    while not progress.over(epochs):
        yield progress.open()
