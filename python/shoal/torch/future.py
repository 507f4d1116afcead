"""torch's future, with callbacks that run in the same order on every rank."""

from __future__ import annotations

import threading
from typing import Any, Callable, Optional

import torch

from .executor import Executor, on_executor


class _Failed:
    """An error as the value of a future. It is not changed after `__init__`: any thread may have
    it.

    C++ code that waits for a future, as DistributedDataParallel's does, looks for tensors in its
    value by pickling that. In an error it would find none, and take the first one all the same,
    which ends the process; here it gets the error.
    """

    def __init__(self, error: Exception):
        """The value of a future that has failed with this error."""
        self._error = error

    def reraise(self) -> None:
        """Raise the error, for Python code that waits."""
        raise self._error

    def __reduce_ex__(self, protocol: Any) -> Any:
        """Raise the error, for C++ code that pickles the value."""
        raise self._error


def set_error(future: torch.futures.Future, error: Exception) -> None:
    """Complete a future with an error: set_exception, but for C++ code too."""
    future._set_unwrap_func(_Failed.reraise)
    future.set_result(_Failed(error))


class Future(torch.futures.Future):
    """The future of a collective. `finish` completes it; the executor calls it, or a thread that
    waits and is faster.

    torch runs a callback wherever the future happens to become complete: in the thread that
    completes it or in the one that adds the callback. A callback that calls a collective would then
    do so at another place in the order of calls on each rank. Here callbacks run on the executor's
    thread only.
    """

    def __init__(self, executor: Executor, finish: Callable[["Future"], object]):
        """Have the executor call `finish(self)`, which completes the future."""
        super().__init__()
        self._executor = executor
        # Completes the future; None = it was called. Guarded by `_once`, which is held meanwhile.
        self._finish: Optional[Callable[[Future], object]] = finish
        self._once = threading.RLock()
        executor.run(self.finish)

    def finish(self) -> None:
        """Complete the future, unless it is complete, for which it waits for the call. Any thread
        may call it; others that do wait for the first.
        """
        with self._once:
            if self._finish is not None:
                finish, self._finish = self._finish, None
                finish(self)

    def wait(self) -> Any:
        """Block until the future is complete; return its value or raise its error."""
        if on_executor():
            self.finish()  # what would do it comes after this very callback in the queue
        return super().wait()

    def then(self, callback: Callable[["Future"], Any]) -> "Future":
        """A future of callback(self), which the executor's thread calls once this one is complete.
        Any thread may call this, and it waits for nothing.
        """

        def finish(result: Future) -> None:
            """Complete the future of the callback with what that returns or raises."""
            self.finish()
            try:
                value = callback(self)
            except Exception as error:
                set_error(result, error)
            else:
                result.set_result(value)

        return Future(self._executor, finish)
