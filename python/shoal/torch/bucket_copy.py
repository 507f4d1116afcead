"""How gradients get into the buckets of the arena, and their means out of it: at once on the CPU,
by streams from a device.
"""

from __future__ import annotations

import contextlib
import sys
from typing import Any, Callable, ContextManager, Iterator, Optional, Sequence, Tuple

import torch
from torch import Tensor

import shoal

from . import cuda
from .executor import Waiter

Futures = Sequence[Tuple["torch.futures.Future[Tensor]", Tensor]]


class Mover:
    """Between tensors on the CPU there is nothing to order: all of this happens at once."""

    def adopt(self, bucket: Any) -> None:
        """Move the tensors of a bucket."""

    def begin(self) -> None:
        """Before anything of a step is fetched: what the last one has brought back has left the
        arena.
        """

    def fetching(self) -> ContextManager[Any]:
        """For the calls of `fetch` and `home`, behind what computes the tensors."""
        return contextlib.nullcontext()

    def fetch(self, place: Tensor, tensor: Tensor) -> None:
        """Copy a tensor to a place in the arena."""
        place.copy_(tensor)

    def home(self, tensor: Tensor) -> Tensor:
        """The tensor on the CPU, now."""
        return tensor

    def fetched(self) -> "Mover":
        """What to `synchronize` with before the agent may see what has been fetched so far."""
        return self

    def synchronize(self) -> None:
        """Everything is there."""

    def then(self, task: Callable[[], object]) -> None:
        """Call `task` once all that was fetched is there, behind the tasks before. On the CPU its
        errors are raised here, else by `complete`.
        """
        task()

    def bring(self, tensor: Tensor, mean: Tensor) -> None:
        """Copy a mean from the arena to a tensor."""
        tensor.copy_(mean)

    def brought(self) -> None:
        """What this thread computes from now on sees what was brought."""

    def future(self) -> "torch.futures.Future[Tensor]":
        """A future for `complete`."""
        return torch.futures.Future()

    def complete(self, futures: Futures) -> None:
        """Complete futures with their values, behind all tasks and all that these have brought."""
        for future, value in futures:
            future.set_result(value)


class Streams(Mover):
    """A side stream of a device copies both ways, ordered with the stream that computes by events
    alone.

    Tasks run on a thread that waits for the copies before them, so the thread that runs backward
    never does.
    """

    def __init__(self, job: "shoal.Job", card: cuda.Card):
        self._job, self._card = job, card
        self._side = card.stream()
        self._waiter = Waiter()
        self._pins = True  # until the driver refuses
        self._left: Optional[Any] = None  # behind all that was brought
        self._error: Optional[Exception] = None

    def adopt(self, bucket: Any) -> None:
        bucket.mover = self
        buffer = getattr(bucket, "buffer", None)  # those with error feedback copy by the CPU
        if buffer is None or not self._pins:
            return
        try:
            self._job._backend.pin(buffer.data_ptr(), self._card.pin, self._card.unpin)
        except RuntimeError as error:
            self._pins = False
            print(
                f"shoal: the arena cannot be pinned for {self._card} ({error}): training goes on,"
                " and copies from and to it take longer",
                file=sys.stderr,
            )

    def begin(self) -> None:
        if self._left is not None:
            self._left.synchronize()

    @contextlib.contextmanager
    def fetching(self) -> Iterator[None]:
        self._side.wait_event(self._card.mark(self._card.current()))
        with self._card.on(self._side):
            yield

    def fetch(self, place: Tensor, tensor: Tensor) -> None:
        self._card.copy(place, tensor)

    def home(self, tensor: Tensor) -> Tensor:
        return self._card.home(tensor)

    def fetched(self) -> Any:
        return self._card.mark(self._side)

    def then(self, task: Callable[[], object]) -> None:
        there = self.fetched()
        self._waiter.run(lambda: self._attempt(there, task))

    def _attempt(self, there: Any, task: Callable[[], object]) -> None:
        if self._error is None:
            try:
                there.synchronize()
                task()
            except Exception as error:
                self._error = error

    def bring(self, tensor: Tensor, mean: Tensor) -> None:
        with self._card.on(self._side):
            self._card.copy(tensor, mean)
        self._left = self._card.mark(self._side)

    def brought(self) -> None:
        if self._left is not None:
            self._card.current().wait_event(self._left)

    def future(self) -> "torch.futures.Future[Tensor]":
        return self._card.future()

    def complete(self, futures: Futures) -> None:
        self._waiter.run(lambda: self._complete(futures))

    def _complete(self, futures: Futures) -> None:
        error, self._error = self._error, None
        with self._card.on(self._side):
            for future, value in futures:
                if error is None:
                    future.set_result(value)
                else:
                    future.set_exception(error)


HOST = Mover()


def mover_of(job: "shoal.Job", tensors: Sequence[Tensor]) -> Mover:
    """What moves these tensors, which all lie on one device. Raises RuntimeError where they do
    not.
    """
    card = cuda.card_of(tensors)
    return HOST if card is None else Streams(job, card)
