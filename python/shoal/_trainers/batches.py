"""The batches of a trainer's loop, which counts them as if it were alone: a step of the job is as
many of them as the trainer accumulates.
"""

from __future__ import annotations

from typing import Any, Dict, Iterator, List, NamedTuple

import torch
from torch.utils.data import RandomSampler, SequentialSampler

import shoal.torch
from shoal._live.epochs import FOREVER


def check_loader(plain: Any) -> Dict[str, Any]:
    """Return the options of the DataLoader `plain` for its worker processes, none where it has no
    such processes. Raises TypeError or ValueError where its samples cannot be dealt out by their
    numbers.
    """
    if not (hasattr(plain.dataset, "__len__") and hasattr(plain.dataset, "__getitem__")):
        raise TypeError(
            f"the dataset of a DataLoader is {type(plain.dataset).__name__}, without a length:"
            " shoal deals out samples by their numbers. Give it __len__ and __getitem__"
        )
    if plain.batch_size is None or type(plain.sampler) not in (RandomSampler, SequentialSampler):
        raise ValueError(
            "a DataLoader has a sampler of its own, which shoal cannot deal out: give it"
            " batch_size and shuffle"
        )
    if not plain.num_workers:
        return {}
    return dict(num_workers=plain.num_workers, prefetch_factor=plain.prefetch_factor)


def batches_in_epoch(plain: Any, size: int, each: int) -> int:
    """Return how many batches of `size` samples an epoch of the DataLoader `plain` has, of which
    `each` make up a step. With drop_last an epoch has no smaller step at its end.
    """
    samples = len(plain.dataset)
    return samples // (size * each) * each if plain.drop_last else -(-samples // size)


def even_cuts(samples: List[Any], count: int, most: int) -> List[List[Any]]:
    """Return the samples in `count` runs of about the same length, of `most` samples each at most,
    of which `count` have to hold all. A run has two samples at least where that can be, for batch
    norms; then the last ones may be empty.
    """
    taking = min(count, max(len(samples) // 2, -(-len(samples) // most), 1))
    ends = [len(samples) * i // taking for i in range(taking + 1)]
    cuts = [samples[start:end] for start, end in zip(ends, ends[1:])]
    return cuts + [[] for _ in range(count - taking)]


class Micro(NamedTuple):
    """Some samples of this worker, collated: as many as go through the model at once."""

    inputs: Any  # what the collate function of the DataLoader has made of them
    samples: int  # how many they are


class Part(Dict[str, Any]):
    """This worker's samples of a step, in the place of a batch. Where a trainer accumulates several
    batches, the last one has all of them. As a dict it has no entries. Only the thread of the
    training loop uses it.
    """

    def __init__(self, micros: List[Micro]):
        """A part of these samples; none for the batches before the last one."""
        super().__init__()
        self.micros = micros
        self.samples = sum(micro.samples for micro in micros)
        self.items: Any = None  # what the loss is divided by; None = by the number of samples
        # Floating-point operations and input tokens of all workers in the step. `Update.end` sets
        # them, once the step is committed; 0 before.
        self.flos = self.tokens = 0.0


class _Cut:
    """Collates samples in even cuts of at most `size`. Runs in the DataLoader's worker processes,
    if it has some.
    """

    def __init__(self, collate: Any, size: int):
        """Cuts of `size` samples at most, each collated by `collate`."""
        self._collate, self._size = collate, size

    def __call__(self, samples: List[Any]) -> List[Micro]:
        """The cuts of this worker's samples of a step."""
        cuts = even_cuts(samples, -(-len(samples) // self._size), self._size)
        return [Micro(self._collate(cut), len(cut)) for cut in cuts]


class TrainLoader:
    """What a trainer takes for its DataLoader. It tells the lengths; the batches come with the
    steps of the job, in `parts`. Only the thread of the training loop uses it; to go on with
    `parts`, and `close`, may wait for the other workers.
    """

    def __init__(self, plain: Any, size: int, updates: int, seed: int, shuffle: bool):
        """`plain` is the DataLoader that it replaces, `size` the samples of each of its batches, of
        which `updates` are accumulated for one update of the parameters. `seed` and `shuffle` are
        those of shoal.torch.loader.
        """
        self.dataset, self.batch_size = plain.dataset, size
        self._count = batches_in_epoch(plain, size, updates)
        options = {"pin_memory": plain.pin_memory and torch.cuda.is_available()}
        if plain.num_workers:
            names = ["num_workers", "prefetch_factor", "persistent_workers"]
            names += ["multiprocessing_context", "worker_init_fn"]
            options.update((name, getattr(plain, name)) for name in names)
        self.loader = shoal.torch.loader(
            plain.dataset,
            size * updates,
            seed=seed,
            epochs=FOREVER,
            shuffle=shuffle,
            drop_last=plain.drop_last,
            apart=True,
            collate_fn=_Cut(plain.collate_fn, size),
            **options,
        )
        # This worker's samples, step after step; each item opens the next step of the job.
        self.parts: Iterator[List[Micro]] = iter(self.loader)

    def __len__(self) -> int:
        """The number of batches in an epoch."""
        return self._count

    def __iter__(self) -> Iterator[Any]:
        """No batches: they come with the steps."""
        return iter(())

    def close(self) -> None:
        """End the loop over the steps of the job. Raises ShoalError where the step under way is not
        committed.
        """
        self.loader.finish()
        next(self.parts, None)
