"""The batches of a trainer's loop, which counts them as if it were alone: a step of the job is as
many of them as the trainer accumulates.
"""

from __future__ import annotations

from typing import Any, Dict, Iterator, List, NamedTuple

import torch

import shoal.torch

_FOREVER = 1 << 40  # epochs: the trainer's loop says when it ends


class Micro(NamedTuple):
    """Some samples of this worker, collated: as many as go through the model at once."""

    inputs: Any
    samples: int


class Part(Dict[str, Any]):
    """This worker's samples of a step, in the place of a batch. Where a trainer accumulates several
    batches, the last one has all of them.
    """

    def __init__(self, micros: List[Micro]):
        super().__init__()
        self.micros = micros
        self.samples = sum(micro.samples for micro in micros)
        self.items: Any = None  # what the loss is divided by; None = by the number of samples
        self.flos = self.tokens = 0.0  # of all workers, known when the step is committed


class _Cut:
    """Collates samples in cuts of at most `size`."""

    def __init__(self, collate: Any, size: int):
        self._collate, self._size = collate, size

    def __call__(self, samples: List[Any]) -> List[Micro]:
        cuts = [samples[i : i + self._size] for i in range(0, len(samples), self._size)]
        return [Micro(self._collate(cut), len(cut)) for cut in cuts]


class TrainLoader:
    """What a trainer takes for its DataLoader. It tells the lengths; the batches come with the
    steps of the job, in `parts`.
    """

    def __init__(self, plain: Any, size: int, updates: int, seed: int, shuffle: bool):
        """`plain` is the DataLoader that it replaces, `size` that of its batches, of which
        `updates` are accumulated.
        """
        self.dataset, self.batch_size = plain.dataset, size
        samples, batch = len(plain.dataset), size * updates
        self._count = samples // batch * updates if plain.drop_last else -(-samples // size)
        options = {"pin_memory": plain.pin_memory and torch.cuda.is_available()}
        if plain.num_workers:
            names = ("num_workers", "prefetch_factor", "persistent_workers")
            names += ("multiprocessing_context", "worker_init_fn")
            options.update((name, getattr(plain, name)) for name in names)
        self.loader = shoal.torch.loader(
            plain.dataset,
            batch,
            seed=seed,
            epochs=_FOREVER,
            shuffle=shuffle,
            drop_last=plain.drop_last,
            collate_fn=_Cut(plain.collate_fn, size),
            **options,
        )
        self.parts: Iterator[List[Micro]] = iter(self.loader)

    def __len__(self) -> int:
        return self._count

    def __iter__(self) -> Iterator[Any]:
        return iter(())

    def close(self) -> None:
        """End the loop over the steps of the job."""
        self.loader.finish()
        next(self.parts, None)
