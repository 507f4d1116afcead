"""How long a training is, where its loop does not say it."""

from __future__ import annotations

from typing import Optional

from ._live.epochs import FOREVER, End
from ._runtime.arguments import as_integer
from .job import join


def goal(steps: Optional[int] = None, epochs: Optional[int] = None) -> None:
    """Say how long the whole training is, in optimizer steps or in epochs, whichever comes first,
    where its loop does not say it: in a program that loops over each epoch, or has a loop of its
    own. It joins the job when nobody has.

        shoal.goal(epochs=10)
        for epoch in range(10):
            for images, labels in loader: ...

    `shoal ps --json` and `shoal queue` then show how far the job is, and a pool knows when it will
    end. It ends nothing. Where the workers make their steps without shoal, give `steps`, and
    job.report(step=...) how many were made; epochs are those of job.steps and shoal.torch.loader.
    Every worker says the same, and the last call holds.

    Raises TypeError and ValueError for what is no number of steps or epochs.
    """
    if steps is epochs is None:
        raise TypeError("goal() says nothing: give the steps or the epochs of the training")
    what = "how many {} the whole training has, an integer from 1, or None"
    if steps is not None:
        steps = as_integer("steps", steps, 1, what.format("steps"), (1 << 53) - 1)
    if epochs is not None:
        epochs = as_integer("epochs", epochs, 1, what.format("epochs"), FOREVER - 1)
    job = join()
    job._goal = End(epochs, steps)
    if job._progress is not None:
        job._progress.state_goal(job._goal)
    elif steps is not None:
        job._backend.tell_goal(steps)
