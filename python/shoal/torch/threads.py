"""Threads that call torch. All of them have ended before the interpreter ends.

A thread that asks for the interpreter after its end is unwound by Python on the spot, and the C++
code of torch that is on its stack answers that by aborting the process. So at exit the job is left,
which gives an error to whatever still waits for other ranks, and then the threads are waited for.
"""

from __future__ import annotations

import atexit
import threading
from typing import Callable, List

from shoal import job as jobs

_over = threading.Event()


class Thread(threading.Thread):
    """Runs `body`. `stop` makes it return soon once nothing waits for other ranks any more."""

    def __init__(
        self, name: str, body: Callable[[], object], stop: Callable[[], object] = lambda: None
    ):
        # A daemon, because Python waits for all others before it calls exit handlers.
        super().__init__(name=name, target=body, daemon=True)
        self.stop = stop


def over() -> bool:
    """Whether the interpreter is about to end, so that no thread may start."""
    return _over.is_set()


def _running() -> List[Thread]:
    return [t for t in threading.enumerate() if isinstance(t, Thread)]


def _end() -> None:
    _over.set()
    jobs.leave_at_exit()
    while _running():  # again, because a thread may have started another
        for thread in _running():
            thread.stop()
            thread.join()


atexit.register(_end)
