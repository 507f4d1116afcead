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
    """Copies between tensors on the CPU, at once: there is nothing to order."""

    def adopt(self, bucket: Any) -> None:
        """Move the tensors of a bucket."""

    def begin(self) -> None:
        """Wait, before the first copy of a step, until the last step's copies have left the
        arena.
        """

    def copying_in(self) -> ContextManager[Any]:
        """A block for `copy_in` and `to_cpu`, ordered after what computes the tensors."""
        return contextlib.nullcontext()

    def copy_in(self, place: Tensor, tensor: Tensor) -> None:
        """Copy a tensor to a place in the arena."""
        place.copy_(tensor)

    def to_cpu(self, tensor: Tensor) -> Tensor:
        """The tensor on the CPU, now."""
        return tensor

    def copied_in(self) -> "Copier":
        """What to `synchronize` with before the agent may see what was copied in so far."""
        return self

    def synchronize(self) -> None:
        """Return at once: copies on the CPU are complete when they return."""

    def then(self, task: Callable[[], object]) -> None:
        """Call `task` after all copies into the arena so far, and after the tasks before. On the
        CPU its errors are raised here, else by `complete`.
        """
        task()

    def copy_out(self, tensor: Tensor, mean: Tensor) -> None:
        """Copy a mean from the arena to a tensor."""
        tensor.copy_(mean)

    def copied_out(self) -> None:
        """Order what this thread computes from now on after the copies out of the arena."""

    def future(self) -> "torch.futures.Future[Tensor]":
        """A future for `complete`."""
        return torch.futures.Future()

    def complete(self, futures: Futures) -> None:
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
        self._job, self._device = job, device
        self._side = device.stream()
        self._executor = Executor()
        self._pins = True  # arena memory is pinned for the device; False once the driver refuses
        # The event after the last copy out of the arena; None = no copy was made.
        self._copied_out: Optional[Any] = None
        # The first error of a task since the last `complete`. Only the executor's thread uses it.
        self._error: Optional[Exception] = None

    def adopt(self, bucket: Any) -> None:
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

    def begin(self) -> None:
        if self._copied_out is not None:
            self._copied_out.synchronize()

    @contextlib.contextmanager
    def copying_in(self) -> Iterator[None]:
        self._side.wait_event(self._device.record(self._device.current_stream()))
        with self._device.on(self._side):
            yield

    def copy_in(self, place: Tensor, tensor: Tensor) -> None:
        self._device.copy(place, tensor)

    def to_cpu(self, tensor: Tensor) -> Tensor:
        return self._device.to_cpu(tensor)

    def copied_in(self) -> Any:
        return self._device.record(self._side)

    def then(self, task: Callable[[], object]) -> None:
        there = self.copied_in()
        self._executor.run(lambda: self._attempt(there, task))

    def _attempt(self, there: Any, task: Callable[[], object]) -> None:
        """Call a task after an event, on the executor's thread, unless one before has failed."""
        if self._error is None:
            try:
                there.synchronize()
                task()
            except Exception as error:
                self._error = error

    def copy_out(self, tensor: Tensor, mean: Tensor) -> None:
        with self._device.on(self._side):
            self._device.copy(tensor, mean)
        self._copied_out = self._device.record(self._side)

    def copied_out(self) -> None:
        if self._copied_out is not None:
            self._device.current_stream().wait_event(self._copied_out)

    def future(self) -> "torch.futures.Future[Tensor]":
        return self._device.future()

    def complete(self, futures: Futures) -> None:
        self._executor.run(lambda: self._complete(futures))

    def _complete(self, futures: Futures) -> None:
        """Complete futures on the executor's thread."""
        error, self._error = self._error, None
        with self._device.on(self._side):
            for future, value in futures:
                if error is None:
                    future.set_result(value)
                else:
                    future.set_exception(error)


HOST = Copier()


def copier_of(job: "shoal.Job", tensors: Sequence[Tensor]) -> Copier:
    """What moves these tensors, which all lie on one device. Raises RuntimeError where they do
    not.
    """
    device = cuda.device_of(tensors)
    return HOST if device is None else StreamCopier(job, device)
