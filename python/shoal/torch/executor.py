"""The thread of a process group that finishes calls for which no thread waits."""

from __future__ import annotations

import queue
import threading
import weakref
from collections import OrderedDict
from typing import Any, Callable, Optional

from . import threads

# At most this many works are held for which no thread has waited; torch has a handful under way at
# any time.
_HELD = 256


class Executor:
    """Runs tasks one after the other on a thread: it finishes works whose future was taken, and
    runs the callbacks of these futures. Any thread may call the methods, and none waits.

    Tasks run in the order in which the script asked for them, never in the order of completion. So
    every rank runs them in the same order, and callbacks may call collectives themselves, as those
    of torch's PowerSGD do.
    """

    def __init__(self) -> None:
        """Without a thread yet: the first task starts it, and it ends with the executor."""
        self._queue: queue.SimpleQueue = queue.SimpleQueue()  # tasks; None = the end
        # None = not started; set with `_starting` held.
        self._thread: Optional[threads.Thread] = None
        self._starting = threading.Lock()
        # The works of `hold`, by id. Changed without a lock, by atomic operations.
        self._held: "OrderedDict[int, Any]" = OrderedDict()
        weakref.finalize(self, self._queue.put, None)

    def run(self, task: Callable[[], object]) -> None:
        """Have the executor's thread call `task` after the tasks before, and return; call it here
        and now when this is that thread, or when the interpreter is about to end.
        """
        if threading.current_thread() is self._thread or threads.interpreter_is_ending():
            task()
            return
        with self._starting:
            if self._thread is None:
                self._thread = _Thread(self._queue)
                self._thread.start()
        self._queue.put(task)

    def hold(self, work: Any) -> None:
        """Keep `work` alive until a thread waits for it or takes its future, or _HELD newer ones
        are kept.

        In torch 1.13 C++ code that holds a Work does not hold its Python half, without which wait()
        would never return.
        """
        self._held[id(work)] = work
        if len(self._held) > _HELD:
            self._held.popitem(last=False)

    def release(self, work: Any) -> None:
        """Stop keeping `work` alive; nothing where it was not held."""
        self._held.pop(id(work), None)


def on_executor() -> bool:
    """Whether this code runs on the thread of an Executor, that is, in a callback of a future."""
    return isinstance(threading.current_thread(), _Thread)


class _Thread(threads.Thread):
    """The thread of an executor. It knows the queue, not the Executor, which it would otherwise
    keep alive.
    """

    def __init__(self, tasks: queue.SimpleQueue):
        """Run the tasks of a queue."""
        super().__init__("shoal-executor", self._run_tasks, lambda: tasks.put(None))
        self._tasks = tasks

    def _run_tasks(self) -> None:
        """Call the tasks of the queue, until None comes. Runs on this thread."""
        for task in iter(self._tasks.get, None):
            task()
            del task
