"""Chooses how gradients get to the other workers: from device to device, or through the arena."""

from __future__ import annotations

import hashlib
import os
import secrets
import sys
from array import array
from types import SimpleNamespace
from typing import Callable, Dict, List, NamedTuple, Optional, Sequence

from torch import Tensor

import shoal
from shoal.errors import LostError

from . import cuda
from .bucket import Bucket
from .bucket_copy import Copier, copier_of
from .exchange import Exchange
from .nccl import DeviceGroup, NcclExchange

SWITCH = "SHOAL_NCCL"  # environment variable; 0 has all gradients go through the arena
_ABLE, _ON_THE_CPU, _WITHOUT, _TURNED_OFF, _FAILED = range(5)
_WHY = {
    _ON_THE_CPU: "trains on the CPU",
    _WITHOUT: "has no NCCL that can be aborted",
    _TURNED_OFF: f"has {SWITCH}=0",
    _FAILED: "could not use NCCL; what it says is in its log",
}


class Path(NamedTuple):
    """Buckets, how tensors get into them and out of them, and what averages them. Each of the three
    says which threads use it.
    """

    copier: Copier
    buckets: Sequence[Bucket]
    exchange: Exchange


class _DeviceCopier(Copier):
    """Tensors and buckets lie on one device, and the stream that computes copies."""

    def __init__(self, device: cuda.Device):
        """A copier for buckets on this device, on the thread that calls it."""
        self.new_future = device.new_future


class Capability(NamedTuple):
    """What the others must know of a worker to choose. Every field is an integer of 63 bits."""

    name: int  # random number of the process; 0 = the worker is lost
    state: int  # _ABLE, or why the worker cannot use NCCL
    device: int  # hash of the name of its device
    version: int  # version of NCCL


class Paths:
    """Chooses the path of the buckets of a model. All workers choose the same one, in the first
    step of a generation and when a step was void. One thread uses it, the one that runs backward or
    `step()`.

    Buckets go from device to device where every worker has a device of its own and the same NCCL,
    else through the arena. Compressed buckets, and those of a group (`group`), always go through
    the arena. So do those of a job that has begun on CPUs alone: its workers ask each other
    nothing, and those who join are told so.
    """

    def __init__(
        self,
        job: "shoal.Job",
        tensors: Sequence[Tensor],
        buckets: Sequence[Bucket],
        group: "Optional[shoal.Group]",
        uncompressed: bool,
    ):
        """Begin with the path through the arena. Where buckets may go by NCCL, ask all members in
        one call whether any has a device, and register the answer for workers that join.
        """
        self._job, self._device, self._group = job, cuda.device_of(tensors), group
        self.arena = self._arena_path(copier_of(job, tensors), buckets)
        # Whether the workers ask each other for their devices in every generation. The same on all
        # of them. The state of the job has this alone, and keeps no buckets.
        asking = self._asking = SimpleNamespace(asks=False)
        if group is None and uncompressed:
            asking.asks = not job.outside and bool(
                job.allreduce(array("q", [self._device is not None]), "max")[0]
            )
            job._state.register(
                job.unused("devices"),
                lambda: asking.asks,
                lambda asks: setattr(asking, "asks", asks),
                checkpointed=False,
            )
        # The path of the generation below; -1 = none was chosen.
        self._path, self._generation = self.arena, -1
        self._device_buckets: List[Bucket] = []  # buckets on the device, made when needed
        self._device_group: Optional[DeviceGroup] = None  # None = no NCCL communicator is open
        self._broken = -1  # the generation in which NCCL has failed here; -1 = it has not
        self._name = secrets.randbits(62) | 1  # random number of this process, never 0
        self._printed = ""  # the last line about the path that this worker printed

    def _arena_path(self, copier: Copier, buckets: Sequence[Bucket]) -> Path:
        """The path of these buckets through the arena. The copier becomes theirs."""
        for bucket in buckets:
            copier.adopt(bucket)
        return Path(copier, buckets, Exchange(self._job, buckets, self._group))

    def rebuild(self, make: Callable[[], Sequence[Bucket]]) -> None:
        """Replace the buckets, between two steps. The memory of the old ones is free before the new
        ones are made, unless something else refers to it.
        """
        copier, self._device_buckets, self._generation = self.arena.copier, [], -1
        del self.arena, self._path
        self.arena = self._path = self._arena_path(copier, make())

    def choose(self, void: bool = False) -> Path:
        """The path of the open step, on which all workers agree in it; where none has a device,
        without a call. `void`: the step was void on the path before, which is not chosen again.
        Waits for all workers where they ask each other.
        """
        if not self._asking.asks or self._job.step is None or self._job._progress.averages > 1:
            return self.arena  # NCCL would commit the step with the first of several averages
        before = self._device_group.names if void and self._device_group is not None else None
        if void:
            self._record_failure()
            self._drop_device_group()
        while void or self._generation != self._job.generation:
            self._generation = self._job.generation
            try:
                self._path, void = self._common_path(self._ask_capabilities(), before), False
            except LostError:
                self._job._backend.check()  # another worker was lost: ask who is left
                void = True
        if self._path is not self.arena:
            assert self._device is not None
            for b in self.arena.buckets[len(self._device_buckets) :]:
                bucket = Bucket(b.parameters, make=self._device.empty)
                bucket.gradient = b.gradient
                self._device_buckets.append(bucket)
        return self._path

    def _drop_device_group(self) -> None:
        """Free the device group, if there is one, and forget it. Waits for nobody."""
        if self._device_group is not None:
            self._device_group.group.free()
        self._device_group = None

    def _record_failure(self) -> None:
        """Note, and tell the user, that NCCL has failed here, if it has."""
        error = self._path.exchange.error if isinstance(self._path.exchange, NcclExchange) else None
        if error is not None:
            self._broken = self._job.generation
            print(f"shoal: NCCL failed in this worker: {error}", file=sys.stderr)

    def _ask_capabilities(self) -> List[Capability]:
        """What all members of the job can use, by rank. All of them call this in the same step, and
        wait for each other.
        """
        columns = len(Capability._fields)
        table = array("q", bytes(8 * columns * self._job.size))
        at = columns * self._job.rank
        table[at : at + columns] = array("q", self._own_capability())
        self._job.step.submit_aside(table).wait()  # type: ignore[union-attr]
        return [Capability(*table[i : i + columns]) for i in range(0, len(table), columns)]

    def _own_capability(self) -> Capability:
        """Whether this worker can use NCCL now, as the others must know it."""
        if self._device is None:
            return Capability(self._name, _ON_THE_CPU, 0, 0)
        if os.environ.get(SWITCH) == "0":
            return Capability(self._name, _TURNED_OFF, 0, 0)
        if self._broken == self._job.generation:
            return Capability(self._name, _FAILED, 0, 0)
        try:
            device, version = self._device.identity()
        except RuntimeError:
            return Capability(self._name, _WITHOUT, 0, 0)
        return Capability(
            self._name,
            _ABLE,
            int.from_bytes(hashlib.blake2b(device.encode(), digest_size=7).digest(), "little"),
            version,
        )

    def _common_path(self, workers: List[Capability], before: Optional[List[int]]) -> Path:
        """The path that these workers, listed by rank, have in common; all of them find the same.
        Makes a device group where they have none, for which it waits for them: raises LostError
        where one is lost. `before` names the workers of a device group on which the step was void;
        None = it was not.
        """
        ranks = [r for r, w in enumerate(workers) if w.name]
        names = [workers[r].name for r in ranks]
        why = _obstacle(workers, ranks)
        if not why and names == before:
            why = "a step was void, and no worker is lost"
        self._print_path(workers, ranks, why)
        if why:
            return self.arena
        assert self._device is not None
        if self._device_group is None or self._device_group.names != names:
            self._drop_device_group()  # on all of them, also where making one fails
            self._device_group = DeviceGroup(self._job, self._device, names, ranks)
        return Path(
            _DeviceCopier(self._device),
            self._device_buckets,
            NcclExchange(self._job, self._device_buckets, self._device_group, ranks),
        )

    def _print_path(self, workers: List[Capability], ranks: List[int], why: str) -> None:
        """Tell the user, on the first of the ranks, when the path changes and why; `why` is ""
        where NCCL is used. Prints nothing where no worker has a GPU.
        """
        line = (
            f"shoal: gradients go through the arena: {why}"
            if why
            else f"shoal: gradients go through NCCL, on {len(ranks)} devices"
        )
        gpus = any(workers[r].state != _ON_THE_CPU for r in ranks)
        if gpus and self._job.rank == ranks[0] and line != self._printed:
            self._printed = line
            print(line, file=sys.stderr)


def _obstacle(workers: List[Capability], ranks: List[int]) -> str:
    """Why these ranks cannot use NCCL, for the log; "" where they can. `workers` has all, by
    rank.
    """
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
