"""The validation of Lightning's Trainer, dealt out over the workers. Its loop goes over the numbers
of the samples; each batch is evaluated by one worker, and what that logs is logged on all.
"""

from __future__ import annotations

import contextlib
import math
import time
import types
from typing import Any, Callable, Dict, Iterator, List, Optional

import torch
from lightning.pytorch.callbacks import ProgressBar
from lightning.pytorch.trainer.states import TrainerFn
from lightning.pytorch.utilities.data import extract_batch_size
from lightning.pytorch.utilities.model_helpers import is_overridden
from torchmetrics import Metric

import shoal

from .batches import samples_in_epoch
from .rounds import Rounds, is_dealable, move_to
from .wishes import unite_wishes

NUMBERS = {"samples", "loader"}  # the keys of a batch of numbers
# Methods that get batches, or that put together what the steps of a module have left: with one of
# these each worker evaluates all batches.
_TRANSFERS = ("on_before_batch_transfer", "transfer_batch_to_device", "on_after_batch_transfer")
_BATCHES = ("on_validation_batch_start", "on_validation_batch_end")
_ENDS = ("on_validation_epoch_end", "on_validation_end")
# What is said of a value when it is logged, besides its name, its weight, and how values are put
# together.
_OPTIONS = ("prog_bar", "logger", "on_step", "on_epoch", "add_dataloader_idx", "rank_zero_only")


def can_be_dealt(trainer: Any, loader: Any) -> bool:
    """Whether a loader is for the validations of a training, and these are the same where each
    worker sees some of the batches: all that they leave is what `self.log` gets, in numbers.
    """
    module, data = trainer.lightning_module, trainer.datamodule
    watching = [c for c in trainer.callbacks if not isinstance(c, ProgressBar)]
    return (
        trainer.state.fn == TrainerFn.FITTING
        and is_dealable(loader)
        and not any(is_overridden(name, module) for name in (*_TRANSFERS, *_BATCHES, *_ENDS))
        and not any(is_overridden(name, c) for name in _BATCHES for c in watching)
        and not any(data is not None and is_overridden(name, data) for name in _TRANSFERS)
        and not any(isinstance(m, Metric) for m in module.modules())
    )


@contextlib.contextmanager
def timed_together(job: "shoal.Job", trainer: Any, ends_step: bool) -> Iterator[None]:
    """A block in which the loop of the training looks whether a validation is due, for a Trainer
    with a time as `val_check_interval`: where the batch `ends_step`, it is on all workers once it
    is on any, for which they wait, and else on none.
    """
    interval = getattr(trainer, "_val_check_time_interval", None)
    if interval is None:
        yield
        return
    before = trainer._last_val_time
    clock = types.SimpleNamespace(due=time.monotonic() - before >= interval)
    due = ends_step and unite_wishes(job, clock, ["due"])
    said = trainer._last_val_time = -math.inf if due else math.inf
    try:
        yield
    finally:
        if trainer._last_val_time == said:  # there was no validation
            trainer._last_val_time = before


class Validation:
    """What the validation loop takes for its DataLoader. Only the thread of the loop uses it;
    `step` waits for the other workers once in as many batches as there are workers.
    """

    def __init__(self, job: "shoal.Job", trainer: Any, dataloader: Any, number: int):
        """`dataloader` is the DataLoader that it replaces; batches of numbers have `number`."""
        self._job, self._trainer, self._dataloader, self._number = job, trainer, dataloader, number
        self.batch_size, self.dataset = dataloader.batch_sampler.batch_size, dataloader.dataset
        # Of the validation that has begun last; None = none has.
        self._rounds: Optional[Rounds] = None

    def __len__(self) -> int:
        """The number of batches, of all workers."""
        return -(-samples_in_epoch(self._dataloader, self.batch_size) // self.batch_size)

    def __iter__(self) -> Iterator[Dict[str, Any]]:
        """The numbers of the samples of each batch, and of this loader."""
        rounds = self._rounds = Rounds(self._job, self._dataloader)
        for batch in rounds.numbers_loader():
            yield {**batch, "loader": torch.tensor([self._number])}

    def step(self, samples: Any, run: Callable[..., Any]) -> None:
        """Evaluate the batch with these numbers of samples on one of the workers, and log on each
        of them what was logged there. `run` is the Trainer's own validation_step.
        """
        trainer, rounds = self._trainer, self._rounds
        assert rounds is not None  # the loop has asked for the numbers
        loop = trainer.fit_loop.epoch_loop.val_loop
        index = next(i for i, x in enumerate(loop._combined_loader.flattened) if x is self)
        several = loop._is_sequential and loop.num_dataloaders > 1

        def make(number: int, batch: Any) -> List[Any]:
            """Evaluate a batch here, and return what was logged."""
            batch = trainer.precision_plugin.convert_input(batch)
            batch = trainer.strategy.batch_to_device(batch, dataloader_idx=index)
            given = loop._build_kwargs(batch, number, index if several else None)
            arguments = loop._build_step_args_from_hook_kwargs(given, "validation_step")
            logged: List[Any] = []

            def keep(fx: str, name: str, value: Any, **options: Any) -> None:
                """Keep what is logged, in the place of logging it."""
                how = options.get("reduce_fx", "mean")
                how = how if isinstance(how, str) else how.__name__
                size = options.get("batch_size")
                if size is None:
                    size = extract_batch_size(batch) if how in ("mean", "avg") else 1
                said = {key: bool(options[key]) for key in _OPTIONS if key in options}
                said.update(reduce_fx=how, batch_size=size)
                logged.append([fx, name, torch.as_tensor(value).detach().cpu(), said])

            loop._results.log = keep
            try:
                run(*arguments)
            finally:
                del loop._results.log
            return logged

        number = rounds.batch_number(samples)
        if trainer.sanity_checking:  # before the training each worker does it for itself
            logged = make(number, rounds.load_batch(number))
        else:
            logged = rounds.result(number, make, int(min(loop.max_batches[index], len(self))))
        device = trainer.strategy.root_device
        for fx, name, value, options in logged:
            loop._results.log(fx, name, move_to(value, device), **options)
