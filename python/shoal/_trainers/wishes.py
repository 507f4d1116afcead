"""What the code of a user asks of a trainer while it trains, such as to stop or to save. Where it
asks on one worker alone, because of the time there or of a loss that is not finite, all workers do
it at the same place: else they would wait for each other in different calls.
"""

from __future__ import annotations

from array import array
from typing import Any, Sequence

import shoal


def unite_wishes(job: "shoal.Job", target: Any, names: Sequence[str]) -> bool:
    """Set each of these attributes of `target`, which are True or False, to whether it is True on
    any worker that is not lost; return whether one of them is. The threads of the training loop of
    all workers call it at the same place, with the same names, and wait for each other.
    """
    wishes = array("q", [bool(getattr(target, name)) for name in names])
    if job.size > 1:
        job.allreduce(wishes)
    for name, count in zip(names, wishes):
        setattr(target, name, count > 0)
    return any(wishes)


def is_of_user(framework: str, *objects: Any) -> bool:
    """Whether the class of one of these objects has something that is neither of this framework nor
    of shoal.
    """
    own = ("builtins", "shoal", framework)
    kinds = (kind for x in objects for kind in type(x).__mro__)
    return any(kind.__module__.partition(".")[0] not in own for kind in kinds)
