"""Gradients from device to device by NCCL, without the arena. Each set of workers has a group of
its own.

A reduction of NCCL's happens with all workers of its group or not at all, and hangs where one is
missing. So such a step is made on a group of the agent's (docs/formats/arena.md), which commits it
with all of them or makes it void, and says so at once: then what hangs is aborted. The gradients
are not changed before the step is committed, so those who are left do it again.
"""

from __future__ import annotations

import contextlib
import os
import socket
import weakref
from datetime import timedelta
from typing import Any, Iterator, List, Optional, Sequence, Tuple

import torch
import torch.distributed as dist
from torch import Tensor

import shoal
from shoal._runtime.protocol import MORE, SAMPLE
from shoal._runtime.step_timer import StepTimer
from shoal.errors import LostError, MismatchError

from . import cuda
from .arena import empty
from .bucket import Bucket
from .exchange import Exchange
from .executor import Executor

_PATIENCE = timedelta(seconds=60)  # how long to wait for a store that was just opened
_ADDRESS_BYTES = 128  # room for the host and the port of a store
# The parts of the batch of all workers may differ from 1 by this much together, in float32.
_ROUNDING = 1e-5


class DeviceGroup:
    """Workers whose devices sum gradients among themselves: a group of the agent's, and an NCCL
    communicator between the devices.

    `names` are the processes, and `ranks` their ranks. All of them make it at once. Raises
    LostError where one is lost meanwhile. One thread uses it, the one that averages gradients, but
    for `abort`, which the executor's calls too.
    """

    def __init__(
        self, job: "shoal.Job", device: cuda.Device, names: Sequence[int], ranks: Sequence[int]
    ):
        """Make the group of the agent's, and open the store. All of the workers call it
        together.
        """
        # The group is owned: who drops this frees it.
        self.names, self.group = list(names), job.group(ranks)
        self._device, self._executor = device, Executor()
        self._communicator: Optional[cuda.Communicator] = None  # None = not connected yet
        self._aborted = False  # `abort` was called; any thread sets it, without a lock
        self._error: Optional[Exception] = None  # the first error of a task; None = there is none
        self._store, self._place = self._open_store()

    def _open_store(self) -> Tuple[Any, List[str]]:
        """Open the store by which the devices find each other, on the first worker only. Returns
        it, None on the others, and its host and port, which all workers get by a broadcast, for
        which they wait; no such address where it could not be opened.
        """
        address, store = bytearray(_ADDRESS_BYTES), None
        if self.group.rank == 0:
            host = own_address()
            try:
                store = dist.TCPStore(
                    host, 0, self.group.size, True, _PATIENCE, wait_for_workers=False
                )
                text = f"{host} {store.port}".encode()
                address[: len(text)] = text
            except RuntimeError as error:
                self._error = error
        self.group.broadcast(address)
        return store, address.rstrip(b"\0").decode().split()

    def begin_step(self, step: "shoal.Step") -> Any:
        """Begin a step on the group, and connect the devices in the first one. Returns the handle
        of the step; when it is void, what waits for others is aborted.
        """
        begun = step.begin_on_group(self.group)
        self._executor.run(lambda: self._abort_when_void(begun))
        if self._communicator is None:
            self._attempt(self._connect)
        return begun

    def _abort_when_void(self, begun: Any) -> None:
        """Wait for the end of a step, on the executor's thread, and abort where it is void."""
        try:
            begun.wait()
        except shoal.ShoalError:  # also where the job is left in the middle of the step
            self.abort()

    def _connect(self) -> None:
        """Find the other devices by the store, and make the communicator. Waits for the other
        workers.
        """
        if not self._place:
            raise RuntimeError("the worker that was to open a store for the others could not")
        if self._store is None:
            host, port = self._place
            # refused at once where that worker is lost, which torch would wait for
            socket.create_connection((host, int(port)), _PATIENCE.total_seconds()).close()
            self._store = dist.TCPStore(
                host, int(port), self.group.size, False, _PATIENCE, wait_for_workers=False
            )
        self._communicator = self._device.communicator(
            self._store, self.group.rank, self.group.size
        )
        weakref.finalize(self, self._communicator.abort)
        if self._aborted:
            self._communicator.abort()

    def all_reduce(self, tensor: Tensor) -> None:
        """Begin to add a tensor up over the workers, in place; see `wait`."""
        self._attempt(lambda: self._communicator.all_reduce(tensor))  # type: ignore[union-attr]

    def record_event(self) -> Any:
        """A new event after all that the device has to compute so far."""
        return self._device.record_event(self._device.current_stream())

    def wait(self, computed: Any, step_timer: StepTimer) -> Optional[Exception]:
        """Block until an event, of which it tells `step_timer`, and then until all sums are there;
        returns why they will never be, else None.
        """
        self._attempt(computed.synchronize)
        step_timer.record_gradients_ready()
        self._attempt(lambda: self._communicator.wait())  # type: ignore[union-attr]
        return self._error

    def _attempt(self, task: Any) -> None:
        """Call a task unless one before has failed; keep its RuntimeError or OSError for `wait`."""
        if self._error is None:
            try:
                task()
            except (RuntimeError, OSError) as error:
                self._error = error

    def abort(self) -> None:
        """Abort what waits for other devices, from any thread. The group cannot be used after
        that.
        """
        self._aborted = True
        if self._communicator is not None:
            self._communicator.abort()


class NcclExchange(Exchange):
    """Averages buckets on the devices of the workers, step after step. One thread calls all
    methods: on this path tasks have no thread of their own. Only the first `begin_step` of a group
    and `try_commit` wait for the other workers.
    """

    def __init__(
        self,
        job: "shoal.Job",
        buckets: Sequence[Bucket],
        devices: DeviceGroup,
        ranks: Sequence[int],
    ):
        """Average these buckets on the devices of these ranks."""
        super().__init__(job, buckets)
        self._takes_samples = True  # of all buckets, here and not by them
        self._devices, self._ranks = devices, ranks
        # `begin_step` sets the other fields: number of buckets whose sums are begun, this worker's
        # part of the batch, the handle of the step on the group of the agent's, and the parts of
        # the sample of this worker's gradients, on the device. `submit_full` sets the event after
        # the last gradient, and the sum of the parts of the batch of all workers, on the device.
        self._room = torch.empty(0)  # for the sample, in the arena when there is one
        self.error: Optional[Exception] = None  # an error that was not the loss of a worker

    def begin_step(self) -> None:
        """Begin a step before any bucket is filled, here and on the devices. Raises RuntimeError
        where no step of the job is open.
        """
        super().begin_step()
        self._submitted = 0
        step = self._step
        assert step is not None
        held = step.samples_of_ranks(self._ranks)
        self._weight = step.weight / max(held, 1)  # 0 on all where nobody has samples that count
        self._begun = self._devices.begin_step(step)
        self._sampled: List[Tensor] = []

    def submit_full(self, full: int, end: bool) -> None:
        """Weigh the full buckets by this worker's samples, and begin their sums."""
        upto = len(self._buckets) if end else full
        for bucket in self._buckets[self._submitted : upto]:
            if self._sample is not None and bucket.gradient:
                self._sampled.append(bucket.buffer[self._sample].to(torch.float32, copy=True))
            if self._weight:
                bucket.buffer.mul_(self._weight)
            else:
                bucket.buffer.zero_()  # 0 times a gradient that is not finite would not be 0
            self._devices.all_reduce(bucket.buffer)
        self._submitted = max(self._submitted, upto)
        if end:
            # Not 1 where workers weigh their samples, as by tokens.
            self._whole = self._buckets[0].buffer.new_full((1,), self._weight, dtype=torch.float32)
            self._devices.all_reduce(self._whole)
            self._computed = self._devices.record_event()

    def try_commit(self) -> bool:
        """Wait for the sums, and end the step with the other workers: it is committed where all of
        them have the sums. The sample goes with it.
        """
        error = self._devices.wait(self._computed, self._job._backend.step_timer)
        sample = self._submit_sample(error) if self._sampled else None
        try:
            return self._end_step(error)
        finally:
            if sample is not None:
                with contextlib.suppress(LostError, MismatchError):  # then the step is void
                    sample.wait()

    def _submit_sample(self, error: Optional[Exception]) -> Any:
        """Begin the mean of the sample as a part of the step, by the agent, and return the handle.
        All workers do, also those with an error, whose device cannot be asked.
        """
        step = self._step
        assert step is not None
        elements = sum(map(len, self._sampled))
        if len(self._room) < elements:
            self._room = empty(elements)
        sample = self._room[:elements].zero_()
        if error is None and step.weight:
            sample.copy_(torch.cat(self._sampled))
        return self._devices.group.allreduce_async(
            sample, "mean", float(step.weight), flags=MORE, tag=SAMPLE
        )

    def _end_step(self, error: Optional[Exception]) -> bool:
        """End the step with the other workers, here with an error or None; see `try_commit`."""
        if self._step.end_on_group(self._devices.group, error is None):  # type: ignore[union-attr]
            return True
        try:
            self._begun.wait()
            self.error = error
        except (LostError, MismatchError):
            pass  # the loss is why
        return False

    def averaged_buckets(self) -> Iterator[Bucket]:
        """All buckets: they have their means once the step is committed."""
        whole = self._whole.item()
        if whole and abs(whole - 1) > _ROUNDING:
            for bucket in self._buckets:
                bucket.buffer.div_(whole)
        return iter(self._buckets)


def own_address() -> str:
    """The address of this machine that others reach: the one from which it reaches the job's first
    host, or the world.
    """
    for target in (os.environ.get("MASTER_ADDR", ""), "192.0.2.1"):  # nothing is sent there
        try:
            family, kind, _, _, place = socket.getaddrinfo(
                target or "127.0.0.1", 9, type=socket.SOCK_DGRAM
            )[0]
            with socket.socket(family, kind) as probe:
                probe.connect(place)
                host = str(probe.getsockname()[0])
        except OSError:
            continue
        if not host.startswith("127.") and host != "::1":
            return host
    return "127.0.0.1"
