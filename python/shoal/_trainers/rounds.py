"""The batches of an evaluation by the Trainer of transformers, dealt out over the workers: as many
at a time as there are workers.
"""

from __future__ import annotations

from typing import Any, Callable, Dict, Iterator, Optional

import torch
from torch.utils.data import BatchSampler, DataLoader, SequentialSampler

import shoal
from shoal._live.object_collectives import map_over_workers
from shoal.torch.loader import is_map_style

from .batches import worker_options


def is_dealable(loader: Any) -> bool:
    """Whether the batches of a DataLoader can be dealt out by their numbers: its dataset has them
    in order. If not, each worker evaluates all of it.
    """
    batches = getattr(loader, "batch_sampler", None)
    return (
        type(batches) is BatchSampler
        and type(batches.sampler) is SequentialSampler
        and is_map_style(loader.dataset)
        and len(batches.sampler) == len(loader.dataset)
    )


class Rounds:
    """The batches of one evaluation, each evaluated by one of the workers, in rounds of as many as
    there are workers. Only the thread of the evaluation uses it; `result` waits for the other
    workers once a round.
    """

    def __init__(self, job: "shoal.Job", loader: Any):
        """`loader` is the DataLoader of the evaluation, for which `is_dealable` is true."""
        self._job = job
        self._dataset, self._collate = loader.dataset, loader.collate_fn
        # Samples of a batch, and whether a smaller one at the end is left out.
        self._size, self._drop = loader.batch_sampler.batch_size, loader.batch_sampler.drop_last
        samples = len(self._dataset)
        # The number of batches.
        self.count = samples // self._size if self._drop else -(-samples // self._size)
        # The results for the batches of this round that the loop has not asked for yet, by number.
        self._found: Dict[int, Any] = {}
        own = [self._samples(i) for i in range(job.rank, self.count, job.size)]
        options = worker_options(loader)
        # The batches that are this worker's unless another one is lost.
        self._own: Iterator[Any] = iter(
            DataLoader(self._dataset, batch_sampler=own, collate_fn=self._collate, **options)
        )

    def numbers_loader(self) -> "DataLoader[Any]":
        """A new loader for the loop of the evaluation: each of its batches has the numbers of the
        samples, for `batch_number`, in place of the samples.
        """
        return DataLoader(
            range(len(self._dataset)),  # type: ignore[arg-type]
            batch_size=self._size,
            drop_last=self._drop,
            collate_fn=_collate_numbers,
        )

    def batch_number(self, samples: Any) -> int:
        """The number of the batch with these numbers of samples."""
        return int(samples[0]) // self._size

    def result(self, batch: int, make: Callable[[int, Any], Any], end: Optional[int] = None) -> Any:
        """What make(number, samples) has returned for a batch, on whichever worker: nested tensors
        and numbers. The loop asks for the batches in their order, on all workers alike, up to
        `end`; None = for all.
        """
        if batch not in self._found:
            end = self.count if end is None else min(end, self.count)
            whole = range(batch, min(batch + self._job.size, end))
            self._found = map_over_workers(self._job, whole, lambda i: make(i, self.load_batch(i)))
        return self._found.pop(batch)

    def _samples(self, batch: int) -> Any:
        """The numbers of the samples of a batch."""
        start = batch * self._size
        return range(start, min(start + self._size, len(self._dataset)))

    def load_batch(self, batch: int) -> Any:
        """A batch, also one that a lost worker had. This worker's own are asked for in their order,
        once each.
        """
        if batch % self._job.size == self._job.rank:
            return next(self._own)
        return self._collate([self._dataset[i] for i in self._samples(batch)])


class Predictions(Rounds):
    """Predicts batches, in the place of a Trainer's prediction_step, which gets their numbers."""

    def __init__(
        self,
        job: "shoal.Job",
        loader: Any,
        predict: Callable[..., Any],
        preprocess: Optional[Callable[..., Any]],
        kept: Optional[str],
        device: Any,
        handler: Any,
    ):
        """`predict` is the Trainer's own prediction_step, `preprocess` what the loop would do with
        the logits, and `kept` the name of the input that the metrics need; None = none. Results
        come on `device`. The callbacks of `handler` see `loader`.
        """
        super().__init__(job, loader)
        self._loader, self._handler = loader, handler
        self._predict, self._preprocess = predict, preprocess
        self._kept, self._device = kept, device

    def prediction_step(
        self, model: Any, inputs: Any, prediction_loss_only: bool, ignore_keys: Any = None
    ) -> Any:
        """The loss, the logits and the labels of the batch with these numbers of samples, whichever
        worker has predicted it. Sets the input that is kept in `inputs`.
        """

        def make(_: int, inputs: Any) -> Any:
            """Predict a batch here: its loss, logits, labels and the input that is kept."""
            loss, logits, labels = self._predict(
                model, inputs, prediction_loss_only, ignore_keys=ignore_keys
            )
            if logits is not None and self._preprocess is not None:
                logits = self._preprocess(logits, labels)
            return [loss, logits, labels, None if self._kept is None else inputs[self._kept]]

        self._handler.eval_dataloader = self._loader  # the loop has set that of the numbers
        result = self.result(self.batch_number(inputs["samples"]), make)
        loss, logits, labels, kept = move_to(result, self._device)
        if self._kept is not None:
            inputs[self._kept] = kept
        return loss, logits, labels


def _collate_numbers(samples: Any) -> Dict[str, torch.Tensor]:
    """The numbers of the samples of a batch, as its only input."""
    return {"samples": torch.tensor(samples)}


def move_to(value: Any, device: Any) -> Any:
    """A nested value with its tensors on a device; dicts, lists and tuples are new."""
    if torch.is_tensor(value):
        return value.to(device)
    if isinstance(value, dict):
        return {key: move_to(v, device) for key, v in value.items()}
    if isinstance(value, (list, tuple)):
        return type(value)(move_to(v, device) for v in value)
    return value
