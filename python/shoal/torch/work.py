"""One call under way, as torch sees it."""

from __future__ import annotations

import functools
import threading
from datetime import timedelta
from typing import Any, Callable, List, Optional

import torch
from torch._C._distributed_c10d import Work as _Work

from . import threads
from .executor import Executor
from .future import Future, set_error

_NOT_GIVEN = timedelta(0)  # torch's value for no timeout: that of the process group holds


class Work(_Work):
    """A collective or a point-to-point call under way: `wait()` for it, or take its `get_future()`.

    Nothing runs in the background until the future is taken: `wait()` itself finishes the call in
    the thread that waits. What the agent answers to a wrong call (a RuntimeError that names both
    calls on both ranks) is raised by `wait()` and by the future.

    The thread that makes the calls adds them, and the finishers, before torch has the work. Any
    thread may call the other methods; `wait` and `synchronize` block.
    """

    def __init__(self, executor: Executor, result: List[torch.Tensor], timeout: timedelta):
        """A work without calls, whose result these tensors will hold. The executor keeps it
        alive.
        """
        super().__init__()
        self._executor = executor
        self._result = result
        self._timeout = timeout
        self._kind = ""  # of the newest call, for messages
        # Of the calls, until they are settled.
        self._handles: List[Any] = []
        self._finishers: List[Callable[[], object]] = []
        # Held by the thread that settles the work, while it waits. Guards handles and finishers,
        # and the two fields below, which are read without it.
        self._settling = threading.Lock()
        self._settled = False  # the work is over
        self._error: Optional[Exception] = None  # None = there was none, or it is not over
        self._future: Optional[torch.futures.Future] = None  # None = nobody has asked for it
        executor.hold(self)

    def add_call(self, kind: str, handle: Any) -> None:
        """Make a call of this kind, by its shoal.Handle, a part of this work."""
        self._kind = kind
        self._handles.append(handle)

    def add_finisher(self, finish: Callable[[], object]) -> None:
        """Have `finish` called once all handles are done: it brings the result to where the caller
        wants it.
        """
        self._finishers.append(finish)

    def wait(self, timeout: timedelta = _NOT_GIVEN) -> bool:
        """Block until the call is done and its results lie in the tensors.

        `timeout` defaults to that of the process group. Raises RuntimeError with what the agent
        answers, or at the timeout.
        """
        self._executor.release(self)
        self._settle(timeout or self._timeout)
        if self._error is not None:
            raise self._error
        return True

    def synchronize(self) -> None:
        """The same as wait(): there is no device stream to order with."""
        self.wait()

    def is_completed(self) -> bool:
        """Whether wait() would return, or raise, at once. Never waits for other ranks, but finishes
        the results where it can.
        """
        if not self._settled and all(handle.done() for handle in self._handles):
            self._settle(self._timeout)
        return self._settled

    def is_success(self) -> bool:
        """Whether the call is done and had no error."""
        return self.is_completed() and self._error is None

    def exception(self) -> Optional[Exception]:
        """The error of a finished call, or None."""
        return self._error

    def result(self) -> List[torch.Tensor]:
        """The tensors that hold the result once the call is done."""
        return self._result

    def get_future(self) -> torch.futures.Future:
        """A future of `result()`, the same again when called again, which the executor of the
        process group completes.
        """
        if self._future is None:
            self._future = Future(self._executor, self._complete_future)
        self._executor.release(self)
        return self._future

    def _settle(self, timeout: timedelta) -> None:
        """Wait for the handles and finish the results; keep the error for whoever asks. Any thread
        may call it; the first one does the work.
        """
        with self._settling:
            if self._settled:
                return
            try:
                for handle in self._handles:
                    handle.wait(timeout.total_seconds())
                for finish in self._finishers:
                    finish()
            except TimeoutError as error:
                seconds = timeout.total_seconds()
                self._error = RuntimeError(
                    f"shoal: {self._kind} reached its timeout of {seconds:g} s: {error}"
                )
            except Exception as error:
                self._error = error
            self._settled = True
            self._handles, self._finishers = [], []

    def _complete_future(self, future: torch.futures.Future) -> None:
        """Wait for the call, and complete the future with its result or its error. Runs on the
        executor's thread, or on one that waits for the future.
        """
        self._settle(self._timeout)
        if self._error is None:
            future.set_result(self._result)
        else:
            set_error(future, self._error)


class Transfer(Work):
    """A send or a receive. These finish in any order, so each one's future is completed by a thread
    of its own.
    """

    def add_call(self, kind: str, handle: Any) -> None:
        """As Work's, and keep the handle, which `source_rank` asks."""
        super().add_call(kind, handle)
        self._handle = handle

    def source_rank(self) -> int:
        """The rank inside the group that sent what was received from any, once wait() has
        returned.
        """
        return self._handle.source

    _source_rank = source_rank  # torch's own name for it

    def get_future(self) -> torch.futures.Future:
        """A future of `result()`, the same again when called again, which a new thread completes;
        at the end of the interpreter this thread does, and waits for the call.
        """
        if self._future is None:
            self._future = torch.futures.Future()
            fulfil = functools.partial(self._complete_future, self._future)
            if threads.interpreter_is_ending():
                fulfil()
            else:
                threads.Thread("shoal-transfer", fulfil).start()
        self._executor.release(self)
        return self._future
