"""Threads that call torch. All of them end before the interpreter ends.

Python unwinds a thread that asks for the interpreter after its end, and C++ code of torch on the
stack of the thread then aborts the process. So at exit the job is left, which raises an error in
every thread that waits for other ranks, and then the threads are joined.
"""

from __future__ import annotations

import atexit
import threading
from typing import Callable, List

from shoal import job as jobs

_over = threading.Event()  # set, for good, when the interpreter is about to end


class Thread(threading.Thread):
    """Runs `body`. `stop` makes it return soon, once it does not wait for other ranks. Whoever
    makes it starts it, and nobody but `_end_threads` need join it.
    """

    def __init__(
        self, name: str, body: Callable[[], object], stop: Callable[[], object] = lambda: None
    ):
        """A thread of this name, which is not started yet. `stop` may be called by any thread."""
        # A daemon thread: Python joins all others before it calls exit handlers.
        super().__init__(name=name, target=body, daemon=True)
        self.stop = stop


def interpreter_is_ending() -> bool:
    """Whether the interpreter is about to end, so that no thread may start."""
    return _over.is_set()


def _running_threads() -> List[Thread]:
    """The threads of this class that run."""
    return [t for t in threading.enumerate() if isinstance(t, Thread)]


def _end_threads() -> None:
    """Leave the job, and end all threads, when the interpreter is about to end. Runs once, as an
    exit handler on the main thread, and waits for the threads.
    """
    _over.set()
    jobs.leave_at_exit()
    while _running_threads():  # again, because a thread may have started another
        for thread in _running_threads():
            thread.stop()
            thread.join()


atexit.register(_end_threads)
