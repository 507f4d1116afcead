"""One step of training: which samples a worker takes, and the all-reduce that commits it, or the
round of local steps that it ends.
"""

from __future__ import annotations

import ctypes
from array import array
from typing import Any, List, Optional, Protocol, Sequence

from .._runtime.handle import Handle
from .._runtime.protocol import ASIDE, MORE, NARROW, SPARING, STEP
from ..cursor import Cursor
from ..errors import LostError, MismatchError, ShoalError
from ..group import Group
from ..world import World
from .lookahead import LocalBatch
from .transfer import State


class Place(Protocol):
    """What a step needs of the place of its job in the data: shoal.steps.Progress."""

    job: World
    cursor: Cursor  # the place of the round under way
    state: State
    averages: int  # how many averages a step takes; the last one commits it

    def next_cursor(self) -> Cursor:
        """The cursor after the committed round."""


class Step:
    """One step of training, over all workers: which samples this worker takes, and the all-reduce
    that commits it.

    `indices` are this worker's samples of the global batch, an int64 array (a list without NumPy),
    and `weight` says how many they are. Where a worker has none, weight is 0 and indices holds two
    samples of the batch (one, where it has one), so that the same code runs. `count` is the size of
    the global batch, `number` counts the steps of the job before this one, `epoch` the epochs. One
    thread at a time uses it; `allreduce`, `skip` and `end_on_group` wait for other workers, and so
    does the `wait` of a handle. The arrays of a call belong to the agent until then.

    Where workers do not synchronise in every step, a round of `local_steps` local steps is
    committed together, in the one that `ends_round`; before it nothing is averaged. `local_index`
    is the index of the step in its round. Then `count` and `weight` are those of the round, and
    `local_weight` says how many of the indices count; where it is 0, the worker makes no update in
    this step.
    """

    __slots__ = (
        *("_progress", "_averages", "_weights", "local_index", "local_steps", "local_weight"),
        *("indices", "weight", "count", "number", "epoch", "committed", "averages_in_round"),
    )

    def __init__(self, progress: Place, batch: LocalBatch) -> None:
        """A local step of the round at the cursor of the progress, with this worker's samples."""
        cursor = progress.cursor
        self._progress = progress
        self._averages = progress.averages  # number of averages that the step still takes
        # By rank the samples that count, where `skip` has asked for them; None = all of them count.
        self._weights: Optional[List[int]] = None
        self.indices = batch.indices
        self.weight = batch.weight
        self.local_index, self.local_steps = batch.local_index, batch.local_steps
        self.local_weight = batch.local_weight
        self.count = cursor.count()
        self.number = cursor.step + batch.local_index
        self.epoch = cursor.epoch
        # Averages are made in each local step of the round. Those before the last step are complete
        # as soon as every worker has submitted them, and commit nothing.
        self.averages_in_round = False
        self.committed = False  # the call that commits it was made; its `wait` says how that ended

    @property
    def ends_round(self) -> bool:
        """Whether this is the last step before workers synchronise, in which the average of all
        workers commits the round.
        """
        return self.local_index == self.local_steps - 1

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
        job._backend.step_timer.record_average_done()
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

        In a round of several local steps this worker alone leaves its update out: nobody waits, and
        the answer is False, since the others may have updates in the step. `optimizer.step()`
        must be called all the same, and makes none.
        """
        if self.local_steps > 1:
            self.local_weight = 0 if bad else self.local_weight
            return False
        self._check_open()
        job = self._progress.job
        weights = array("q", bytes(8 * job.size))
        weights[job.rank] = 0 if bad else self.weight
        self._weights = list(self.submit_aside(weights).wait())
        if bad:
            self.weight = self.local_weight = 0
        if not any(self._weights):
            self._averages = 1
            self.commit_without_average()
        return not any(self._weights)

    def commit_without_average(self) -> None:
        """Commit the open step with nothing more to average. All workers wait for each other."""
        self.share(array("q", [0]), last=True, op="sum").wait()

    def _check_open(self) -> None:
        """Raise ShoalError where the step is committed, or comes before the end of a round in which
        nothing is averaged until then.
        """
        if not self.ends_round and not self.averages_in_round:
            raise ShoalError(
                f"step {self.number} is local step {self.local_index + 1} of {self.local_steps}:"
                " average in the last one, where step.ends_round"
            )
        again = "give all arrays to one step.allreduce, or take the next step"
        if self.committed:
            raise ShoalError(f"this step is committed already: {again}")

    def share(
        self,
        x: Any,
        last: bool,
        op: str = "mean",
        narrow: bool = False,
        out: Any = None,
        tag: int = 0,
        weight: Optional[float] = None,
    ) -> Handle[Any]:
        """Begin the all-reduce of one array as a part of the step, in place or into `out`. The last
        part commits the step, and no part is complete before every worker has submitted the last
        one. A mean is weighted by the samples of this worker in the step, or by `weight`, where
        that is given. With another op than the mean, workers without samples count too. With
        `narrow`, partial sums of float16 and bfloat16 are rounded to that type between hosts, which
        takes half the bytes. A mean of something else than gradients says so by its tag, lest the
        agent takes it for a part of them when it measures how noisy they are.

        Where the step takes several averages, the parts of all but the last average are complete as
        soon as every worker has submitted them, and do not commit it.
        """
        self._check_open()
        early = self._averages > 1 or not self.ends_round
        if op != "mean":
            weight = 1.0
        else:
            if weight is None:
                weight = float(self.local_weight if self.averages_in_round else self.weight)
            if not weight:
                x = self._set_to_zero(x if out is None else self._new_like(x))
        flags = (ASIDE if early else self._flags(last)) | (NARROW if narrow else 0)
        call = self._progress.job.allreduce_async(x, op, weight, out, flags, tag=tag)
        # only now: arrays that are refused commit nothing
        self._averages -= last
        self.committed = last and not early
        return call

    def reduce_to_root(self, x: Any, root: int, out: Any) -> Handle[Any]:
        """Begin a reduce of one array as a part of the step, which is not the last one: the rank
        `root` gets the mean in `out`, and the others leave `out` None. On a worker without samples
        x is set to zeros.
        """
        if not self.weight:
            self._set_to_zero(x)
        return self._progress.job.reduce_async(x, "mean", root, out, float(self.weight), MORE)

    def begin_on_group(self, group: Group) -> Handle[None]:
        """Begin the step on a group of all members of the job, for workers that average their
        gradients by other means than the agent. The step counts with all members or not at all:
        when one is lost before all have called `end_on_group`, the handle raises LostError at once.
        """
        self._check_open()
        return group.barrier_async(MORE)

    def end_on_group(self, group: Group, done: bool) -> bool:
        """End what `begin_on_group` began on a group, and commit the step if every member is
        `done`. Returns whether it is committed. If not, the step is open as before, and may be
        begun again on a group of the remaining members.
        """
        try:
            group.barrier_async(self._flags(True) if done else 0).wait()
        except (LostError, MismatchError):
            return False
        self.committed = done
        self._progress.job._backend.step_timer.record_average_done()
        return done

    def samples_of_ranks(self, ranks: Sequence[int]) -> int:
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

    def submit_aside(self, x: Any, op: str = "sum", root: Optional[int] = None) -> Handle[Any]:
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
