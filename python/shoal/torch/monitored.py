"""The barrier that names who is missing: every rank reports to rank 0, which answers when all
have.
"""

from __future__ import annotations

import time
from datetime import timedelta
from typing import Any, Union

import torch

# Tags of their own, a new one each time: a rank that comes late must not meet the next barrier.
_TAGS = 1 << 31


def monitored_barrier(
    group: Any, number: int, timeout: Union[timedelta, float], all_ranks: bool
) -> None:
    """Run barrier `number` of a ProcessGroup: block until every rank is here. Rank 0 raises
    RuntimeError at the timeout, which names the first missing rank or all, and the ranks that are
    here one that refers to it. The words of the errors are those that torch's users know from gloo.
    """
    seconds = timeout.total_seconds() if isinstance(timeout, timedelta) else float(timeout)
    end, tag = time.monotonic() + seconds, _TAGS + number
    token = torch.zeros(1, dtype=torch.uint8)
    if group.rank() != 0:
        try:
            group.send([token], 0, tag).wait(_time_left(end))
            group.recv([token], 0, tag).wait(_time_left(end))
        except RuntimeError as error:
            raise RuntimeError(
                f"Rank {group.rank()} successfully reached monitoredBarrier, but received errors"
                " while waiting for send/recv from rank 0. Look at rank 0's error for the rank"
                f" that is missing. This rank's: {error}"
            ) from None
        return
    arrivals = [(r, group.recv([token.clone()], r, tag)) for r in range(1, group.size())]
    missing = []
    for rank, arrival in arrivals:
        if not all_ranks and seconds <= 0:
            raise RuntimeError(
                f"Rank 0 timed out in monitoredBarrier after {1000 * seconds:.0f} ms: give it more"
                " time"
            )
        try:
            arrival.wait(_time_left(end))
        except RuntimeError:
            missing.append(rank)
            if not all_ranks:
                break
    if missing:
        who = f"Rank{'s' if len(missing) > 1 else ''} {', '.join(map(str, missing))}"
        raise RuntimeError(f"{who} failed to pass monitoredBarrier in {1000 * seconds:.0f} ms")
    for answer in [group.send([token], r, tag) for r in range(1, group.size())]:
        answer.wait()


def _time_left(end: float) -> timedelta:
    """The time until a moment of time.monotonic(); never 0, which means "no timeout given"."""
    return timedelta(seconds=max(0.001, end - time.monotonic()))
