"""By which way gradients get to the other workers: from device to device, or through the arena."""

from __future__ import annotations

import hashlib
import os
import secrets
import sys
from array import array
from typing import Callable, Dict, List, NamedTuple, Optional, Sequence

from torch import Tensor

import shoal
from shoal.errors import LostError

from . import cuda
from .bucket import Bucket
from .bucket_copy import Mover, mover_of
from .exchange import Exchange
from .nccl import Direct, Ring

OFF = "SHOAL_NCCL"  # in the environment: 0 has all go through the arena
_ABLE, _ON_THE_CPU, _WITHOUT, _TURNED_OFF, _FAILED = range(5)
_WHY = {
    _ON_THE_CPU: "trains on the CPU",
    _WITHOUT: "has no NCCL that can be aborted",
    _TURNED_OFF: f"has {OFF}=0",
    _FAILED: "could not use NCCL; what it says is in its log",
}


class Way(NamedTuple):
    """Buckets, how tensors get into them and out of them, and what averages them."""

    mover: Mover
    buckets: Sequence[Bucket]
    exchange: Exchange


class _Resident(Mover):
    """Tensors and buckets lie on one device, and the stream that computes copies."""

    def __init__(self, card: cuda.Card):
        self.future = card.future


class Worker(NamedTuple):
    """What the others must know of a worker to choose. Every field is an integer of 63 bits."""

    name: int  # of the process; 0 = it is lost
    state: int
    device: int
    version: int  # of NCCL


class Ways:
    """The ways of the buckets of a model. All workers choose the same one, in the first step of a
    generation and when a step was void.

    They go from device to device where every worker has a device of its own and the same NCCL, else
    through the arena. Buckets of other kinds than Bucket, and those of a group (`group`), always go
    through the arena. So do those of a job that has begun on CPUs alone: its workers ask each other
    nothing, and those who join are told so.
    """

    def __init__(
        self,
        job: "shoal.Job",
        tensors: Sequence[Tensor],
        buckets: Sequence[Bucket],
        group: "Optional[shoal.Group]",
        plain: bool,
    ):
        self._job, self._card, self._group = job, cuda.card_of(tensors), group
        self.arena = self._through_the_arena(mover_of(job, tensors), buckets)
        self._asks = False
        if group is None and plain:
            self._asks = not job.outside and bool(
                job.allreduce(array("q", [self._card is not None]), "max")[0]
            )
            job._state.register(
                job.unused("devices"), lambda: self._asks, self._told, checkpointed=False
            )
        self._way, self._generation = self.arena, -1
        self._resident: List[Bucket] = []  # the buckets on the device, as far as they were needed
        self._ring: Optional[Ring] = None
        self._broken = -1  # the generation in which NCCL has failed here
        self._name, self._said = secrets.randbits(62) | 1, ""

    def _told(self, asks: bool) -> None:
        self._asks = asks

    def _through_the_arena(self, mover: Mover, buckets: Sequence[Bucket]) -> Way:
        for bucket in buckets:
            mover.adopt(bucket)
        return Way(mover, buckets, Exchange(self._job, buckets, self._group))

    def recut(self, make: Callable[[], Sequence[Bucket]]) -> None:
        """Have other buckets, between two steps. The memory of those before is free when they are
        made, if nobody else has it.
        """
        mover, self._resident, self._generation = self.arena.mover, [], -1
        del self.arena, self._way
        self.arena = self._way = self._through_the_arena(mover, make())

    def choose(self, void: bool = False) -> Way:
        """The way of the open step; `void` where it was void on the one before, which is not taken
        again.
        """
        if not self._asks or self._job.step is None:
            return self.arena
        before = self._ring.names if void and self._ring is not None else None
        if void:
            self._note_failure()
            self._drop_ring()
        while void or self._generation != self._job.generation:
            self._generation = self._job.generation
            try:
                self._way, void = self._agree(self._ask(), before), False
            except LostError:
                self._job._backend.check()  # another worker: ask who is left
                void = True
        if self._way is not self.arena:
            self._resident += [
                Bucket(b.parameters, empty=self._card.empty)
                for b in self.arena.buckets[len(self._resident) :]
            ]  # type: ignore[union-attr]
        return self._way

    def _drop_ring(self) -> None:
        if self._ring is not None:
            self._ring.group.free()
        self._ring = None

    def _note_failure(self) -> None:
        error = self._way.exchange.error if isinstance(self._way.exchange, Direct) else None
        if error is not None:
            self._broken = self._job.generation
            print(f"shoal: NCCL failed in this worker: {error}", file=sys.stderr)

    def _ask(self) -> List[Worker]:
        """All members of the job, by rank."""
        columns = len(Worker._fields)
        table = array("q", bytes(8 * columns * self._job.size))
        at = columns * self._job.rank
        table[at : at + columns] = array("q", self._own())
        self._job.step.aside(table).wait()  # type: ignore[union-attr]
        return [Worker(*table[i : i + columns]) for i in range(0, len(table), columns)]

    def _own(self) -> Worker:
        if self._card is None:
            return Worker(self._name, _ON_THE_CPU, 0, 0)
        if os.environ.get(OFF) == "0":
            return Worker(self._name, _TURNED_OFF, 0, 0)
        if self._broken == self._job.generation:
            return Worker(self._name, _FAILED, 0, 0)
        try:
            device, version = self._card.identity()
        except RuntimeError:
            return Worker(self._name, _WITHOUT, 0, 0)
        return Worker(
            self._name,
            _ABLE,
            int.from_bytes(hashlib.blake2b(device.encode(), digest_size=7).digest(), "little"),
            version,
        )

    def _agree(self, workers: List[Worker], before: Optional[List[int]]) -> Way:
        """The way that these workers have in common; all of them find the same. `before` is a ring
        on which the step was void.
        """
        ranks = [r for r, w in enumerate(workers) if w.name]
        names = [workers[r].name for r in ranks]
        why = _obstacle(workers, ranks)
        if not why and names == before:
            why = "a step was void, and no worker is lost"
        self._say(workers, ranks, why)
        if why:
            return self.arena
        assert self._card is not None
        if self._ring is None or self._ring.names != names:
            self._drop_ring()  # on all of them, also where making one fails
            self._ring = Ring(self._job, self._card, names, ranks)
        return Way(
            _Resident(self._card),
            self._resident,
            Direct(self._job, self._resident, self._ring, ranks),
        )

    def _say(self, workers: List[Worker], ranks: List[int], why: str) -> None:
        line = (
            f"shoal: gradients go through the arena: {why}"
            if why
            else f"shoal: gradients go through NCCL, on {len(ranks)} devices"
        )
        gpus = any(workers[r].state != _ON_THE_CPU for r in ranks)
        if gpus and self._job.rank == ranks[0] and line != self._said:
            self._said = line
            print(line, file=sys.stderr)


def _obstacle(workers: List[Worker], ranks: List[int]) -> str:
    """Why these ranks cannot use NCCL; "" where they can."""
    devices: Dict[int, int] = {}
    for r in ranks:
        worker = workers[r]
        if worker.state != _ABLE:
            return f"rank {r} {_WHY[worker.state]}"
        if worker.device in devices:
            return f"ranks {devices[worker.device]} and {r} share a device"
        if worker.version != workers[ranks[0]].version:
            return f"ranks {ranks[0]} and {r} have different versions of NCCL"
        devices[worker.device] = r
    return ""
