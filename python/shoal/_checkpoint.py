"""Checkpoints of a job that trains in steps: the state that a worker that joins would get, on disk. docs/design/checkpoints.md has the reasons.

Training stops for one copy of this worker's share of the state, between two steps; a thread writes the copy. At the start of the
loop every worker reads the newest checkpoint that is whole.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import random
import threading
import time
from array import array
from typing import TYPE_CHECKING, Any, Dict, List, Optional, Tuple

from ._fingerprint import Key
from ._sealing import Sealed, Staging, point, say, sealed, settle, tensors
from ._shard import Reader, Run, catalogue, header, share, sums
from ._state import HUGE_PAGE, Item, memory
from .cursor import Cursor
from .errors import ShoalError

if TYPE_CHECKING:
    from datetime import timedelta

    from ._handover import State
    from ._shard import Kept
    from .group import Group

_FAR = 1 << 40


class Capture:
    """This worker's share of the state at one step, copied."""

    def __init__(self, staging: Staging, rank: int, size: int, about: Dict[str, Any], kept: "List[Kept]", runs: List[Run], head: bytes, body: memoryview):
        self.staging, self.rank, self.size, self.about = staging, rank, size, about
        self.kept, self.runs, self.head, self.body = kept, runs, head, body

    def write(self, keep: int) -> None:
        """Write it; and seal the checkpoint if it is the last part. Raises OSError."""
        begun = time.monotonic()
        if not self.rank:
            settle(self.staging.root, keep, besides=self.staging)
        self.staging.begin()
        files = [] if self.rank else [self.staging.describe(self.about)]
        files.append(self.staging.file(f"shard-{self.rank + 1:05d}-of-{self.size:05d}.safetensors", self.head, self.body))
        self.staging.receipt(self.rank, self.size, files, sums(Key(self.staging.seed), self.runs, self.body))
        if self.staging.seal(keep):
            nbytes = sum(k.nbytes for k in self.kept)
            took = time.monotonic() - begun
            say(f"checkpoint of step {self.staging.step} in {self.staging.root} is sealed: {nbytes} bytes by {self.size} workers, the last in {took:.1f} s")


class Checkpoints:
    """The checkpoints of a job in a folder. One for each job."""

    def __init__(self, job: "Group", state: "State", root: str, every: "int | timedelta", keep: int) -> None:
        self.root, self.keep = os.path.abspath(root), keep
        self._job, self._state = job, state
        if isinstance(every, int):
            self._steps, self._seconds = every, 0.0
        else:
            self._steps, self._seconds = 0, every.total_seconds()
        if self._steps <= 0 and self._seconds <= 0 or keep < 1:
            raise ValueError(f"checkpoint(every={every!r}, keep={keep}): a number of steps or a timedelta above 0, and 1 to keep at least")
        # The steps before which all workers ask each other whether a checkpoint is due, and that of the newest one. Those who join are told.
        self._next, self._last = self._steps or 1, -1
        self._due = self._looked = time.monotonic()
        self._looked_at = 0
        self._writer: Optional[threading.Thread] = None
        self._room: Optional[memoryview] = None
        state.register("when to make a checkpoint", lambda: [self._next, self._last], self._told, alike=False)

    def _told(self, value: List[int]) -> None:
        self._next, self._last = value

    def between(self, cursor: Cursor) -> None:
        """Between two steps: make a checkpoint if it is time."""
        if cursor.step >= self._next and self._agree(cursor, bool(self._steps)):
            self._begin(cursor)

    def end(self, cursor: Cursor) -> None:
        """Behind the last step: make the last checkpoint, and return when this worker's part of it is there."""
        self._wait()
        if cursor.step != self._last:
            if self._agree(cursor, True, ended=True):
                self._begin(cursor)
            self._wait()

    def _wait(self) -> None:
        if self._writer is not None:
            self._writer.join()

    def _agree(self, cursor: Cursor, due: bool, ended: bool = False) -> bool:
        """Whether all workers make a checkpoint here: it is time, and nobody still writes the one before."""
        now = time.monotonic()
        due = due or now - self._due >= self._seconds
        each = (now - self._looked) / max(cursor.step - self._looked_at, 1)
        away = min(int((self._due + self._seconds - now) / 2 / max(each, 1e-6)), _FAR)
        self._looked, self._looked_at = now, cursor.step
        free = (self._writer is None or not self._writer.is_alive()) and (ended or not due or self._has_room())
        # The least of all, and so the same everywhere, whoever is lost meanwhile.
        said = self._job.allreduce(array("q", [-due, free, max(away, 1), random.SystemRandom().getrandbits(62)]), op="min")
        self._seed = int(said[3])
        if said[0] and said[1]:
            self._next, self._last, self._due = cursor.step + (self._steps or 1), cursor.step, now
            return True
        self._next = cursor.step + (1 if said[0] else int(said[2]))
        return False

    def _has_room(self) -> bool:
        """Whether there is memory for the copy. To touch it takes far longer than to copy, so where there is much to touch a thread does."""
        items: List[Item] = []
        self._state.plans(items)
        nbytes = sum(run.stop - run.start for run in share(catalogue(items), self._job.rank, self._job.size))
        if nbytes < HUGE_PAGE or self._room is not None and self._room.nbytes >= nbytes:
            return True
        self._writer = threading.Thread(target=self._make_room, args=(nbytes,), name="shoal checkpoint")
        self._writer.start()
        return False

    def _make_room(self, nbytes: int) -> None:
        self._room = memory(nbytes)

    def _begin(self, cursor: Cursor) -> None:
        """Copy this worker's share, and have it written."""
        capture = self._capture(cursor)
        # It is no daemon: a worker that ends writes its part first.
        self._writer = threading.Thread(target=self._write, args=(capture,), name="shoal checkpoint")
        self._writer.start()

    def _capture(self, cursor: Cursor) -> Capture:
        rank, size = self._job.rank, self._job.size
        items: List[Item] = []
        notes, own = self._state.plans(items)
        kept = catalogue(items)
        runs = share(kept, rank, size)
        nbytes = sum(run.stop - run.start for run in runs)
        if self._room is None or self._room.nbytes < nbytes:
            self._room = memory(nbytes)
        body = self._room[:nbytes]
        at = ctypes.addressof(ctypes.c_ubyte.from_buffer(body)) if nbytes else 0
        for run in runs:
            items[run.tensor].copy_to(at, run.start, run.stop)
            at += run.stop - run.start
        listed = [{"name": k.name, "dtype": k.dtype, "shape": k.shape, "bytes": k.nbytes} for k in kept]
        about = {"step": cursor.step, "cursor": cursor.pack().hex(), "workers": size, "notes": notes, "tensors": listed}
        staging = Staging(self.root, cursor.step, self._seed)
        return Capture(staging, rank, size, about, kept, runs, header(kept, runs, {"rank": rank, "own": own}), body)

    def _write(self, capture: Capture) -> None:
        with contextlib.suppress(AttributeError, OSError):  # training comes first
            os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), 10)
        try:
            capture.write(self.keep)
        except FileNotFoundError:
            say(f"checkpoint of step {capture.staging.step} in {self.root} is abandoned: its folder is gone, because another worker could not write or left it behind")
        except OSError as err:
            capture.staging.abandon()
            say(f"checkpoint of step {capture.staging.step} in {self.root} is abandoned, and training goes on: {err}; the ones before it are there")

    def resume(self, cursor: Cursor) -> Cursor:
        """Take over the newest checkpoint that is whole. Returns the place that the job is at then: `cursor` when there is none.

        Raises ShoalError when there are checkpoints, and none of them can be used.
        """
        if not self._job.rank:
            try:
                settle(self.root, self.keep)
            except OSError as err:
                say(f"what is left in {self.root} of earlier checkpoints stays there: {err}")
        damaged: List[Sealed] = []
        for chosen in iter(lambda: self._choose(len(damaged)), None):
            found = self._read(chosen)
            if found is None:
                damaged.append(chosen)
                continue
            if not self._job.rank:
                for bad in damaged:
                    bad.set_aside()
                point(self.root)
            return self._take(chosen, cursor, *found)
        if damaged:
            raise ShoalError(
                f"none of the {len(damaged)} checkpoints in {self.root} can be used; what is wrong with each stands above. "
                "Repair one, or name another folder to start from the beginning"
            )
        return cursor

    def _choose(self, tried: int) -> Optional[Sealed]:
        """The newest checkpoint but so many, as rank 0 sees it."""
        listed = sealed(self.root)[tried:] if not self._job.rank else []
        (step,) = self._job.broadcast(array("q", [listed[0].step if listed else -1]))
        return Sealed(self.root, step) if step >= 0 else None

    def _read(self, chosen: Sealed) -> Optional[Tuple[Dict[str, Any], Reader]]:
        """Read all of a checkpoint. Each worker compares its share of the hashes, and all of them agree on what they have seen."""
        found = None
        rank, size = self._job.rank, self._job.size
        while True:
            blocks = hashed = 0
            try:
                state, files = chosen.state(), chosen.files()
                reader = Reader(tensors(state))
                for file in files:
                    blocks += len(file["sha256"])
                    reader.read(os.path.join(chosen.path, file["name"]), file["size"], file["sha256"], rank, size)
                found, hashed = (state, reader), reader.hashed
            except (OSError, ValueError, KeyError, TypeError, IndexError) as err:
                say(f"checkpoint of step {chosen.step} cannot be used: {err}; the one before it is tried")
                found = None
            said = self._job.allreduce(array("q", [found is None, hashed]))
            if said[0]:
                return None
            if said[1] >= blocks:
                return found
            rank, size = 0, 1  # a worker was lost that had compared a share

    def _take(self, chosen: Sealed, cursor: Cursor, state: Dict[str, Any], reader: Reader) -> Cursor:
        place = Cursor.unpack(bytes.fromhex(state["cursor"]))
        ours, theirs = ((c.samples, c.batch, c.seed, c.shuffle) for c in (cursor, place))
        if ours != theirs:
            raise ShoalError(
                f"{chosen.path} is of a job with (samples, batch, seed, shuffle) = {theirs}, this one has {ours}: name another folder, or train on the same"
            )
        try:
            self._state.restore(state["notes"], reader.own[self._job.rank % int(state["workers"])], reader.parts)
        except KeyError as err:
            raise ShoalError(f"{chosen.path} lacks {err}: it was written by another release of shoal") from None
        # Those who write the next one go on from here.
        self._next, self._last = place.step + (self._steps or 1), place.step
        self._due = self._looked = time.monotonic()
        self._looked_at = place.step
        if not self._job.rank:
            say(f"goes on from the checkpoint of step {place.step} in {self.root}, of {state['workers']} workers, with {self._job.size}")
        return place
