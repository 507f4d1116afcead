"""Checkpoints of a job that trains in steps: files with the state that a worker that joins would
get. docs/design/checkpoints.md has the reasons.

Between two steps, training stops for one copy of this worker's share of the state; a writer writes
the copy. At the start of the loop every worker reads the newest checkpoint that is whole.
"""

from __future__ import annotations

import ctypes
import json
import os
import random
from array import array
from datetime import timedelta
from typing import Optional, Tuple

from .._live.transfer import State
from .._runtime.arguments import as_integer
from .._runtime.log import format_count, log_line
from ..cursor import Cursor
from ..errors import ShoalError
from ..group import Group
from .commit import VERSION, Unsealed
from .contents import Contents, MeshedState, contents_of_worker
from .copy_buffer import CopyBuffer
from .resume import Resumer
from .schedule import Schedule
from .source import is_bucket
from .writer import Shard, writer_of


class Checkpoints:
    """The checkpoints of a job in a folder or a bucket. A job has one such place. The thread of the
    training loop calls the methods, on all workers at the same place between two steps; at exit
    that is the thread of the exit handlers. Methods that agree with all workers wait for them.
    """

    def __init__(
        self, job: Group, state: State, root: str, every: "int | timedelta | str", keep: int
    ) -> None:
        """Name the place of the checkpoints, which need not be there yet, and register when the
        next one is due. `every` is a number of steps, a time or "auto". Raises TypeError or
        ValueError for arguments that mean nothing, ShoalError for a bucket without an agent.
        """
        nothing = root.rstrip("/ ") in ("", "s3:") or "\0" in root
        # A Path makes one slash of two.
        if nothing or ("://" in root or root.startswith("s3:/")) and not is_bucket(root):
            raise ValueError(
                f"checkpoint({root!r}): name a folder, or s3://BUCKET/PREFIX as a text, not a Path"
            )
        self.root = root.rstrip("/") if is_bucket(root) else os.path.abspath(root)
        self.keep = keep = as_integer(
            "keep", keep, 1, "how many checkpoints stay, an integer from 1 on"
        )
        self._job, self._state = job, state
        self.schedule = Schedule(every)
        self._writer = writer_of(job._backend)
        self._source = self._writer.source(self.root, keep)
        self._resumer = Resumer(job, self._source, self._writer, self.root, keep)
        # It belongs to the writer while the writer is busy.
        self._buffer = CopyBuffer(self._writer, self.root)
        self._share = (0, 0), 0  # size of the job and rank, and the bytes of this worker's share
        self.meshed: Optional[MeshedState] = None  # None = every worker has all of the state
        # The parts of the job's setting that people have set. Checkpoints have their names.
        self.people: Tuple[str, ...] = ()
        # What names a checkpoint that the workers make without asking each other: the same on all.
        self._shared_seed = 0
        # The last checkpoint that was copied and waits for the end of the job; None = none does.
        self._last_copy: Optional[Shard] = None
        state.register(
            "the name of the last checkpoint",
            lambda: self._shared_seed,
            lambda value: setattr(self, "_shared_seed", value),
            alike=False,
            checkpointed=False,
        )
        state.register(
            "when to make a checkpoint",
            self.schedule.get,
            self.schedule.set,
            alike=False,
        )

    def save_if_due(self, cursor: Cursor) -> None:
        """Make a checkpoint if one is due, between two steps. In some steps it agrees with all
        workers on that. Blocks for a copy of this worker's share; the rest is written later.
        """
        if self.schedule.is_agreement_due_at(cursor.step) and self._agree_to_save(cursor):
            self._save(cursor)

    def save_last(self, cursor: Cursor) -> None:
        """Make the last checkpoint, after the last step, and return when this worker's part of it
        is written.
        """
        self.wait()
        if cursor.step != self.schedule.newest_step and self._agree_to_save(cursor, ended=True):
            self._save(cursor)
            self._writer.wait()

    def copy_last(self, cursor: Cursor) -> None:
        """Copy this worker's share after the last step of a loop that may be the last one of the
        training, for `write_copy`; nothing where that step has a checkpoint. Waits for one that is
        being written, but for no other worker.
        """
        if cursor.step != self.schedule.newest_step:
            self.wait()
            self._last_copy = self._copy_shard(cursor, self._shared_seed)

    def discard_copy(self) -> None:
        """Forget what `copy_last` has copied: training goes on."""
        self._last_copy = None

    def write_copy(self) -> None:
        """Write what `copy_last` has copied, if it has, and return when that is done. No worker
        waits for another.
        """
        if self._last_copy is not None:
            shard, self._last_copy = self._last_copy, None
            self.schedule.newest_step = shard.checkpoint.step
            self._writer.write_now(shard)

    def save_stopped(self, cursor: Cursor) -> None:
        """Make the last checkpoint of a job that was asked to stop; return when this worker's part
        of it is written. No worker waits for another, some of which may have ended.
        """
        self.copy_last(cursor)
        self.write_copy()

    def save_parked(self, cursor: Cursor) -> str:
        """Make the checkpoint of a job that is parked between two steps, and agree with all workers
        on whether it is whole. Returns what is wrong with it; "" = nothing is. Waits for the other
        workers.
        """
        self.save_stopped(cursor)
        self._job.allreduce(array("q", [0]))  # what is not written by now will not be
        sealed = -1
        if self._job.rank == 0:
            try:
                newest = self._source.newest(0)
                sealed = -1 if newest is None else newest.step
            except ShoalError as err:
                log_line(str(err))
        # Where rank 0 is lost before it has looked, there is none on all others.
        drawn = random.SystemRandom().getrandbits(62)
        said = self._job.allreduce(array("q", [sealed, drawn]), op="max")
        self._shared_seed = int(said[1])
        if said[0] == cursor.step:
            return ""
        return (
            f"the checkpoint of step {cursor.step} in {self.root} is not whole; what the workers"
            " print says why"
        )

    def _agree_to_save(self, cursor: Cursor, ended: bool = False) -> bool:
        """Ask all workers whether they make a checkpoint here: one is due, and no worker still
        writes the one before. Sets `_seed`, which names it, and the step at which they ask each
        other next. With `ended` one is due, and memory for it is allocated here.
        """
        due, steps_ahead = self.schedule.check_due(cursor.step)
        due = due or ended
        if self._buffer.is_allocating() or self._writer.is_busy():
            room = 0
        else:
            room = self._buffer.check_room(self._share_bytes(), wait=ended) if due else 1
        # The minimum over the workers is the same on all, whichever are lost meanwhile.
        said = self._job.allreduce(
            array("q", [-due, room, steps_ahead, random.SystemRandom().getrandbits(62)]), op="min"
        )
        self._seed = int(said[3])
        if said[0] and said[1]:
            self.schedule.record_agreed(cursor.step, said[1] > 0)
            return bool(said[1] > 0)
        self.schedule.postpone(cursor.step, 1 if said[0] else int(said[2]))
        return False

    def _share_bytes(self) -> int:
        """The bytes of this worker's share, as it was when one was last copied or counted."""
        if self._share[0] != (self._job.size, self._job.rank):
            self._share = (self._job.size, self._job.rank), self._contents().nbytes
        return self._share[1]

    def _contents(self) -> Contents:
        """What this worker writes of the state as it is now. The arrays are not copied yet."""
        return contents_of_worker(self._state, self.meshed, self._job.rank, self._job.size)

    def _save(self, cursor: Cursor) -> None:
        """Copy this worker's share into the buffer, and have the writer write it."""
        shard = self._copy_shard(cursor, self._seed)
        if shard is not None:
            self._writer.write(shard)

    def _copy_shard(self, cursor: Cursor, seed: int) -> Optional[Shard]:
        """Copy this worker's share into the buffer, which nobody may be reading. Returns what to
        write of the checkpoint with that seed; None where there is no memory.
        """
        mine = self._contents()
        self._share = (self._job.size, self._job.rank), mine.nbytes
        if not self._buffer.fits(mine.nbytes):  # the state has grown, or a worker was lost
            self._buffer.allocate(mine.nbytes)
        if self._buffer.memory is None:
            return None
        body = self._buffer.memory[: mine.nbytes]
        if mine.nbytes:
            mine.copy_to(ctypes.addressof(ctypes.c_ubyte.from_buffer(body)))
        about = {
            "shoal": VERSION,
            "step": cursor.step,
            "cursor": cursor.pack().hex(),
            "workers": self._job.size,
            **({"people": self.people} if self.people else {}),
            **mine.about,
        }
        state = json.dumps(about, allow_nan=False).encode()
        return Shard(
            Unsealed(self.root, cursor.step, seed),
            self._job.rank,
            self._job.size,
            self.keep,
            state,
            mine.own,
            mine.tensors,
            mine.ranges,
            body,
        )

    def wait(self) -> None:
        """Return when no checkpoint is being written on this host, for whichever worker, and this
        worker allocates no memory for one.
        """
        self._buffer.wait()
        self._writer.wait()

    def resume(self, cursor: Cursor, batches: Optional[Tuple[int, int]] = None) -> Cursor:
        """Restore the newest checkpoint that is whole, and rename the damaged ones. All workers
        call it. Returns the place of the job after that: `cursor` when there is no checkpoint. The
        batch of the place is that of the checkpoint, which may differ from that of `cursor` within
        the range `batches`.

        The first time, a worker whose part could not be written there raises ShoalError. So do all
        when there are checkpoints, and none of them can be used.
        """
        found = self._resumer.read_newest(self.meshed)
        self._shared_seed = self._resumer.shared_seed
        if found is None:
            return cursor
        place = found.restore(self._state, cursor, batches, self._job.rank)
        self.people = tuple(found.state.get("people", ()))
        self.schedule.restart_interval(place.step)
        if self._resumer.is_speaker():
            log_line(
                f"goes on from the checkpoint of step {place.step} in {self.root}, of"
                f" {format_count(int(found.state['workers']), 'worker')}, with {self._job.size}"
            )
        return place
