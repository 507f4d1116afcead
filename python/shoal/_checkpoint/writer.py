"""Who writes a worker's shard of a checkpoint while training goes on: the agent of its host, or a
thread in a job of one without an agent.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import threading
import time
from typing import Any, Dict, List, NamedTuple, Optional, Protocol

from .._runtime.backend import Backend
from .._runtime.link import Refused
from .._runtime.log import format_count, log_line
from .._runtime.tree import allocate_touched
from .._runtime.worker import Worker
from ..errors import ArenaError, ShoalError
from .commit import STATE, Unsealed, recover, try_write
from .fingerprint import Key
from .shards import ByteRange, Damaged, TensorInfo, fingerprints, shard_header
from .source import BucketSource, FolderSource, Source, is_bucket


class Shard(NamedTuple):
    """What one worker writes of a checkpoint."""

    checkpoint: Unsealed
    rank: int
    size: int  # number of workers that write it
    keep: int  # how many sealed checkpoints stay
    state: bytes  # the content of shoal-checkpoint.json
    own: Dict[str, Any]  # values of this worker alone
    tensors: List[TensorInfo]  # all tensors of the checkpoint
    ranges: List[ByteRange]  # the bytes of them that are in this shard
    body: memoryview  # the bytes of the ranges, in memory from `Writer.allocate`


class Writer(Protocol):
    """Writes one shard at a time. The thread of the training loop calls the methods. Only
    `write_now` and `wait`, and `write` where no thread can be started, wait until a shard is
    written; where there is an agent, the others may wait for its answer.
    """

    def allocate(self, nbytes: int) -> memoryview:
        """New memory to copy a shard into, with all of its pages touched, which may take a while.
        Any thread may call it. Raises ShoalError when there is none.
        """

    def write(self, shard: Shard) -> None:
        """Begin to write a shard, whose body must not change until that is done. Errors go to the
        log, and training goes on.
        """

    def write_now(self, shard: Shard) -> None:
        """Write a shard, and return when that is done; also while the process exits."""

    def is_busy(self) -> bool:
        """Whether a shard is still being written."""

    def wait(self) -> None:
        """Return when no shard is being written."""

    def try_write(self, root: str, keep: int) -> None:
        """Write a small file where checkpoints are to be, and remove it. Raises ShoalError where
        that is refused.
        """

    def source(self, root: str, keep: int) -> Source:
        """Where checkpoints that were written are found. Raises ShoalError where that is out of
        reach.
        """


def writer_of(backend: Backend) -> Writer:
    """A writer for this rank: its agent, or a thread where there is none."""
    if isinstance(backend, Worker):
        return AgentWriter(backend)
    return ThreadWriter()


class AgentWriter:
    """The agent writes. It has the memory, so the shard is written even if this worker is lost. All
    methods but `source` may wait for its answer. The thread of the training loop calls them, but
    for `allocate`.
    """

    def __init__(self, worker: Worker) -> None:
        """A writer for the arena memory of this worker."""
        self._worker = worker
        self._texts: List[memoryview] = []  # memory that the agent may still read

    def allocate(self, nbytes: int) -> memoryview:
        """New arena memory, which is freed when nothing refers to it. Raises ArenaError, which is a
        ShoalError, where the agent has none.
        """
        return memoryview(self._worker.buffer(nbytes)).cast("B")

    def write(self, shard: Shard) -> None:
        """Hand the shard over to the agent, which writes it while this worker goes on. What it
        refuses goes to the log, and so does a lack of memory.
        """
        arena, checkpoint = self._worker.arena, shard.checkpoint
        own = json.dumps(shard.own, separators=(",", ":"), allow_nan=False).encode()
        why = "there is no memory for its part"
        try:
            self._texts = []  # free what the last one had
            for text in (shard.state, own):
                self._texts.append(arena.copy_in(text))
            places = zip(("state", "own", "body"), map(arena.extent, [*self._texts, shard.body]))
            asked = {
                "folder": checkpoint.root,
                "keep": shard.keep,
                "seed": checkpoint.seed,
                "rank": shard.rank,
                **dict(places),
            }
            why = "the agent refused its part"
            self._worker.link.request({"type": "save", **asked}, "save")
        except (ArenaError, Refused) as err:
            log_line(
                f"checkpoint of step {checkpoint.step} in {checkpoint.root} is abandoned, which"
                f" does not stop the job: {why}: {err}"
            )

    def write_now(self, shard: Shard) -> None:
        """Hand the shard over, and return when the agent has written it, and those of the other
        workers of this host that it has.
        """
        self.write(shard)
        self.wait()

    def read(self, root: str, step: int, mesh: str, rank: int, into: memoryview) -> None:
        """Have the agent read what a rank holds on a mesh from a checkpoint into arena memory, and
        wait for that. Raises Damaged where the bytes are wrong, ShoalError when it cannot.
        """
        asked = {
            "folder": root,
            "step": step,
            "mesh": mesh,
            "rank": rank,
            "into": self._worker.arena.extent(into),
        }
        try:
            reply, _ = self._worker.link.request({"type": "load", **asked}, "load")
        except Refused as err:
            raise ShoalError(str(err)) from None
        if reply.get("damaged"):
            raise Damaged(str(reply["damaged"]))

    def is_busy(self) -> bool:
        """Whether the agent still writes a shard of any worker of this host."""
        return not self._ask_written(wait=False)

    def wait(self) -> None:
        """Return when the agent writes no shard of any worker of this host."""
        self._ask_written(wait=True)

    def try_write(self, root: str, keep: int) -> None:
        """Have the agent write a small file there, and wait for that. Raises ShoalError."""
        asked = {"type": "resume", "do": "try", "folder": root, "keep": keep}
        try:
            self._worker.link.request(asked, "resume")
        except Refused as err:
            raise ShoalError(str(err)) from None

    def source(self, root: str, keep: int) -> Source:
        """A folder that this worker reads, or a bucket that the agent reads."""
        if is_bucket(root):
            return BucketSource(self._worker.link, root, keep)
        return FolderSource(root, keep)

    def _ask_written(self, wait: bool) -> bool:
        """Ask the agent whether it has written all shards that workers of this host have handed
        over; with `wait` it answers when it has.
        """
        reply, _ = self._worker.link.request({"type": "saved", "wait": wait}, "saved")
        return bool(reply.get("done"))


class ThreadWriter:
    """A thread of this process writes. The thread of the training loop calls the methods, but for
    `allocate`, which any thread may call; `write_now`, `wait` and `try_write` block, and
    `write` where no thread can be started.
    """

    def __init__(self) -> None:
        """A writer without a thread yet."""
        self._thread: Optional[threading.Thread] = None  # of the newest shard; None = none yet

    def allocate(self, nbytes: int) -> memoryview:
        """New memory of this process. Raises ShoalError where the system has none."""
        try:
            return allocate_touched(nbytes)
        except (MemoryError, OSError) as err:
            raise ShoalError(
                f"the system does not give {nbytes} bytes: free arrays, or raise `ulimit -v`"
            ) from err

    def write(self, shard: Shard) -> None:
        """Start a thread that writes the shard; where the system has none, write it here. The
        caller knows that the one before has ended.
        """
        # No daemon thread: a program that ends writes its shard first.
        thread = threading.Thread(target=self._write_slowly, args=(shard,), name="shoal checkpoint")
        try:
            thread.start()
        except RuntimeError:
            self.write_now(shard)
        else:
            self._thread = thread

    @staticmethod
    def _write_slowly(shard: Shard) -> None:
        """Write the shard at a low priority. Runs on the thread."""
        with contextlib.suppress(AttributeError, OSError):  # training has the higher priority
            os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), 10)
        _write_shard(shard)

    def write_now(self, shard: Shard) -> None:
        """Write the shard here: no thread starts while the process exits."""
        _write_shard(shard)

    def is_busy(self) -> bool:
        """Whether the thread still writes a shard."""
        return self._thread is not None and self._thread.is_alive()

    def wait(self) -> None:
        """Return when the thread has written its shard, if it has one."""
        if self._thread is not None:
            self._thread.join()

    def try_write(self, root: str, keep: int) -> None:
        """Write a small file there, and remove it. Raises ShoalError where that is refused."""
        try:
            try_write(root)
        except OSError as err:
            raise ShoalError(
                f"no checkpoint can be written to {root}: {err}; name another place, or have this"
                " one take files"
            ) from None

    def source(self, root: str, keep: int) -> Source:
        """A folder: without an agent no bucket can be reached."""
        if is_bucket(root):
            raise ShoalError(
                f"{root} is read and written by the agent, and there is none: start the program"
                " with `shoal run -n 1 -- python …`, or name a folder"
            )
        return FolderSource(root, keep)


def _write_shard(shard: Shard) -> None:
    """Write a shard and its receipt, and seal the checkpoint if it is complete. Errors go to the
    log. Blocks for the files, on the thread of a ThreadWriter, or as the process exits on the one
    that calls `write_now`.
    """
    checkpoint, begun = shard.checkpoint, time.monotonic()
    try:
        recover(checkpoint.root, shard.keep, besides=checkpoint)
        checkpoint.make_folder()
        files = [checkpoint.write_file(STATE, shard.state, memoryview(b""))]
        head = shard_header(shard.tensors, shard.ranges, shard.rank, shard.size, shard.own)
        name = f"shard-{shard.rank + 1:05d}-of-{shard.size:05d}.safetensors"
        files.append(checkpoint.write_file(name, head, shard.body))
        sums = fingerprints(Key(checkpoint.seed), shard.ranges, shard.body)
        checkpoint.write_receipt(shard.rank, shard.size, files, sums)
        if checkpoint.seal(shard.keep):
            nbytes, took = sum(t.nbytes for t in shard.tensors), time.monotonic() - begun
            log_line(
                f"checkpoint of step {checkpoint.step} in {checkpoint.root} is sealed: {nbytes}"
                f" bytes by {format_count(shard.size, 'worker')}, the last in {took:.1f} s"
            )
    except OSError as err:
        checkpoint.abandon()
        room = ""
        if err.errno in (errno.ENOSPC, errno.EDQUOT):
            fewer = ", or keep fewer" if shard.keep > 1 else ""
            room = f"; make room there for the next one{fewer}"
        log_line(
            f"checkpoint of step {checkpoint.step} in {checkpoint.root} is abandoned, which does"
            f" not stop the job: {err}; the ones before it stay{room}"
        )
