"""Copies gradients into the buckets of the arena, and their means out of it: at once on the CPU, on
a side stream from a device.
"""

from __future__ import annotations

import contextlib
import sys
from typing import Any, Callable, ContextManager, Iterator, Optional, Sequence, Tuple

import torch
from torch import Tensor

import shoal

from . import cuda
from .executor import Executor

Futures = Sequence[Tuple["torch.futures.Future[Tensor]", Tensor]]


class Copier:
    """Copies between tensors on the CPU, at once: there is nothing to order. The thread that runs
    backward calls the methods, and that of the tasks what the tasks call; on the CPU both are one.
    """

    def adopt(self, bucket: Any) -> None:
        """Become the copier of a bucket; on the CPU every bucket has this one already."""

    def begin_step(self) -> None:
        """Wait, before the first copy of a step, until the last step's copies have left the
        arena.
        """

    def copying_in(self) -> ContextManager[Any]:
        """A block in which `copy_in` and `to_cpu` copy what was computed before it."""
        return contextlib.nullcontext()

    def copy_in(self, place: Tensor, tensor: Tensor) -> None:
        """Copy a tensor to a place in the arena; from a device the copy may still go on."""
        place.copy_(tensor)

    def to_cpu(self, tensor: Tensor) -> Tensor:
        """The tensor on the CPU; waits for it."""
        return tensor

    def after_copies_in(self) -> "Copier":
        """What to `synchronize` with before the agent may see what was copied in so far."""
        return self

    def synchronize(self) -> None:
        """Return at once: copies on the CPU are complete when they return."""

    def run_after_copies(self, task: Callable[[], object]) -> None:
        """Call `task` after all copies into the arena so far, and after the tasks before. On the
        CPU that is now, and its errors are raised here; else it is on the executor's thread, and
        `complete_futures` has them.
        """
        task()

    def copy_out(self, tensor: Tensor, mean: Tensor) -> None:
        """Copy a mean from the arena to a tensor; to a device the copy may still go on."""
        tensor.copy_(mean)

    def order_after_copies_out(self) -> None:
        """Have what this thread computes from now on wait for the copies out of the arena so far.
        Tasks that make such copies must have run before.
        """

    def new_future(self) -> "torch.futures.Future[Tensor]":
        """A future for `complete_futures`."""
        return torch.futures.Future()

    def complete_futures(self, futures: Futures) -> None:
        """Complete futures with their values, after all tasks and all copies of these."""
        for future, value in futures:
            future.set_result(value)


class StreamCopier(Copier):
    """A side stream of a device copies both ways, ordered with the stream that computes by events
    alone.

    Tasks run on a thread that waits for the copies before them, so the thread that runs backward
    never does.
    """

    def __init__(self, job: "shoal.Job", device: cuda.Device):
        """Make a stream of the device, and an executor, whose thread starts with the first task."""
        self._job, self._device = job, device
        self._side = device.new_stream()
        self._executor = Executor()
        self._pins = True  # arena memory is pinned for the device; False once the driver refuses
        # The event after the last copy out of the arena; None = no copy was made. The thread that
        # copies out sets it, and the one that runs backward reads it after that step is over.
        self._copied_out: Optional[Any] = None
        # The first error of a task since the last `_complete`; None = there is none. Only the
        # executor's thread uses it.
        self._error: Optional[Exception] = None

    def adopt(self, bucket: Any) -> None:
        """As Copier's, and pin the arena memory of the bucket for the device."""
        bucket.copier = self
        # A bucket with error feedback has no buffer: it copies on the CPU.
        buffer = getattr(bucket, "buffer", None)
        if buffer is None or not self._pins:
            return
        try:
            self._job._backend.pin(buffer.data_ptr(), self._device.pin, self._device.unpin)
        except RuntimeError as error:
            self._pins = False
            print(
                f"shoal: the arena cannot be pinned for {self._device} ({error}): training goes on,"
                " and copies from and to it take longer",
                file=sys.stderr,
            )

    def begin_step(self) -> None:
        """As Copier's: waits for the last copy out of the arena."""
        if self._copied_out is not None:
            self._copied_out.synchronize()

    @contextlib.contextmanager
    def copying_in(self) -> Iterator[None]:
        """As Copier's: a block on the side stream, after what the current stream computes."""
        self._side.wait_event(self._device.record_event(self._device.current_stream()))
        with self._device.using_stream(self._side):
            yield

    def copy_in(self, place: Tensor, tensor: Tensor) -> None:
        """As Copier's, on the side stream."""
        self._device.copy(place, tensor)

    def to_cpu(self, tensor: Tensor) -> Tensor:
        """As Copier's, on the side stream."""
        return self._device.to_cpu(tensor)

    def after_copies_in(self) -> Any:
        """An event after all copies into the arena so far."""
        return self._device.record_event(self._side)

    def run_after_copies(self, task: Callable[[], object]) -> None:
        """As Copier's, on the executor's thread."""
        there = self.after_copies_in()
        self._executor.run(lambda: self._attempt(there, task))

    def _attempt(self, there: Any, task: Callable[[], object]) -> None:
        """Wait for an event and call a task, on the executor's thread, unless one before has
        failed. Keeps its error.
        """
        if self._error is None:
            try:
                there.synchronize()
                task()
            except Exception as error:
                self._error = error

    def copy_out(self, tensor: Tensor, mean: Tensor) -> None:
        """As Copier's, on the side stream."""
        with self._device.using_stream(self._side):
            self._device.copy(tensor, mean)
        self._copied_out = self._device.record_event(self._side)

    def order_after_copies_out(self) -> None:
        """As Copier's: the current stream waits, the CPU does not."""
        if self._copied_out is not None:
            self._device.current_stream().wait_event(self._copied_out)

    def new_future(self) -> "torch.futures.Future[Tensor]":
        """A future that also orders the streams of those who wait."""
        return self._device.new_future()

    def complete_futures(self, futures: Futures) -> None:
        """As Copier's, on the executor's thread."""
        self._executor.run(lambda: self._complete(futures))

    def _complete(self, futures: Futures) -> None:
        """Complete futures, on the executor's thread, with their values or with the error of a
        task.
        """
        error, self._error = self._error, None
        with self._device.using_stream(self._side):
            for future, value in futures:
                if error is None:
                    future.set_result(value)
                else:
                    future.set_exception(error)


HOST = Copier()


def copier_of(job: "shoal.Job", tensors: Sequence[Tensor]) -> Copier:
    """A copier for these tensors, which all lie on one device. Raises RuntimeError where they do
    not.
    """
    device = cuda.device_of(tensors)
    return HOST if device is None else StreamCopier(job, device)
