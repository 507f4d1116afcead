"""What the training steps of a Lightning module log: values over all workers."""

from __future__ import annotations

import math
from typing import Any, Callable, Dict, List, NamedTuple

import torch
from torchmetrics import Metric

import shoal
from shoal._live.object_collectives import pack, unpack

# What a worker without samples has for each way to put values together: it changes nothing.
_NEUTRAL = {"max": -math.inf, "min": math.inf}


class _Entry(NamedTuple):
    """What was logged in a step that is not committed yet."""

    name: str  # what `self.log` was given
    how: str  # how the values of the workers are put together: sum, min or max
    shared: Any  # the handle of the call that does
    finish: Callable[[Any], None]  # logs the result of that call


class Logged:
    """The values that the training steps of a module log. Those of all workers are put together,
    and logged when the update is whole, so they do not depend on how its samples are cut. Only the
    thread of the training loop uses it; `end_step` waits for the other workers.
    """

    def __init__(self, job: "shoal.Job"):
        """Nothing is logged yet."""
        self._job = job
        self._results: Any = None  # Lightning's own collection; None = before `begin`
        # What was logged before, in the epoch in which this worker joined or resumed, by name.
        self._before: Dict[str, Any] = {}
        self._waiting: List[_Entry] = []  # what was logged in the step under way
        # What was logged in the steps before of the update under way, over all workers, by name.
        self._found: Dict[str, torch.Tensor] = {}
        self._finish: Dict[str, Callable[[Any], None]] = {}  # what logs these, by name
        self.weight = 0  # how many samples of the batch under way count

    def begin(self, results: Any) -> None:
        """Take the place of the method `log` of Lightning's collection of results."""
        self._results, own = results, results.log

        def log(fx: str, name: str, value: Any, *others: Any, **options: Any) -> None:
            """Log a value of this worker; in a training step of the job, begin the call that
            combines those of all workers, and keep it for `end_step`.
            """
            step = self._job.step
            alone = options.get("rank_zero_only")  # perhaps no other worker logs it
            if fx != "training_step" or step is None or step.committed or alone:
                own(fx, name, value, *others, **options)
            elif isinstance(value, Metric):
                raise TypeError(
                    f"self.log({name!r}, …) in training_step was given {type(value).__name__}, a"
                    " metric of torchmetrics, which would see the samples of this worker alone:"
                    " log what it returns for the batch, self.log(name, metric(predicted, target)),"
                    " which is averaged over all workers"
                )
            elif not torch.is_tensor(value):
                own(fx, name, value, *others, **options)
            else:
                self._share(own, fx, name, value, *others, **options)

        results.log = log

    def _share(
        self, own: Any, fx: str, name: str, value: torch.Tensor, *others: Any, **options: Any
    ) -> None:
        """Begin the call that combines a value with those of the other workers."""
        how = options.get("reduce_fx", "mean")
        how = how if isinstance(how, str) else how.__name__
        mine, mean = value.detach().double().reshape(-1).cpu(), how in ("mean", "avg")
        in_rows = how != "sum"  # a sum over no samples is 0
        how = "sum" if mean else how
        if in_rows:
            # The second row is for a batch of which no worker has samples: what stands in for them.
            rows = torch.full((2, mine.numel() + 1), _NEUTRAL.get(how, 0.0), dtype=torch.float64)
            rows[1, :-1], rows[1, -1] = mine, 1
            if self.weight:
                weight = self.weight if mean else 1
                rows[0, :-1], rows[0, -1] = mine * weight, weight
            mine = rows.reshape(-1)
        elif not self.weight:
            mine = torch.zeros_like(mine)
        # A part of the step: a worker that is lost has its samples neither here nor there.
        shared = self._job.step.share(mine, last=False, op=how)  # type: ignore[union-attr]

        def finish(sums: torch.Tensor) -> None:
            """Log the value over all workers: `sums` is what the call has combined, but for a sum
            the two rows, each with its weight at its end: for a mean the number of samples.
            """
            if in_rows:
                counted, stand_ins = sums.reshape(2, -1)
                sums = counted if 0 < counted[-1] < math.inf else stand_ins
                if mean:
                    options["batch_size"] = int(sums[-1])
                sums = sums[:-1] / sums[-1]
            new = sums.to(value.device, _kept_dtype(value)).reshape(value.shape)
            own(fx, name, new, *others, **options)
            before = self._before.pop(f"{fx}.{name}", None)
            if before is not None:
                _add_before(self._results[f"{fx}.{name}"], before)

        self._waiting.append(_Entry(name, how, shared, finish))

    def end_step(self, whole: bool) -> None:
        """Put together what the batches of a committed step have, those of one name as one value.
        Log it where the update is `whole`.
        """
        waiting, self._waiting = self._waiting, []
        for entry in waiting:
            sums = entry.shared.wait()
            if entry.name in self._found:
                sums = _combine(entry.how, self._found.pop(entry.name), sums)
            self._found[entry.name], self._finish[entry.name] = sums, entry.finish
        if whole:
            for name, finish in self._finish.items():
                finish(self._found[name])
            self._found, self._finish = {}, {}

    # What workers that join, and checkpoints, get

    def epoch_values(self) -> Any:
        """What was logged so far for values over the whole epoch, packed: by the key of Lightning's
        results the value, and the number of samples in it, None where it has none.
        """
        return pack(
            {
                key: [metric.value, getattr(metric, "cumulated_batch_size", None)]
                for key, metric in self._results.items()
                if metric.is_tensor and metric.meta.on_epoch
            }
        )

    def take_epoch_values(self, packed: Any) -> None:
        """Go on from what `epoch_values` has returned elsewhere, in the same epoch."""
        self._before = unpack(packed)

    def end_epoch(self) -> None:
        """Forget what was logged before in the epoch, and not again since: the next one begins."""
        self._before = {}

    def update_values(self) -> Any:
        """What was logged in the steps before of the update under way, packed."""
        return pack(self._found)

    def take_update_values(self, packed: Any) -> None:
        """Go on from what `update_values` has returned elsewhere."""
        self._found = unpack(packed)


def _kept_dtype(value: torch.Tensor) -> torch.dtype:
    """The type in which Lightning keeps a value that is logged: a mean of whole numbers is none,
    and a sum of short floats may be beyond what they hold.
    """
    exact = value.dtype in (torch.float32, torch.float64)
    return value.dtype if exact else torch.get_default_dtype()


def _combine(how: str, one: torch.Tensor, other: torch.Tensor) -> torch.Tensor:
    """Two values of several workers as one, by `how`: sum, max or min."""
    if how == "sum":
        return one + other
    return torch.maximum(one, other) if how == "max" else torch.minimum(one, other)


def _add_before(metric: Any, before: List[Any]) -> None:
    """Add to a metric of Lightning what was logged in the epoch before this worker joined or
    resumed: a value as `epoch_values` gives it.
    """
    value, size = before
    if metric.meta.is_max_reduction or metric.meta.is_min_reduction:
        metric.value = metric.meta.reduce_fx(torch.stack([metric.value, value.to(metric.value)]))
    else:
        metric.value = metric.value + value.to(metric.value)
    if size is not None:
        metric.cumulated_batch_size = metric.cumulated_batch_size + size
