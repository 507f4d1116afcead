"""Schedules of the learning rate that follow what the samples of a training are worth."""

from __future__ import annotations

from typing import Any

from torch.optim.lr_scheduler import ReduceLROnPlateau

import shoal
from shoal._runtime.arguments import wrong_type


def schedule(scheduler: Any) -> "Schedule":
    """A schedule of torch.optim.lr_scheduler that is stepped once in every step of a loop over
    `shoal.torch.loader`, and advances by what the samples are worth: by one for each global_batch
    of them that the loader states, however large the batches are.

        cosine = CosineAnnealingLR(optimizer, T_max=10 * len(data) // 128)
        schedule = shoal.torch.schedule(cosine)          # after loader(data, global_batch=128, …)
        for x, y in loader:
            ...
            optimizer.step()
            schedule.step()

    So it comes to its end with the `statistical_epochs` of the loader, where the batch may change.
    With a batch that stays, it advances by one a step, but for a smaller batch at the end of an
    epoch, of which only the samples count. Workers that join get the state of `scheduler`, as ever.

    Raises TypeError for what has no step without arguments, and ShoalError without a loader.
    """
    if isinstance(scheduler, (type, ReduceLROnPlateau)) or not hasattr(scheduler, "get_last_lr"):
        raise wrong_type(
            "scheduler",
            scheduler,
            "a schedule that is stepped without a metric, as"
            " torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=1000)",
        )
    job = shoal.join()
    if job._progress is None:
        raise shoal.ShoalError("make shoal.torch.loader first, whose samples the schedule follows")
    return Schedule(job, scheduler)


class Schedule:
    """A scheduler around another one; see `schedule`. All but `step` is that of the other. Only the
    thread of the training loop uses it; nothing waits.
    """

    def __init__(self, job: "shoal.Job", inner: Any) -> None:
        """Step `inner`, which stays the caller's, as far as the job is."""
        self.inner = inner
        self._job = job

    def step(self) -> None:
        """Advance to where the job is: by as many steps as it has become worth since the last call.
        Call it after that of the optimizer.
        """
        progress, counting = self._job._progress, self.inner
        while not hasattr(counting, "last_epoch"):  # a ChainedScheduler counts nothing itself
            counting = counting._schedulers[0]
        # OneCycleLR raises an error beyond its end, which the last step of a training may cross.
        most = getattr(self.inner, "total_steps", float("inf"))
        worth = min(progress.effective // progress.stated_start.batch, most)
        # so many calls, also of a scheduler whose last_epoch does not grow with each
        for _ in range(int(worth - counting.last_epoch)):
            self.inner.step()

    def __getattr__(self, name: str) -> Any:
        """The attribute of the scheduler around which this is. A copy has none while it is made."""
        if "inner" not in self.__dict__:
            raise AttributeError(name)
        return getattr(self.inner, name)
