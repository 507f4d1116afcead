"""Who is told of the steps and reports of this process, as shoal.log.to has it; mostly nobody."""

from __future__ import annotations

from typing import Any, Dict, List

class Listener:
    """Takes what a worker reports, and the steps that it makes."""

    def on_report(self, job: Any, numbers: Dict[str, float]) -> None:
        """Take what the program reports by job.report."""
        raise NotImplementedError

    def on_step(self, job: Any, step: int, samples: int, steps: int) -> None:
        """Take that workers have committed an optimizer step, or a round of as many as `steps`, of
        so many samples over all workers; `step` is how many optimizer steps the job has made now.
        """
        raise NotImplementedError


# What shoal.log.to has made, in the order in which it was called. The thread of the training loop
# appends and reads.
LISTENERS: List[Listener] = []
