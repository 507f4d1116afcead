"""Who is told of the steps and reports of this process, as shoal.log.to has it; mostly nobody."""

from __future__ import annotations

from typing import Any, Dict, List

class Listener:
    """Takes what a worker reports, and the steps that it makes."""

    def reported(self, job: Any, numbers: Dict[str, float]) -> None:
        """Take what the program reports by job.report."""
        raise NotImplementedError

    def stepped(self, job: Any, step: int, batch: int) -> None:
        """Take that a step of `batch` samples over all workers is committed, the step-th of the
        job.
        """
        raise NotImplementedError


# What shoal.log.to has made, in the order in which it was called. The thread of the training loop
# appends and reads.
LISTENERS: List[Listener] = []
