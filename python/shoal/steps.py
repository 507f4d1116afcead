"""Training in steps: which worker takes which samples, and what happens between two steps when the
members of the job change.
"""

from __future__ import annotations

import ctypes
import dataclasses
from array import array
from typing import Any, Callable, Iterator, List, Optional, Sequence

from ._checkpoint.checkpoints import Checkpoints
from ._live.drawn import Drawn, LocalBatch
from ._live.epochs import End, Epochs
from ._live.transfer import State
from ._runtime.handle import Handle
from ._runtime.log import log_line
from ._runtime.protocol import ASIDE, MORE, NARROW, SPARING, STEP
from .cursor import Cursor, Samples
from .errors import LostError, MismatchError, ShoalError
from .group import Group
from .world import World


class Step:
    """One step of training, over all workers: which samples this worker takes, and the all-reduce
    that commits it.

    `indices` are this worker's samples of the global batch, an int64 array (a list without NumPy),
    and `weight` says how many they are. Where a worker has none, weight is 0 and indices holds two
    samples of the batch (one, where it has one), so that the same code runs. `count` is the size of
    the global batch, `number` counts the committed steps of the job before this one, `epoch` the
    epochs. One thread at a time uses it; `allreduce`, `skip` and `end` wait for other workers, and
    so does the `wait` of a handle. The arrays of a call belong to the agent until then.
    """

    __slots__ = (
        *("_progress", "_averages", "_weights"),
        *("indices", "weight", "count", "number", "epoch", "committed"),
    )

    def __init__(self, progress: "Progress", indices: Samples, weight: int) -> None:
        """The step at the cursor of the progress, with these samples of this worker."""
        cursor = progress.cursor
        self._progress = progress
        self._averages = progress.averages  # number of averages that the step still takes
        # By rank the samples that count, where `skip` has asked for them; None = all of them count.
        self._weights: Optional[List[int]] = None
        self.indices = indices
        self.weight = weight
        self.count = cursor.count()
        self.number = cursor.step
        self.epoch = cursor.epoch
        self.committed = False  # the call that commits it was made; its `wait` says how that ended

    def allreduce(self, *arrays: Any, out: Any = None) -> Any:
        """Replace each array on every worker by the mean over the global batch, and return it (a
        tuple of several). With `out`, an array (a list of as many), leave them and fill that, for
        example job.shared.

        The arrays hold means over this worker's samples: gradients, losses. This call commits the
        step, so give all arrays to one call. A worker that is lost before it made the call is not
        part of the mean; a worker that is lost later is. Raises ShoalError in a step that is
        committed already.
        """
        if not arrays:
            raise ValueError("step.allreduce needs at least one array: the gradient")
        outs = [out] * len(arrays) if out is None or len(arrays) == 1 else list(out)
        if len(outs) != len(arrays):
            raise ValueError(
                f"step.allreduce of {len(arrays)} arrays with {len(outs)} outputs: give one for"
                " each"
            )
        job = self._progress.job
        with job.grouped():
            calls = [
                self.share(x, last=i == len(arrays) - 1, out=outs[i]) for i, x in enumerate(arrays)
            ]
        # In the order of completion; an error of any is raised once all of them are over.
        results = tuple(call.wait() for call in reversed(calls))[::-1]
        return results[0] if len(results) == 1 else results

    def skip(self, bad: bool) -> bool:
        """Leave this worker's samples out of the step if they are `bad`, such as a batch whose loss
        is not finite. Returns whether those of all workers are left out.

            for x, y in loader:
                loss = F.cross_entropy(model(x), y)
                if loader.step.skip(not torch.isfinite(loss)):
                    continue                      # nothing is left to average
                optimizer.zero_grad()
                loss.backward()                   # on this worker too, where its samples are bad
                optimizer.step()

        All workers call it once, before the average, and wait for each other. The average is then
        the mean over the samples of the others. Where all are bad, the step is committed without an
        average. The samples count as seen: they do not come again. Raises ShoalError in a step that
        is committed already.
        """
        self._check_open()
        job = self._progress.job
        weights = array("q", bytes(8 * job.size))
        weights[job.rank] = 0 if bad else self.weight
        self._weights = list(self.aside(weights).wait())
        if bad:
            self.weight = 0
        if not any(self._weights):
            self._averages = 1
            self.commit_without_average()
        return not any(self._weights)

    def commit_without_average(self) -> None:
        """Commit the open step with nothing more to average. All workers wait for each other."""
        self.share(array("q", [0]), last=True, op="sum").wait()

    def _check_open(self) -> None:
        """Raise ShoalError where the step is committed."""
        again = "give all arrays to one step.allreduce, or take the next step"
        if self.committed:
            raise ShoalError(f"this step is committed already: {again}")

    def share(
        self, x: Any, last: bool, op: str = "mean", narrow: bool = False, out: Any = None
    ) -> Handle[Any]:
        """Begin the all-reduce of one array as a part of the step, in place or into `out`. The last
        part commits the step, and no part is complete before every worker has submitted the last
        one. With another op than the mean, workers without samples count too. With `narrow`,
        partial sums of float16 and bfloat16 are rounded to that type between hosts, which takes
        half the bytes.

        Where the step takes several averages, the parts of all but the last average are complete as
        soon as every worker has submitted them, and do not commit it.
        """
        self._check_open()
        early = self._averages > 1
        self._averages -= last
        self.committed = last and not early
        weight = 1.0
        if op == "mean":
            weight = float(self.weight)
            if not self.weight:
                x = self._set_to_zero(x if out is None else self._new_like(x))
        flags = (ASIDE if early else self._flags(last)) | (NARROW if narrow else 0)
        return self._progress.job.allreduce_async(x, op, weight, out, flags)

    def deliver(self, x: Any, root: int, out: Any) -> Handle[Any]:
        """Begin a reduce of one array as a part of the step, which is not the last one: the rank
        `root` gets the mean in `out`, and the others leave `out` None.
        """
        if not self.weight:
            self._set_to_zero(x)
        return self._progress.job.reduce_async(x, "mean", root, out, float(self.weight), MORE)

    def begin(self, group: Group) -> Handle[None]:
        """Begin the step on a group of all members of the job, for workers that average their
        gradients by other means than the agent. The step counts with all members or not at all:
        when one is lost before all have called `end`, the handle raises LostError at once.
        """
        return group.barrier_async(MORE)

    def end(self, group: Group, done: bool) -> bool:
        """End what `begin` began on a group, and commit the step if every member is `done`. Returns
        whether it is committed. If not, the step is open as before, and may be begun again on a
        group of the remaining members.
        """
        try:
            group.barrier_async(self._flags(True) if done else 0).wait()
        except (LostError, MismatchError):
            return False
        self.committed = done
        return done

    def held(self, ranks: Sequence[int]) -> int:
        """The number of samples of the batch that these ranks have together, without those that are
        left out.
        """
        cursor, size = self._progress.cursor, self._progress.job.size
        if self._weights is not None:
            return sum(self._weights[r] for r in ranks)
        return (
            self.count
            if len(ranks) == size
            else sum(stop - start for r in ranks for start, stop in cursor.part(r, size))
        )

    def aside(self, x: Any, op: str = "sum", root: Optional[int] = None) -> Handle[Any]:
        """Begin an all-reduce of one array, or with a root a broadcast, that is no part of the
        step: it is complete as soon as every worker has submitted it. Workers use it to agree on
        how to encode the parts of the step. When the root is lost, all workers get another rank's
        x.
        """
        job = self._progress.job
        if root is None:
            return job.allreduce_async(x, op, flags=ASIDE)
        return job.broadcast_async(x, root, flags=ASIDE)

    def _flags(self, last: bool) -> int:
        """The flags of a call that is a part of the step; the `last` one commits it."""
        if not last:
            return MORE
        return STEP | SPARING if self._progress.state.sharded else STEP

    def _new_like(self, x: Any) -> Any:
        """A new array like x, for a call that must not change x."""
        tensor = self._progress.job._backend.describe(x)
        return self._progress.job._backend.new_like(x, tensor.dtype, tensor.shape)

    def _set_to_zero(self, x: Any) -> Any:
        """Set the elements of x, the caller's array, to zeros, and return it."""
        # A weight of 0 is not enough: 0 times a gradient that is not finite would not be 0.
        tensor = self._progress.job._backend.describe(x)
        if tensor.writable and tensor.contiguous:
            ctypes.memset(tensor.address, 0, tensor.nbytes)
        else:
            x[...] = 0
        return x

    @property
    def after(self) -> Cursor:
        """The place in the data after this step. It is known once the step is committed, because
        samples of a lost worker come again. Raises ShoalError before that.
        """
        if not self.committed:
            raise ShoalError(
                "what comes after a step is known when it is committed, by step.allreduce for"
                " example"
            )
        return self._progress.next_cursor()

    @property
    def last(self) -> bool:
        """Whether this step ended an epoch. Known once the step is committed; see `after`."""
        return self.after.epoch != self.epoch


class Progress:
    """The place of a job in its data, and what happens between one step and the next. A job has
    one. Only the thread of the training loop uses it, but for `mark_view_changed`; all workers call
    the methods at the same places. A method that waits for other workers says so.
    """

    def __init__(self, job: World, state: State, start: Cursor) -> None:
        """Begin at `start`, and tell the agent what the job trains on, whose answer this waits for.
        Raises ShoalError where workers contradict each other.
        """
        self.job = job
        self.cursor = start
        self.step: Optional[Step] = None  # the step under way
        self.state = state
        self._changed = False  # a view is there that `cross_step_boundary` has not followed yet
        # The cursor after the step under way; None = not known yet.
        self._next: Optional[Cursor] = None
        self.drawn = Drawn()
        self.averages = 1  # how many averages a step takes; the last one commits it
        # Where checkpoints are made; None = none are. With `meshed` only the last one of a job that
        # is stopped is made here, because the loop of shoal.train makes the others.
        self.checkpoints: Optional[Checkpoints] = None
        # Functions that say what may be wrong where a step was not committed.
        self.hints: List[Callable[[], str]] = []
        self.meshed = False  # the model is cut over a mesh: each worker has a part of the state
        self.begun = False  # a loop of this process has taken the state of the job
        self._trained = False  # this process has opened a step
        self._stopped = False  # the job was stopped, and this worker is a job of one
        self.epochs = Epochs(job, state)
        job._backend.declare_data(self.cursor)

    def mark_view_changed(self) -> None:
        """Note that the agent has written another view, which `cross_step_boundary` follows. The
        thread that sees the view calls it, whichever that is.
        """
        self._changed = True

    def begin_loop(self, end: End) -> None:
        """Begin a loop, and end the one before if it was left by `break`.

        Raises ShoalError when an earlier loop of this process has reached the same end, such as a
        second loop with the number of epochs of the first: it would silently make no step.
        """
        self._end_broken_loop()
        self.epochs.begin_loop(end)
        if self.checkpoints is not None:
            self.checkpoints.drop_kept()
        if (
            self._trained
            and not end.each
            and not self.job.released
            and end.is_reached_at(self.cursor)
        ):
            raise ShoalError(
                f"all {end.step_count(self.cursor)} steps of this loop are over, and the job has"
                f" made {self.cursor.step}: a loop goes on where the job is, so give it the epochs"
                " or the steps of the whole training, and loop once; or give it neither, and each"
                " loop is one epoch"
            )

    def finish_step(self, end: End) -> bool:
        """Go from the committed step to the place between it and the next: members join and leave,
        and checkpoints are made. May wait for other workers. Returns whether the training ends
        there, or the epoch of this loop. Raises ShoalError when the step was not committed.
        """
        if self.step is not None and not self.step.committed:
            why = [hint() for hint in self.hints] or [
                "Call step.allreduce(gradient), or step() of an optimizer that averages, once in"
                " every step"
            ]
            raise ShoalError(
                f"step {self.step.number} ended without an average of its gradients."
                f" {'. '.join(why)}"
            )
        self._advance_cursor()
        if not self.catch_up(end):
            self._end_stopped()
            return True
        ended = end.is_reached_at(self.cursor)
        if self.checkpoints is not None and not self.meshed:
            if ended and self.epochs.is_final_loop(end):
                self.checkpoints.save_last(self.cursor)
            else:
                self.checkpoints.save_if_due(self.cursor)
                # Where nobody has said that another loop follows, this may be the last one.
                if ended and self.epochs.count is None:
                    self.checkpoints.keep_last(self.cursor)
        if ended:
            self.epochs.count_ended_loop(end)
        return ended

    def catch_up(self, end: Optional[End] = None) -> bool:
        """Go to where the job is; in the first loop, take the state of the others or of a
        checkpoint. Waits for the other members. False when this loop makes no more steps: this
        worker is released, or the job is beyond the epoch of the loop. `end` None = before a loop.
        """
        if not self.begun:
            self.state.discover()
            if (
                self.checkpoints is not None
                and not self.meshed
                and not self.job._backend.late
                and not self.epochs.is_behind_job(end, self.cursor)
            ):
                self._resume_from_checkpoint(self.checkpoints)
        # A state of a later epoch is set again in the loop of that epoch, because the code after
        # this loop changes it.
        if not self.cross_step_boundary(end) or self.epochs.is_behind_job(end, self.cursor):
            self.epochs.count_ended_loop(end, empty=True)
            return False
        self.begun = True
        return True

    def _end_stopped(self) -> None:
        """If the job was stopped, make the last checkpoint, wait for it, and be a job of one."""
        if self.job._backend.view.stopped and not self._stopped:
            self._stopped = True
            if self.checkpoints is not None and self.begun:
                self.checkpoints.save_stopped(self.cursor)
            self.job._backend.become_job_of_one()

    def _end_broken_loop(self) -> None:
        """End the loop before this one, if it was left by `break`."""
        self.drop_open_step()
        self._advance_cursor()
        self.drawn.discard()
        self.epochs.count_broken_loop(self.cursor.epoch if self.begun else None)

    def epoch_loops(self, count: int) -> Iterator[int]:
        """The numbers of the epochs from the one that the job is in, up to `count`: each is for one
        loop. To begin may wait, as `catch_up`. Raises ShoalError where all of them are over.
        """
        epochs = self.epochs
        self._end_broken_loop()
        if not self.begun:
            if not self.catch_up():
                return
            epochs.over = self.cursor.reached if epochs.others is None else epochs.others
        elif epochs.over >= count and not self.job.released:
            raise ShoalError(
                f"all {count} epochs of this loop are over: it goes on where the job is, so give it"
                " those of the whole training"
            )
        epochs.count = count
        try:
            while epochs.over < count and not self.job.released:
                number = epochs.over
                yield number
                self._end_broken_loop()
                epochs.over = max(epochs.over, number + 1)
        finally:
            epochs.count = None

    def _advance_cursor(self) -> None:
        """Go to the place after the committed step, if there is one, and forget the step."""
        if self.step is not None:
            self.cursor, self._next, self.step = self.next_cursor(), None, None

    def _resume_from_checkpoint(self, checkpoints: Checkpoints) -> None:
        """Go on from the newest checkpoint, if there is one. Reads it, and waits for the others."""
        place = checkpoints.resume(self.cursor)
        if place != self.cursor:
            self.move_to(place)

    def move_to(self, place: Cursor) -> None:
        """Go to the place of a checkpoint before the first step, but for its `apart`; may wait."""
        place = self.cursor = dataclasses.replace(place, apart=self.cursor.apart)
        self.job._backend.declare_data(place)
        self.drawn.discard()

    @property
    def place(self) -> Cursor:
        """The place after the last committed step."""
        return self.next_cursor() if self.step is not None and self.step.committed else self.cursor

    def next_cursor(self) -> Cursor:
        """The cursor after the committed step: that of the agent's view where the members have
        changed.
        """
        if self._next is None:
            view = self.job._backend.view
            if self._changed and view.cursor:
                self._next = Cursor.unpack(view.cursor)
            else:
                self._next = self.cursor.commit(self.job.size, [True] * self.job.size)
        return self._next

    def open_step(self) -> Step:
        """Begin the next step, with this worker's samples, and return it. Waits for nobody."""
        part = self.drawn.open(self.cursor, self.job.rank, self.job.size)
        self.epochs.made += 1
        self._trained = True
        self.step = Step(self, part.indices, part.weight)
        return self.step

    def open_whole_step(self) -> Step:
        """Begin the next step with all samples of its batch, for workers that divide them among
        themselves.
        """
        self._trained = True
        self.step = Step(self, self.drawn.whole(self.cursor), 1)
        return self.step

    def batch_ahead(self, k: int) -> LocalBatch:
        """This worker's samples of the k-th next step (0: the next), if the members stay."""
        return self.drawn.look(k, self.cursor, self.job.rank, self.job.size)

    def drop_open_step(self) -> None:
        """Drop a step that was opened and not committed: it is made again."""
        if self.step is not None and not self.step.committed:
            self.step = None
            self.epochs.made -= 1
            self.drawn.discard()

    def cross_step_boundary(self, end: Optional[End] = None) -> bool:
        """Pass from one step to the next, where members join and leave: send the state to
        newcomers, or receive it as one. Waits for the other members. False when this worker is
        released, or cannot join in the epoch of this loop (`end` None: it can in any).
        """
        job, backend, epoch = self.job, self.job._backend, self.epochs.entry_epoch(end)
        if backend.late:
            self.state.allocate_buffers()
            if not backend.enter(epoch):
                return False
        while self._changed:
            view = backend.view
            if view.released:
                return False
            if view.cursor:
                self.cursor = Cursor.unpack(view.cursor)
            self.drawn.discard()
            if view.new:
                if not self.state.receive_from_members(job, view.joined):
                    if not backend.enter(epoch):
                        return False
                    continue
                self.epochs.check_joined_loop(end)
                if self.state.is_empty and not self.meshed:
                    log_line(
                        "this worker has joined a job that trains already, and has got no state"
                        " from the others, because none is registered: if the loop changes any"
                        " (parameters, an optimizer), this worker's differs now; call"
                        " job.register(name, get, set) before the loop, on every worker"
                    )
            else:
                self.state.absorb_losses()
                if view.joined:
                    backend.admit_newcomers()
                    # Optimizers that were made since the loop began: a worker that joins names what
                    # it lacks.
                    self.state.discover()
                    self.state.send_to_newcomers(job, view.joined, self.cursor.step)
            if view.joined:
                self.state.include_newcomers()
            self._changed = False
        return True


def steps_until(progress: Progress, end: End) -> Iterator[Step]:
    """The steps of a loop until its end, each opened when it is asked for, by the thread of the
    training loop. To ask for one may wait for other workers.
    """
    progress.begin_loop(end)
    while not progress.finish_step(end):
        yield progress.open_step()
