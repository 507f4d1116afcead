"""Who writes a worker's part of a checkpoint while training goes on: the agent of its host, or in a
job of one without an agent a thread.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import threading
import time
from typing import TYPE_CHECKING, Any, Dict, List, NamedTuple, Optional, Protocol

from .._runtime.link import Refused
from .._runtime.log import counted, say
from ..errors import ShoalError
from .commit import STATE, Staging, settle
from .fingerprint import Key
from .shards import Kept, Run, header, sums
from .source import AgentShelf, OwnShelf, Shelf, is_url
from .tree import memory

if TYPE_CHECKING:
    from .._runtime.worker import Worker


class Part(NamedTuple):
    """What a worker writes of a checkpoint."""

    staging: Staging
    rank: int
    size: int
    keep: int
    state: bytes  # what the checkpoint is of, in JSON
    own: Dict[str, Any]  # what this worker has for itself
    kept: List[Kept]
    runs: List[Run]
    body: memoryview  # the bytes of the runs, in memory that `Scribe.room` gave


class Scribe(Protocol):
    """Writes one part at a time."""

    def room(self, nbytes: int) -> memoryview:
        """Memory to copy a share into, all of it touched. It may take a while. Raises ShoalError
        when there is none.
        """

    def write(self, part: Part) -> None:
        """Begin to write a part. What goes wrong is said, and training goes on."""

    def busy(self) -> bool:
        """Whether it still writes."""

    def wait(self) -> None:
        """Return when it does not."""

    def shelf(self, root: str, keep: int) -> Shelf:
        """Where what was written is found again. Raises ShoalError where that is out of reach."""


class AgentScribe:
    """The agent writes: it has the memory, so the part is written even if this worker is lost."""

    def __init__(self, worker: "Worker") -> None:
        self._worker = worker
        self._texts: List[memoryview] = []  # memory that the agent may still read

    def room(self, nbytes: int) -> memoryview:
        """Arena memory."""
        return memoryview(self._worker.buffer(nbytes)).cast("B")

    def write(self, part: Part) -> None:
        """Hand the part over."""
        arena, staging = self._worker.arena, part.staging
        self._texts = [
            arena.copy(part.state),
            arena.copy(json.dumps(part.own, separators=(",", ":"), allow_nan=False).encode()),
        ]
        state, own, body = map(arena.extent, [*self._texts, part.body])
        asked = {
            "folder": staging.root,
            "keep": part.keep,
            "seed": staging.seed,
            "rank": part.rank,
            "state": state,
            "own": own,
            "body": body,
        }
        try:
            self._worker.link.request({"type": "save", "part": asked}, "save")
        except Refused as err:
            say(
                f"checkpoint of step {staging.step} in {staging.root} is abandoned, and training"
                f" goes on: the agent refused its part: {err}"
            )

    def read(self, root: str, step: int, mesh: str, rank: int, into: memoryview) -> None:
        """Have the agent read what a rank has on a mesh from a checkpoint. Raises ValueError when
        it cannot.
        """
        asked = {
            "folder": root,
            "step": step,
            "mesh": mesh,
            "rank": rank,
            "into": self._worker.arena.extent(into),
        }
        try:
            self._worker.link.request({"type": "load", "load": asked}, "load")
        except Refused as err:
            raise ValueError(str(err)) from None

    def busy(self) -> bool:
        """Whether the agent still writes a part, of this worker or of another one of this host,
        which may be lost.
        """
        return not self._written(wait=False)

    def wait(self) -> None:
        """Return when it does not."""
        self._written(wait=True)

    def shelf(self, root: str, keep: int) -> Shelf:
        """A bucket is the agent's to read, too."""
        if is_url(root):
            return AgentShelf(self._worker.link, root, keep)
        return OwnShelf(root, keep)

    def _written(self, wait: bool) -> bool:
        reply, _ = self._worker.link.request({"type": "saved", "wait": wait}, "saved")
        return bool(reply.get("done"))


class OwnScribe:
    """A thread of this process writes."""

    def __init__(self) -> None:
        self._thread: Optional[threading.Thread] = None

    def room(self, nbytes: int) -> memoryview:
        """Memory of this process."""
        try:
            return memory(nbytes)
        except (MemoryError, OSError) as err:
            raise ShoalError(
                f"the system does not give {nbytes} bytes: free arrays, or raise `ulimit -v`"
            ) from err

    def write(self, part: Part) -> None:
        """Start the thread."""
        # It is no daemon: a program that ends writes its part first.
        self._thread = threading.Thread(target=_write, args=(part,), name="shoal checkpoint")
        self._thread.start()

    def busy(self) -> bool:
        """Whether the thread runs."""
        return self._thread is not None and self._thread.is_alive()

    def wait(self) -> None:
        """Return when it does not."""
        if self._thread is not None:
            self._thread.join()

    def shelf(self, root: str, keep: int) -> Shelf:
        """A folder: without an agent there is nobody who reaches a bucket."""
        if is_url(root):
            raise ShoalError(
                f"{root} is read and written by the agent, and there is none: start the program"
                " with `shoal run -n 1 -- python …`, or name a folder"
            )
        return OwnShelf(root, keep)


def _write(part: Part) -> None:
    with contextlib.suppress(AttributeError, OSError):  # training comes first
        os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), 10)
    staging, begun = part.staging, time.monotonic()
    try:
        settle(staging.root, part.keep, besides=staging)
        staging.begin()
        files = [staging.file(STATE, part.state, memoryview(b""))]
        head = header(part.kept, part.runs, part.rank, part.size, part.own)
        files.append(
            staging.file(
                f"shard-{part.rank + 1:05d}-of-{part.size:05d}.safetensors", head, part.body
            )
        )
        staging.receipt(part.rank, part.size, files, sums(Key(staging.seed), part.runs, part.body))
        if staging.seal(part.keep):
            nbytes, took = sum(k.nbytes for k in part.kept), time.monotonic() - begun
            say(
                f"checkpoint of step {staging.step} in {staging.root} is sealed: {nbytes} bytes by"
                f" {counted(part.size, 'worker')}, the last in {took:.1f} s"
            )
    except OSError as err:
        staging.abandon()
        room = (
            "; make room there, or keep fewer, and the next one is written"
            if err.errno in (errno.ENOSPC, errno.EDQUOT)
            else ""
        )
        say(
            f"checkpoint of step {staging.step} in {staging.root} is abandoned, and training goes"
            f" on: {err}; the ones before it are there{room}"
        )
