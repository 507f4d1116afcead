"""The learning rate follows the batch, where that may change while a job trains."""

from __future__ import annotations

import contextlib
import functools
import types
from typing import Any, Iterator

import torch
from torch.optim import ASGD, LBFGS, SGD, Rprop

import shoal

RULES = ("auto", "linear", "sqrt", "none")
# By which factor the rate of SGD grows as the batch does, and from there with its square root.
_LINEAR_UP_TO = 8


def check_rule(rule: str) -> None:
    """Raise ValueError for what is no rule."""
    if rule not in RULES:
        raise ValueError(f"lr_scaling={rule!r}: one of {', '.join(map(repr, RULES))}")


def follow_batch(
    job: "shoal.Job", opt: torch.optim.Optimizer, kind: torch.optim.Optimizer, rule: str
) -> None:
    """Have each step of `opt` multiply its learning rates by the factor that goes with the batch of
    that step, and set them back after it, so that schedules and `state_dict` never see it. `kind`
    is the optimizer that updates the parameters, by whose class "auto" goes. Nothing where the
    batch of the job never changes. Called by the thread of the training loop, before it; a second
    call for an optimizer in a job changes nothing, and after the job no rate follows its batch.
    """
    progress = job._progress
    if progress is None or progress.batch_range is None:
        return
    progress.rate_decided = True
    before = opt.step
    # What a scheduler wraps keeps the marks of what is in it.
    if rule == "none" or getattr(before, "follows_batch_of", None) is job:
        return

    @functools.wraps(before)
    def step(self: torch.optim.Optimizer, *arguments: Any, **options: Any) -> Any:
        """Take the step that the optimizer took before, at the rate that goes with the batch."""
        if shoal.job._current is not job:  # which was left
            return before(*arguments, **options)
        ratio = progress.cursor.batch / progress.stated_start.batch
        with _multiplied(self, rate_factor(rule, kind, ratio, progress.rate)):
            return before(*arguments, **options)

    del step.__wrapped__  # type: ignore[attr-defined]  # its arguments are of a bound method
    step.follows_batch_of = job  # type: ignore[attr-defined]
    # A method, because schedulers of torch 1 ask the step of an optimizer whose it is.
    opt.step = types.MethodType(step, opt)  # type: ignore[method-assign]


def rate_factor(rule: str, kind: torch.optim.Optimizer, ratio: float, rate: float) -> float:
    """The factor of the learning rate at a batch that is `ratio` times the stated one, by a rule.
    `rate` is the factor that the setting of the job has for SGD; 0 = it has none.

    By "auto", SGD takes that of the setting, which follows from the noise of the gradients
    (Johnson et al., AdaScale SGD, ICML 2020). Without one its rate grows as the batch does (Goyal
    et al., Accurate, Large Minibatch SGD, 2017, section 2.1) up to eight times, and further with
    the square root: Goyal et al. go to 32 times, but with five epochs of warm-up, which a change in
    the midst of a training does not have. Adam and all others divide by what the gradients are
    large, and take the square root (Malladi et al., On the SDEs and Scaling Rules for Adaptive
    Gradient Algorithms, 2022). LBFGS and Rprop, which look for the size of a step themselves, stay.
    """
    if rule == "auto":
        if isinstance(kind, (LBFGS, Rprop)):
            return 1
        if not isinstance(kind, (SGD, ASGD)):
            rule = "sqrt"
        elif rate > 0:
            return rate
        else:
            return ratio if ratio <= _LINEAR_UP_TO else float((_LINEAR_UP_TO * ratio) ** 0.5)
    return {"none": 1, "linear": ratio, "sqrt": float(ratio**0.5)}[rule]


@contextlib.contextmanager
def _multiplied(opt: torch.optim.Optimizer, factor: float) -> Iterator[None]:
    """A block in which the learning rates of an optimizer are multiplied by a factor. One that the
    block itself changes stays as it is then.
    """
    if factor == 1:
        yield
        return
    rates = [(group, group["lr"], group["lr"] * factor) for group in opt.param_groups]
    for group, _, multiplied in rates:
        group["lr"] = multiplied
    try:
        yield
    finally:
        for group, rate, multiplied in rates:
            if group["lr"] is multiplied:
                group["lr"] = rate
