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
import threading
from array import array
from datetime import timedelta
from typing import Any, Callable, Dict, List, NamedTuple, Optional, Protocol, Tuple

from .._live.transfer import State
from .._runtime.arguments import as_integer
from .._runtime.log import format_count, log_line
from .._runtime.protocol import HUGE_PAGE
from .._runtime.tree import Item
from ..cursor import Cursor
from ..errors import ShoalError
from ..group import Group
from .commit import VERSION, Sealed, Unsealed, listed_tensors
from .schedule import Schedule
from .shards import ByteRange, ShardReader, TensorInfo, catalogue, shard_ranges
from .source import Candidate, is_bucket
from .writer import Shard, writer_of


class Contents(NamedTuple):
    """What this worker writes of a checkpoint."""

    about: Dict[str, Any]  # the content of shoal-checkpoint.json, without the place in the data
    own: Dict[str, Any]  # the values of this worker alone
    tensors: List[TensorInfo]  # all tensors of the checkpoint; none of a model on a mesh
    ranges: List[ByteRange]  # what of their bytes this worker writes
    nbytes: int  # of what this worker writes
    copy_to: Callable[[int], None]  # copies the bytes to an address


class LoadedParts(Protocol):
    """The parts of a checkpoint that this worker has read. The thread of the training loop uses it,
    when all has been read.
    """

    @property
    def parts(self) -> List[memoryview]:
        """The bytes of the items, in their order, which the caller may keep."""

    @property
    def own(self) -> Dict[int, Any]:
        """The values of each worker alone, by rank."""


class MeshedState(Protocol):
    """The state of a model that is cut over a mesh: each worker has a part of it. The thread of the
    training loop calls the methods; both may wait for the agent.
    """

    def contents(self, notes: Dict[str, Any], own: Dict[str, Any], items: List[Item]) -> Contents:
        """What this worker writes of the state as it is now; `items` are the registered values,
        alike on all workers.
        """

    def read(self, chosen: Sealed, state: Dict[str, Any]) -> LoadedParts:
        """Read this worker's part, which is not set yet. Raises ValueError when the checkpoint
        cannot be used.
        """


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
        if root.rstrip("/ ") in ("", "s3:") or "\0" in root:
            raise ValueError(f"checkpoint({root!r}): name a folder, or s3://BUCKET/PREFIX")
        self.root = root.rstrip("/") if is_bucket(root) else os.path.abspath(root)
        self.keep = keep = as_integer(
            "keep", keep, 1, "how many checkpoints stay, an integer from 1 on"
        )
        self._job, self._state = job, state
        self.schedule = Schedule(every)
        self._writer = writer_of(job._backend)
        self._source = self._writer.source(self.root, keep)
        # The thread that allocates the buffer; None = none was started.
        self._allocator: Optional[threading.Thread] = None
        # Memory for the copy of this worker's share; None = not allocated. It belongs to the writer
        # while the writer is busy, and to the allocator while that runs.
        self._buffer: Optional[memoryview] = None
        # Bytes of the buffer that could not be allocated; 0 = none. The allocator sets it too.
        self._missing_bytes = 0
        self._share = (0, 0), 0  # size of the job and rank, and the bytes of this worker's share
        self._writable = False  # a file was written there, when the job began
        self._lister = 0  # the rank that lists the checkpoints
        self.meshed: Optional[MeshedState] = None  # None = every worker has all of the state
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
        making = self._allocator is not None and self._allocator.is_alive()
        room = (
            0 if making or self._writer.is_busy() else self._buffer_state(wait=ended) if due else 1
        )
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

    def _buffer_state(self, wait: bool) -> int:
        """1 when there is memory for the copy, -1 when there is none. Where it is not allocated
        yet, this allocates it: here with `wait` or where it is small, else on a thread, and returns
        0 until that is done, because to touch the memory takes far longer than to copy.

        When one worker has no memory for a checkpoint, no worker makes it.
        """
        if self._share[0] != (self._job.size, self._job.rank):
            self._share = (self._job.size, self._job.rank), self._contents().nbytes
        nbytes = self._share[1]
        if self._buffer_fits(nbytes):
            return 1
        if wait or nbytes < HUGE_PAGE:
            self._allocate_buffer(nbytes)
        elif self._missing_bytes < nbytes:
            self._allocator = threading.Thread(
                target=self._allocate_buffer, args=(nbytes,), name="shoal checkpoint"
            )
            self._allocator.start()
            return 0
        self._missing_bytes = 0  # the next checkpoint tries again
        return 1 if self._buffer_fits(nbytes) else -1

    def _buffer_fits(self, nbytes: int) -> bool:
        """Whether the buffer is there and large enough. The allocator does not run."""
        return self._buffer is not None and self._buffer.nbytes >= nbytes

    def _allocate_buffer(self, nbytes: int) -> None:
        """Allocate the buffer, on the training thread or the allocator; where there is no memory,
        say so in the log.
        """
        self._buffer = None  # free the smaller buffer first
        try:
            self._buffer = self._writer.allocate(max(nbytes, 1))
        except ShoalError as err:
            self._missing_bytes = nbytes
            log_line(
                f"there is no memory for a checkpoint in {self.root}, and training goes on: {err}"
            )

    def _contents(self) -> Contents:
        """What this worker writes of the state as it is now, by the functions that are registered.
        The arrays are not copied yet.
        """
        items: List[Item] = []
        notes, own = self._state.plan_checkpoint(items, self._job.size)
        if self.meshed is not None:
            return self.meshed.contents(notes, own, items)
        tensors = catalogue(items)
        ranges = shard_ranges(tensors, self._job.rank, self._job.size)
        listed = [
            {
                "name": k.name,
                "dtype": k.dtype,
                "shape": k.shape,
                "bytes": k.nbytes,
                **({"cuts": k.cuts} if k.cuts else {}),
            }
            for k in tensors
        ]

        def copy_to(at: int) -> None:
            """Copy this worker's ranges to memory at an address, one after the other, before the
            arrays change.
            """
            for run in ranges:
                items[run.tensor].copy_to(at, run.start, run.stop)
                at += run.stop - run.start

        return Contents(
            {"notes": notes, "tensors": listed},
            own,
            tensors,
            ranges,
            sum(run.stop - run.start for run in ranges),
            copy_to,
        )

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
        if not self._buffer_fits(mine.nbytes):  # the state has grown, or a worker was lost
            self._allocate_buffer(mine.nbytes)
        if self._buffer is None:
            return None
        body = self._buffer[: mine.nbytes]
        if mine.nbytes:
            mine.copy_to(ctypes.addressof(ctypes.c_ubyte.from_buffer(body)))
        about = {
            "shoal": VERSION,
            "step": cursor.step,
            "cursor": cursor.pack().hex(),
            "workers": self._job.size,
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
        if self._allocator is not None:
            self._allocator.join()
        self._writer.wait()

    def resume(self, cursor: Cursor, batches: Optional[Tuple[int, int]] = None) -> Cursor:
        """Restore the newest checkpoint that is whole, and rename the damaged ones. All workers
        call it. Returns the place of the job after that: `cursor` when there is no checkpoint. The
        batch of the place is that of the checkpoint, which may differ from that of `cursor` within
        the range `batches`.

        The first time, a worker whose part could not be written there raises ShoalError. So do all
        when there are checkpoints, and none of them can be used.
        """
        damaged: List[Candidate] = []
        self._lister = 0
        chosen = self._choose_checkpoint(0)
        if not self._writable:  # now, because what earlier workers left is removed
            self._writer.try_write(self.root, self.keep)
            self._writable = True
        while chosen is not None:
            found = self._read_checkpoint(chosen)
            self._source.release()
            if found is None:
                damaged.append(chosen)
                chosen = self._choose_checkpoint(len(damaged))
                continue
            if self._job.rank == self._lister:
                for bad in damaged:
                    self._source.quarantine(bad)
            return self._restore(
                f"the checkpoint of step {chosen.step} in {self.root}", cursor, batches, *found
            )
        if damaged:
            raise ShoalError(
                f"none of the {len(damaged)} checkpoints in {self.root} can be used; what is wrong"
                " with each stands above. Repair one, or name another folder to start from the"
                " beginning"
            )
        return cursor

    def _choose_checkpoint(self, tried: int) -> Optional[Candidate]:
        """Agree with all workers on the newest checkpoint after the `tried` newest ones, as the
        first rank that is not lost sees it, which looks there; None = there is none.
        """
        nobody, none, one = range(3)
        while True:
            said = array("q", [nobody, 0, 0, 0])
            if self._job.rank == self._lister:
                newest = self._source.newest(tried)
                drawn = random.SystemRandom().getrandbits(62)
                said = array("q", [none, 0, 0, drawn] if newest is None else [one, *newest, drawn])
            there, step, seed, drawn = map(int, self._job.broadcast(said, self._lister))
            if there != nobody:
                self._shared_seed = drawn
                return Candidate(step, seed) if there == one else None
            # The rank was lost before it had looked, and another rank's empty answer came instead.
            self._lister += 1

    def _read_checkpoint(self, chosen: Candidate) -> Optional[Tuple[Dict[str, Any], LoadedParts]]:
        """Read all of a checkpoint into memory, or this worker's part; None where it cannot be used
        on all workers. Each worker compares its share of the hashes, and all of them agree on what
        they have seen, for which they wait. Returns the content of shoal-checkpoint.json, and what
        was read.
        """
        found: Optional[Tuple[Dict[str, Any], LoadedParts]] = None
        fetched: Optional[Sealed] = None
        broken = ""
        try:
            fetched = self._source.fetch(chosen)
        except ValueError as err:
            broken = str(err)
        rank, size = self._job.rank, self._job.size
        while True:
            blocks = hashed = 0
            try:
                if fetched is None:
                    raise ValueError(broken)
                state = fetched.read_state()
                if ("mesh" in state) != (self.meshed is not None):
                    raise ValueError(
                        "it is of a job with a mesh"
                        if "mesh" in state
                        else "it is of a job without a mesh"
                    )
                if self.meshed is not None:
                    found = state, self.meshed.read(fetched, state)
                else:
                    loaded = ShardReader(listed_tensors(state))
                    for file in fetched.file_hashes():
                        blocks += len(file["sha256"])
                        loaded.read(
                            os.path.join(fetched.path, file["name"]),
                            file["size"],
                            file["sha256"],
                            rank,
                            size,
                        )
                    found, hashed = (state, loaded), loaded.hashed
            except (OSError, ValueError, KeyError, TypeError, IndexError) as err:
                log_line(
                    f"checkpoint of step {chosen.step} cannot be used: {err}; the one before it is"
                    " tried"
                )
                found = None
            said = self._job.allreduce(array("q", [found is None, hashed]))
            if said[0]:
                return None
            if said[1] >= blocks:
                return found
            rank, size = 0, 1  # a worker was lost that had compared a share

    def _restore(
        self,
        name: str,
        cursor: Cursor,
        batches: Optional[Tuple[int, int]],
        state: Dict[str, Any],
        loaded: LoadedParts,
    ) -> Cursor:
        """Set the registered state to that of a checkpoint that was read, and return its place.
        `name` is the checkpoint in messages, `cursor` the place of this program, `batches` what its
        batch may be (None = that of `cursor` alone), and `state` the content of
        shoal-checkpoint.json. Raises ShoalError where it does not fit this program.
        """
        place = Cursor.unpack(bytes.fromhex(state["cursor"]))
        ours, theirs = ((c.samples, c.batch, c.seed, c.shuffle) for c in (cursor, place))
        if batches is not None and batches[0] <= place.batch <= batches[1]:
            ours = (ours[0], place.batch, *ours[2:])
        if ours != theirs:
            raise ShoalError(
                f"{name} is of a job with (samples, batch, seed, shuffle) = {theirs}, this one has"
                f" {ours}{'' if batches is None else f', batch_range={batches}'}: name another"
                " folder, or train on the same"
            )
        if place.round > 1 and not cursor.round:
            raise ShoalError(
                f"{name} is of a job whose workers synchronise after {place.round} steps, and this"
                " one averages gradients in every step: name another folder, or state sync=… or"
                " local_steps=… as the program that wrote it"
            )
        try:
            self._state.restore(
                {**state["notes"], **loaded.own[self._job.rank % int(state["workers"])]},
                loaded.parts,
                checkpoint=True,
            )
        except ShoalError:
            raise
        except Exception as err:
            # An error of a registered setter: the state is that of another model or optimizer.
            raise ShoalError(
                f"{name} does not fit this program ({type(err).__name__}: {err}): name another"
                " folder, or run the program that wrote it"
            ) from err
        self.schedule.restart_interval(place.step)
        if self._job.rank == self._lister:
            log_line(
                f"goes on from the checkpoint of step {place.step} in {self.root}, of"
                f" {format_count(int(state['workers']), 'worker')}, with {self._job.size}"
            )
        return place
