"""Memory for the copy of a worker's share of a checkpoint, which the writer reads while training
goes on.
"""

from __future__ import annotations

import threading
from typing import Optional

from .._runtime.log import log_line
from .._runtime.protocol import HUGE_PAGE
from ..errors import ShoalError
from .writer import Writer


class CopyBuffer:
    """The buffer into which a worker copies its share. The thread of the training loop calls the
    methods; only `wait` waits for the thread that allocates.
    """

    def __init__(self, writer: Writer, root: str) -> None:
        """No memory yet. `writer` has it, and `root` names the place of the checkpoints in the
        log.
        """
        self._writer, self._root = writer, root
        # The thread that allocates the memory; None = none was started.
        self._allocator: Optional[threading.Thread] = None
        # None = not allocated. It belongs to the writer while the writer is busy, and to the
        # allocator while that runs.
        self.memory: Optional[memoryview] = None
        # Bytes of memory that could not be allocated; 0 = none. The allocator sets it too.
        self._missing_bytes = 0

    def is_allocating(self) -> bool:
        """Whether a thread still allocates memory."""
        return self._allocator is not None and self._allocator.is_alive()

    def wait(self) -> None:
        """Return when no thread allocates memory."""
        if self._allocator is not None:
            self._allocator.join()

    def check_room(self, nbytes: int, wait: bool) -> int:
        """1 when there is memory for the copy, -1 when there is none. Where it is not allocated
        yet, this allocates it: here with `wait`, where it is small or no thread can be started,
        else on a thread, and returns 0 until that is done, because to touch the memory takes far
        longer than to copy.

        When one worker has no memory for a checkpoint, no worker makes it.
        """
        if self.fits(nbytes):
            return 1
        if wait or nbytes < HUGE_PAGE:
            self.allocate(nbytes)
        elif self._missing_bytes < nbytes and self._start_allocator(nbytes):
            return 0
        self._missing_bytes = 0  # the next checkpoint tries again
        return 1 if self.fits(nbytes) else -1

    def _start_allocator(self, nbytes: int) -> bool:
        """Have a thread allocate the memory, and return True; where the system has no thread,
        allocate it here, and return False.
        """
        allocator = threading.Thread(target=self.allocate, args=(nbytes,), name="shoal checkpoint")
        try:
            allocator.start()
        except RuntimeError:
            self.allocate(nbytes)
            return False
        self._allocator = allocator
        return True

    def fits(self, nbytes: int) -> bool:
        """Whether the memory is there and large enough. The allocator does not run."""
        return self.memory is not None and self.memory.nbytes >= nbytes

    def allocate(self, nbytes: int) -> None:
        """Allocate the memory, on the training thread or the allocator; where there is none, say so
        in the log.
        """
        self.memory = None  # free the smaller one first
        try:
            self.memory = self._writer.allocate(max(nbytes, 1))
        except ShoalError as err:
            self._missing_bytes = nbytes
            log_line(
                f"there is no memory for a checkpoint in {self._root}, and training goes on: {err}"
            )
