"""The batches of a trainer's loop, which counts them as if it were alone: a step of the job is as
many of them as the trainer accumulates.
"""

from __future__ import annotations

from typing import Any, Callable, Dict, Iterator, List, NamedTuple

import torch
from torch.utils.data import BatchSampler, RandomSampler, SequentialSampler

import shoal.torch
from shoal._live.epochs import FOREVER
from shoal.torch.loader import is_map_style


def check_dealable(dataloader: Any, sampler: Any = None) -> None:
    """Raise TypeError or ValueError where the samples of a DataLoader cannot be dealt out by their
    numbers, each once an epoch. `sampler` is the one that it was made with; None = it has it.
    """
    dataset = dataloader.dataset
    if not is_map_style(dataset):
        raise TypeError(
            f"the dataset of a DataLoader is {type(dataset).__name__}, which is iterable or without"
            " a length: shoal deals out samples by their numbers. Give it __len__ and __getitem__"
        )
    if dataloader.batch_sampler is None:
        raise ValueError(
            "a DataLoader has batch_size=None, so each item of its dataset is a batch already, and"
            " shoal deals out samples: give it a batch_size, and a dataset of which dataset[i] is"
            " one sample"
        )
    batches = dataloader.batch_sampler
    # A loader without a batch_size was given its batches, and its `sampler` is not theirs.
    if type(batches) is not BatchSampler or sampler is None and dataloader.batch_size is None:
        sampler = batches
    sampler = dataloader.sampler if sampler is None else sampler
    if type(sampler) not in (RandomSampler, SequentialSampler):
        raise ValueError(
            f"a DataLoader has a sampler of its own, {type(sampler).__name__}, which shoal cannot"
            " deal out: give it batch_size and shuffle, and sort or weigh the dataset itself"
        )
    there, of = len(dataset), len(sampler.data_source)
    if getattr(sampler, "replacement", False) or of != there or len(sampler) > there:
        raise ValueError(
            "shoal deals each sample out once an epoch at most, and the sampler of a DataLoader"
            f" draws {len(sampler)} of {of}, of a dataset of {there}: leave out replacement, and"
            " the sampler of another dataset"
        )


def worker_options(dataloader: Any) -> Dict[str, Any]:
    """Return the options of a DataLoader for its worker processes, none where it has no such
    processes.
    """
    names = ["num_workers", "prefetch_factor", "persistent_workers", "multiprocessing_context"]
    names.append("worker_init_fn")
    return {name: getattr(dataloader, name) for name in names} if dataloader.num_workers else {}


def samples_in_epoch(dataloader: Any, size: int, sampler: Any = None) -> int:
    """Return how many samples an epoch of a DataLoader takes in batches of `size`: those of its
    sampler, with drop_last those of whole batches. `sampler` is as in `check_dealable`.
    """
    samples = len(dataloader.sampler if sampler is None else sampler)
    return samples - samples % size if dataloader.batch_sampler.drop_last else samples


def samples_to_train(dataloader: Any, size: int, sampler: Any = None) -> int:
    """As `samples_in_epoch`, of a DataLoader that trains. Raises ValueError where that is 0."""
    samples = samples_in_epoch(dataloader, size, sampler)
    if not samples:
        raise ValueError(
            "the DataLoader of the training has no batch: its dataset has"
            f" {len(dataloader.dataset)} samples, a batch has {size}, and drop_last is"
            f" {dataloader.batch_sampler.drop_last}"
        )
    return samples


def cut_evenly(samples: List[Any], count: int, max_samples: int) -> List[List[Any]]:
    """Return the samples in `count` runs of about the same length, of `max_samples` samples each at
    most, of which `count` have to hold all. A run has two samples at least where that can be, for
    batch norms; then the last ones may be empty.
    """
    taking = min(count, max(len(samples) // 2, -(-len(samples) // max_samples), 1))
    ends = [len(samples) * i // taking for i in range(taking + 1)]
    cuts = [samples[start:end] for start, end in zip(ends, ends[1:])]
    return cuts + [[] for _ in range(count - taking)]


class MicroBatch(NamedTuple):
    """Some samples of this worker, collated: as many as go through the model at once."""

    inputs: Any  # what the collate function of the DataLoader has made of them
    samples: int  # how many they are


class Part(Dict[str, Any]):
    """This worker's samples of a step, in the place of a batch. Where a trainer accumulates several
    batches, the last one has all of them. As a dict it has no entries. Only the thread of the
    training loop uses it.
    """

    def __init__(self, micros: List[MicroBatch]):
        """A part of these samples; none for the batches before the last one."""
        super().__init__()
        self.micros = micros
        self.samples = sum(micro.samples for micro in micros)
        self.items: Any = None  # what the loss is divided by; None = by the number of samples
        # Floating-point operations and input tokens of all workers in the update, once it is whole;
        # 0 before.
        self.flos = self.tokens = 0.0


def wrap_flos(own: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """A function for the floating-point operations of inputs: those of all workers for a Part, else
    what `own` says.
    """
    return lambda inputs: inputs.flos if isinstance(inputs, Part) else own(inputs)


def wrap_tokens(trainer: Any, own: Callable[[Any], None]) -> Callable[[Any], None]:
    """A function that counts the input tokens in the state of a trainer: those of all workers for a
    Part, else as `own` does.
    """

    def track(inputs: Any) -> None:
        """Count the tokens of some inputs."""
        if isinstance(inputs, Part):
            trainer.state.num_input_tokens_seen += int(inputs.tokens)
        else:
            own(inputs)

    return track


class _EvenCollate:
    """Collates samples in even cuts of at most `size`. Runs in the DataLoader's worker processes,
    if it has some.
    """

    def __init__(self, collate: Any, size: int):
        """Cuts of `size` samples at most, each collated by `collate`."""
        self._collate, self._size = collate, size

    def __call__(self, samples: List[Any]) -> List[MicroBatch]:
        """The cuts of this worker's samples of a step."""
        cuts = cut_evenly(samples, -(-len(samples) // self._size), self._size)
        return [MicroBatch(self._collate(cut), len(cut)) for cut in cuts]


class TrainLoader:
    """What a trainer takes for its DataLoader. It tells the lengths; the batches come with the
    steps of the job, in `parts`. Only the thread of the training loop uses it; to go on with
    `parts`, and `close`, may wait for the other workers.
    """

    def __init__(self, dataloader: Any, sampler: Any, size: int, updates: int, seed: int):
        """`dataloader` is the DataLoader that it replaces, which was made with `sampler`, `size`
        the samples of each of its batches, of which `updates` are accumulated for one update of the
        parameters. `seed` is that of shoal.torch.loader. Raises TypeError or ValueError where the
        samples cannot be dealt out.
        """
        check_dealable(dataloader, sampler)
        self.dataset, self.batch_size = dataloader.dataset, size
        samples = samples_to_train(dataloader, size, sampler)
        self._count = -(-samples // size)
        self.loader = shoal.torch.loader(
            dataloader.dataset,
            size * updates,
            seed=seed,
            epochs=FOREVER,
            shuffle=type(sampler) is RandomSampler,
            samples_per_epoch=samples,
            apart=True,
            collate_fn=_EvenCollate(dataloader.collate_fn, size),
            pin_memory=dataloader.pin_memory and torch.cuda.is_available(),
            **worker_options(dataloader),
        )
        # This worker's samples, step after step; each item opens the next step of the job.
        self.parts: Iterator[List[MicroBatch]] = iter(self.loader)

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
