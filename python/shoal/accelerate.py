"""The Accelerator of Accelerate on workers that come and go.

    from shoal.accelerate import Accelerator         # the one changed line

The loop is the plain one of Accelerate's own examples. Started by `shoal run`, workers may be lost,
join and be released while it trains; without the launcher it is Accelerate's own.
docs/guide/trainers.md says what is supported.

The batch size of the DataLoader that is shuffled, times `gradient_accumulation_steps`, is the batch
of a step over all workers.
"""

from __future__ import annotations

import contextlib
import copy
import dataclasses
import functools
import os
import pathlib
from typing import Any, Dict, Iterator, List, Optional, Set

import accelerate
import torch
from torch.utils.data import DataLoader, RandomSampler, SequentialSampler

import shoal
import shoal.torch
from shoal._trainers import gathered, process
from shoal._trainers.batches import (
    check_dealable,
    cut_evenly,
    samples_in_epoch,
    samples_to_train,
    worker_options,
)
from shoal._trainers.checkpoints import numbered_folders, read_place, write_once, write_place
from shoal._trainers.trackers import TrackedAccelerator
from shoal._live.object_collectives import allgather_objects
from shoal._trainers.update import Update
from shoal.cursor import Cursor

__all__ = ["Accelerator"]

process.hide_from_accelerate()


class Accelerator(TrackedAccelerator):
    """accelerate.Accelerator, on workers that come and go. One thread uses it, that of the training
    loop. `prepare_model`, the `backward` that ends a step, `gather`, `gather_for_metrics`,
    `pad_across_processes`, `reduce`, `wait_for_everyone` and `save_state` wait for the other
    workers.
    """

    def __init__(self, *arguments: Any, **options: Any):
        """As Accelerate's own; in a job, join it and register what checkpoints are named by."""
        self._job: Optional["shoal.Job"] = None  # None = without the launcher
        if process.is_launched():
            process.check_options(options)
            self._job = shoal.join()
        self._train: Optional[_TrainLoader] = None  # None = no loader was prepared yet
        self._writing = False  # this worker writes a checkpoint, for all
        self._late = self._job is not None and self._job.outside  # it joins a job that trains
        super().__init__(*arguments, **options)
        if self._job is not None:
            # How many checkpoints were written, which is the name of the next one.
            count = functools.partial(getattr, self.project_configuration, "iteration")
            self._job.register("accelerator", count, self._set_checkpoint_count, alike=False)
            self._update = Update(self._job)
            self._update.register()

    def _set_checkpoint_count(self, value: int) -> None:
        """Take over the number of checkpoints from the others, or from the job's own checkpoint:
        after that the job may have written more, which it leaves as they are.
        """
        there = [] if self._late else numbered_folders(self._named_folder())
        self.project_configuration.iteration = max([value, *(number + 1 for number, _ in there)])

    def _named_folder(self) -> Optional[str]:
        """The folder of the checkpoints that Accelerate names itself; None where it names none."""
        named = self.project_configuration.automatic_checkpoint_naming
        return os.path.join(self.project_dir, "checkpoints") if named else None

    def prepare(self, *objects: Any, **options: Any) -> Any:
        """As Accelerate's own. The first DataLoader that is shuffled (of none, the first) trains;
        the others are evaluated.
        """
        if self._job is None:
            return super().prepare(*objects, **options)
        mine = self._dealt([x for x in objects if isinstance(x, DataLoader)])
        return super().prepare(*(mine.get(id(x), x) for x in objects), **options)

    def prepare_data_loader(self, data_loader: Any, *others: Any, **options: Any) -> Any:
        """As Accelerate's own; in a job, what `prepare` makes of this loader alone."""
        if self._job is None:
            return super().prepare_data_loader(data_loader, *others, **options)
        return self._dealt([data_loader])[id(data_loader)]

    def _dealt(self, loaders: List[Any]) -> Dict[int, Any]:
        """Return what takes the places of these DataLoaders, by their ids. The first one that is
        shuffled (of none, the first) trains, unless one does already.
        """
        trains = [x for x in loaders if not isinstance(x.sampler, SequentialSampler)] or loaders
        mine: Dict[int, Any] = {}
        if self._train is None and trains:
            mine[id(trains[0])] = self._train = _TrainLoader(self, trains[0])
        mine.update((id(x), _EvalLoader(self, x)) for x in loaders if id(x) not in mine)
        return mine

    def prepare_model(
        self, model: Any, device_placement: Any = None, evaluation_mode: bool = False
    ) -> Any:
        """As Accelerate's own, with the gradients averaged over the workers unless the model is
        only evaluated. Raises RuntimeError before a DataLoader is prepared that trains it.
        """
        averaged = self._job is not None and not evaluation_mode
        if averaged and self._train is None:
            raise RuntimeError(
                "a model was prepared before the DataLoader that trains it: give prepare() both at"
                " once, or the loader first; a model that is only evaluated gets"
                " prepare_model(model, evaluation_mode=True)"
            )
        prepared = super().prepare_model(model, device_placement, evaluation_mode)
        if not averaged:
            return prepared
        self._job._progress.one_average = process.ONE_AVERAGE  # type: ignore[union-attr]
        return shoal.torch.ddp(prepared, **process.ddp_options(self))

    def prepare_optimizer(self, optimizer: Any, *others: Any, **options: Any) -> Any:
        """As Accelerate's own. In a job, raises ValueError for LOMO."""
        if self._job is not None:
            process.check_optimizer(optimizer)
        return super().prepare_optimizer(optimizer, *others, **options)

    def backward(self, loss: Any, **options: Any) -> None:
        """As Accelerate's own, with the loss weighted by the samples of this worker. Where a lost
        worker has left samples of the step, gradients are not complete yet: optimizer and scheduler
        make no step before the next batches, which have these samples.
        """
        train = self._train
        if train is None or train.share is None:
            if isinstance(self.gradient_state.active_dataloader, _EvalLoader):
                raise RuntimeError(
                    "a backward pass in a loop over a DataLoader that evaluates: of all that get"
                    " prepare(), the first trains, and of several at once the first that is"
                    " shuffled. Prepare the loader of the training first; a job has one training"
                )
            return super().backward(loss, **options)
        if train.last:
            self.gradient_state._set_sync_gradients(True)
        super().backward(loss * train.share, **options)
        train.partial = not train.last
        if train.last:
            self._update.commit_alone()
            left = sum(stop - start for start, stop in train.loader.place.left)
            self._update.add_step(train.loader.step.count - left, not left, self._models)
            self.gradient_state._set_sync_gradients(not left)

    def _do_sync(self) -> None:
        """Average gradients in the last batch of a step of the job."""
        if self._train is None or self._train.share is None:
            return super()._do_sync()
        self.gradient_state._set_sync_gradients(self._train.last)

    def no_sync(self, model: Any) -> Any:
        """As Accelerate's own: the backward passes in the block are not averaged."""
        return super().no_sync(model) if self._job is None else model.no_sync()

    # What the workers tell each other

    def gather(self, tensor: Any) -> Any:
        """The tensors of all workers that are not lost, joined by rank, on this worker's device."""
        if self._job is None:
            return super().gather(tensor)
        return gathered.joined(tensor, allgather_objects(self._job, tensor).values(), self.device)

    def gather_for_metrics(self, input_data: Any, use_gather_object: bool = False) -> Any:
        """What all workers have for their batches of this round of an evaluation, in the order of
        the batches, each sample once; elsewhere as `gather`, and of any objects.
        """
        active = self.gradient_state.active_dataloader
        if self._job is None:
            return super().gather_for_metrics(input_data, use_gather_object)
        if isinstance(active, _EvalLoader):
            values = active.gather_round(input_data)
        else:
            values = list(allgather_objects(self._job, input_data).values())
        return gathered.joined(input_data, values, self.device, use_gather_object)

    def pad_across_processes(
        self, tensor: Any, dim: int = 0, pad_index: int = 0, pad_first: bool = False
    ) -> Any:
        """As Accelerate's own: the tensors get the size along `dim` of the largest of all workers
        that are not lost, for whom it waits.
        """
        if self._job is None:
            return super().pad_across_processes(tensor, dim, pad_index, pad_first)
        sizes: List[int] = []
        apply = accelerate.utils.operations.recursively_apply
        apply(lambda t: sizes.append(gathered.size_along(t, dim)), tensor, error_on_other_type=True)
        all_sizes = allgather_objects(self._job, sizes).values()
        most = iter([max(of_one) for of_one in zip(*all_sizes)])
        return apply(lambda t: gathered.pad_along(t, dim, next(most), pad_index, pad_first), tensor)

    def reduce(self, tensor: Any, reduction: str = "sum", scale: float = 1.0) -> Any:
        """The sum, the mean or the largest (max) of the tensors of all workers that are not lost,
        times `scale`. In the loop that trains, the mean is weighted by samples, but of a batch of
        which no worker has samples it is the plain mean of what stands in for them.
        """
        if self._job is None:
            return super().reduce(tensor, reduction, scale)
        if reduction != "mean":
            all_values = list(allgather_objects(self._job, tensor).values())
            found = gathered.sum_scaled(all_values, scale, self.device, reduction == "max")
            return gathered.in_types_of(tensor, found)
        train, weight = self._train, 1  # as in an evaluation in that loop
        if train is not None and self.gradient_state.active_dataloader is train:
            weight = train.samples
        values, weights = zip(*allgather_objects(self._job, [tensor, weight]).values())
        found = gathered.mean_scaled(list(values), list(weights), scale, self.device)
        return gathered.in_types_of(tensor, found)

    def wait_for_everyone(self) -> None:
        """Wait for all workers. Returns at once while this worker writes a checkpoint for all."""
        if self._job is None:
            super().wait_for_everyone()
        elif not self._writing:
            allgather_objects(self._job, None)

    # State

    def register_for_checkpointing(self, *objects: Any) -> None:
        """As Accelerate's own; workers that join get the state of the objects too."""
        super().register_for_checkpointing(*objects)
        for x in objects if self._job is not None else ():
            name = self._job.unused(type(x).__name__)  # type: ignore[union-attr]
            self._job._state.register(  # type: ignore[union-attr]
                name, x.state_dict, x.load_state_dict, of_first=True
            )

    def save_state(self, output_dir: Optional[str] = None, *others: Any, **options: Any) -> Any:
        """As Accelerate's own, with the place in the data; another worker writes where rank 0 is
        lost meanwhile. A worker that has not entered the job writes nothing, and returns None.
        """
        if self._job is None:
            return super().save_state(output_dir, *others, **options)
        if self._job.outside:
            return None  # the others have written it in the epoch that its program goes through
        config, save, named = self.project_configuration, super().save_state, self._named_folder()
        # Hosts may see different folders.
        number = max(allgather_objects(self._job, config.iteration).values())
        if named is not None:
            named = os.path.join(named, f"checkpoint_{number}")

        def write() -> str:
            """Write the checkpoint as rank 0 does, and return its folder."""
            config.iteration = number
            self._writing = True  # the others do not take part in what Accelerate does meanwhile
            try:
                with process.as_rank_zero():
                    folder = save(output_dir, *others, **options)
            finally:
                self._writing = False
            if self._train is not None:
                write_place(folder, self._train.loader.place)
            return os.fspath(folder)

        folder = write_once(self._job, write, named)
        config.iteration = number + 1
        return pathlib.Path(folder)

    def load_state(self, input_dir: Optional[str] = None, *others: Any, **options: Any) -> None:
        """As Accelerate's own, and the place in the data. A worker that joins has it from the
        others.
        """
        if self._job is None:
            return super().load_state(input_dir, *others, **options)
        there = numbered_folders(self._named_folder()) if input_dir is None else []
        if there:
            input_dir = there[-1][1]
        if not self._job.outside:
            with process.as_rank_zero():
                super().load_state(input_dir, *others, **options)
        place = None if input_dir is None else read_place(os.path.expanduser(input_dir))
        if self._train is not None and place is not None:
            self._train.begin_at(place)

    def skip_first_batches(self, dataloader: Any, num_batches: int = 0) -> Any:
        """As Accelerate's own. For the loader that trains it does nothing behind a load_state that
        has found the place in the data.
        """
        if isinstance(dataloader, _EvalLoader):
            return dataloader.without(num_batches)
        if not isinstance(dataloader, _TrainLoader):
            return super().skip_first_batches(dataloader, num_batches)
        if not dataloader.placed:
            dataloader.skip(num_batches)
        return dataloader


class _Loader:
    """A loader that Accelerate knows as the one of the loop under way. Only the thread of the
    training loop uses it.
    """

    def __init__(self, accelerator: Accelerator, dataloader: Any):
        """A loader in the place of a DataLoader, in a job. Raises TypeError or ValueError
        where the samples of that cannot be dealt out.
        """
        check_dealable(dataloader)
        self.accelerator, self.dataset = accelerator, dataloader.dataset
        self.job: Any = accelerator._job
        self.gradient_state = accelerator.gradient_state
        self.batch_size = dataloader.batch_size
        # Accelerate reads these two: whether the batch given out is the last one, and how many of
        # its samples count, 0 = all.
        self.end_of_dataloader, self.remainder = False, 0
        self.collate, self.options = dataloader.collate_fn, worker_options(dataloader)

    @contextlib.contextmanager
    def _active(self) -> Iterator[None]:
        """A block in which Accelerate takes this for the loader of the loop."""
        self.gradient_state._add_dataloader(self)
        try:
            yield
        finally:
            self.gradient_state._remove_dataloader(self)

    def _to_device(self, batch: Any) -> Any:
        """A batch, copied to the device of the Accelerator."""
        return accelerate.utils.send_to_device(batch, self.accelerator.device)


class _TrainLoader(_Loader):
    """The batches of the training, dealt out over the workers. Only the thread of the training loop
    uses it; the next step may wait for the other workers.
    """

    def __init__(self, accelerator: Accelerator, dataloader: Any):
        """Deal out the samples of a DataLoader, in steps of as many batches as the
        Accelerator accumulates. Raises TypeError or ValueError where they cannot be dealt out.
        """
        super().__init__(accelerator, dataloader)
        self._batches_per_step = each = accelerator.gradient_accumulation_steps
        samples = samples_to_train(dataloader, self.batch_size)
        self._count = -(-samples // self.batch_size)
        self.loader = shoal.torch.loader(
            dataloader.dataset,
            dataloader.batch_size * each,
            seed=torch.initial_seed() % (1 << 63),
            shuffle=type(dataloader.sampler) is RandomSampler,
            samples_per_epoch=samples,
            apart=True,
            collate_fn=list,
            **self.options,
        )
        # What the loss of the batch given out is multiplied by: its part of this worker's samples
        # in the step, times the number of batches of the update, because Accelerate divides the
        # loss by the number that it accumulates. None = outside of the loop.
        self.share: Optional[float] = None
        self.samples = 0  # of this worker in the batch under way, those that count
        self.last = self.partial = False  # the last batch of the step; only some have gradients
        self.placed = False  # the loop begins at the place of a checkpoint

    def begin_at(self, place: Cursor) -> None:
        """Have the first loop begin at the place of a checkpoint, which is in its epoch. A worker
        that joins begins where the others are, in one of the loops from this one on.
        """
        progress = self.job._progress
        if progress.begun:
            return  # the training goes on where it is
        self.placed, progress.epochs.ended_loops = True, place.epoch
        if not self.job.outside:
            progress.move_to(place)

    def skip(self, batches: int) -> None:
        """Have the first loop leave out so many batches of the first epoch, in whole steps, but
        never the last step. A worker that joins, or has made a step, leaves out none.
        """
        progress, start = self.job._progress, self.loader.place
        done = min(batches // self._batches_per_step, -(-start.samples // start.batch) - 1)
        if not self.job.outside and not progress.begun:
            progress.move_to(dataclasses.replace(start, step=done, next=done * start.batch))

    def __len__(self) -> int:
        """The number of batches in an epoch."""
        return self._count

    def __iter__(self) -> Iterator[Any]:
        """The batches of one epoch, on the device; a batch that is empty has samples of another
        with a share of 0. Ends the program of a released worker.
        """
        if self.accelerator.gradient_accumulation_steps != self._batches_per_step:
            raise RuntimeError(
                "gradient_accumulation_steps was changed after prepare(), and the batch of a job"
                " stays as it was there: set it before"
            )
        with self._active():
            try:
                for samples in self.loader:
                    process.set_accelerate_rank()
                    yield from self._batches(samples)
            finally:
                self.share = None
        if self.job.released and not self.job.first:
            raise SystemExit(0)  # the others go on without this worker

    def _batches(self, samples: List[Any]) -> Iterator[Any]:
        """The batches of the step under way, of which this worker has these samples."""
        step, update = self.loader.step, self.accelerator._update
        update.begin_rest(self.accelerator._models, self.partial)
        count = -(-step.count // self.batch_size)
        # Accelerate divides by the number of batches that it accumulates.
        whole = -(-(step.count + update.weight) // self.batch_size)
        for i, cut in enumerate(cut_evenly(samples, count, self.batch_size)):
            self.share = len(cut) / len(samples) * whole
            self.samples = len(cut) if step.weight else 0
            self.last = self.end_of_dataloader = i == count - 1
            yield self._to_device(self.collate(cut or samples[:2]))
        self.share = None


class _EvalLoader(_Loader):
    """The batches of an evaluation: in each round every worker has another one. What a lost worker
    had comes again. Only the thread of the training loop uses it; `gather_round` waits for the
    other workers.
    """

    def __init__(self, accelerator: Accelerator, dataloader: Any):
        """Deal out the batches of a DataLoader. Raises TypeError or ValueError where they
        cannot be.
        """
        super().__init__(accelerator, dataloader)
        samples = samples_in_epoch(dataloader, self.batch_size)
        # The numbers of the samples of each batch.
        self._batches = [
            range(start, min(start + self.batch_size, samples))
            for start in range(0, samples, self.batch_size)
        ]
        self._left: List[int] = []  # the numbers of the batches that are not evaluated yet
        self._round: Dict[int, int] = {}  # the batch of each rank in this round
        # The batches of this round that `gather_round` has got; None = it was not called.
        self._done: Optional[Set[int]] = None

    def __len__(self) -> int:
        """The number of rounds, as long as no worker is lost."""
        return -(-len(self._batches) // self.job.size)

    def __iter__(self) -> Iterator[Any]:
        """This worker's batch of each round, on the device; another's where it has none."""
        job = self.job
        # A worker that waits, or is released, is alone and keeps its rank.
        ranks = [job.rank] if job.size == 1 else list(range(job.size))
        # A worker that has not entered yet goes through what the others have done: one batch does.
        self._left = list(range(len(self._batches[:1] if job.outside else self._batches)))
        own: Optional[Iterator[Any]] = None  # None = what is left is to be dealt out
        with self._active():
            while self._left:
                if own is None:
                    own = iter(self._own_loader(ranks))
                self._round = dict(zip(ranks, self._left))
                self.end_of_dataloader = len(self._left) <= len(ranks)
                self._done = None
                yield self._to_device(next(own))
                dealt = set(self._round.values())
                done = dealt if self._done is None else self._done
                self._left = [batch for batch in self._left if batch not in done]
                if done != dealt:  # another worker is lost
                    ranks, own = [rank for rank in ranks if self._is_alive(rank)], None

    def without(self, rounds: int) -> "_EvalLoader":
        """A copy without the batches of the first rounds, as the workers of now have them."""
        rest = copy.copy(self)
        rest._batches = self._batches[rounds * self.job.size :]
        return rest

    def _own_loader(self, ranks: List[int]) -> "DataLoader[Any]":
        """A loader of this worker's batch of each round of what is left, with these ranks; where
        there is none for it, the first batch of the round.
        """
        place, rows = ranks.index(self.job.rank), []
        for first in range(0, len(self._left), len(ranks)):
            whole = self._left[first : first + len(ranks)]
            rows.append(self._batches[whole[place if place < len(whole) else 0]])
        return DataLoader(
            self.dataset, batch_sampler=rows, collate_fn=self.collate, **self.options
        )

    def _is_alive(self, rank: int) -> bool:
        """Whether the batch of a rank was gathered; a rank without one counts as well."""
        return rank not in self._round or self._round[rank] in (self._done or ())

    def gather_round(self, data: Any) -> List[Any]:
        """What the workers have for the batches of this round, in the order of the batches; a lost
        worker's is not there. All workers call it alike, as often as they want in a round.
        """
        found = allgather_objects(self.job, data)
        mine = {batch: found[rank] for rank, batch in self._round.items() if rank in found}
        self._done = set(mine) if self._done is None else self._done & set(mine)
        return [mine[batch] for batch in sorted(mine)]
