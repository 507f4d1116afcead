"""Batches for a training loop whose workers come and go."""

from __future__ import annotations

import bisect
import dataclasses
import itertools
import math
from time import perf_counter_ns
from typing import Any, Callable, Dict, Iterator, List, Optional, Sequence, Tuple

from torch.utils.data import DataLoader, Dataset, IterableDataset, default_collate

import shoal
from shoal._live.epochs import End
from shoal._runtime.arguments import as_batch_range, as_integer
from shoal._runtime.log import log_line
from shoal._runtime.solo import Solo
from shoal.cursor import MAX_SAMPLES, Cursor, Order, Samples, random_word
from shoal.steps import Progress

from . import averaged
from .device_memory import DeviceMemory
from .state import keep_random_state

# What a DataLoader worker is asked for: the plan that the batch belongs to, and the samples; none
# are a question without answer.
Request = Tuple[int, List[int]]
_NOTHING: Request = (-1, [])


def is_map_style(dataset: Any) -> bool:
    """Whether a dataset has samples by their numbers. An IterableDataset has none, though it has a
    `__getitem__`, which raises, and may tell a length.
    """
    numbered = hasattr(dataset, "__getitem__") and hasattr(dataset, "__len__")
    return numbered and not isinstance(dataset, IterableDataset)


def loader(
    dataset: Dataset[Any],
    global_batch: int,
    *,
    seed: int = 0,
    epochs: Optional[int] = None,
    steps: Optional[int] = None,
    statistical_epochs: Optional[int] = None,
    shuffle: bool = True,
    drop_last: bool = False,
    samples_per_epoch: Optional[int] = None,
    weights: Optional[Sequence[float]] = None,
    averages: int = 1,
    apart: bool = False,
    batch_range: Optional[Tuple[int, int]] = None,
    collate_fn: Optional[Callable[[List[Any]], Any]] = None,
    **options: Any,
) -> "Loader":
    """The batches of a training loop over a map-style dataset, `global_batch` samples a step over
    all workers. All of them call it, on the thread of the loop; it waits for the agent.

        loader = shoal.torch.loader(dataset, global_batch=128)
        for epoch in loader.epochs(10):
            for x, y in loader:
                optimizer.zero_grad()
                # shoal.torch.ddp or shoal.torch.optimizer give the mean over all workers
                F.cross_entropy(model(x), y).backward()
                optimizer.step()

    Each worker gets its part of the batch. Every sample is taken exactly once an epoch, in an order
    that `seed` decides (in the dataset's without shuffle), whatever workers join, leave or are
    lost. The loss is the mean over the batch; gradients are weighted by the number of samples. A
    worker that has no sample left at the end of an epoch gets two of others, with weight 0, so that
    the same code runs. With `drop_last` an epoch has no smaller batch at its end: it leaves out as
    many samples, with shuffle others in the next. For batch norms, which cannot compute with one
    sample, give it, or a global_batch of two or more for each worker: then a worker gets a single
    sample only where that is all that an epoch has left.

    With `samples_per_epoch` an epoch takes so many of the dataset's samples: without shuffle its
    first ones, with shuffle samples from all over it, and others in the next epoch.

    With `weights`, a number for each sample, an epoch draws as many samples as the dataset has,
    with replacement and in proportion to the weights, as torch's WeightedRandomSampler does. The
    draws follow from `seed`, and are the same for any number of workers.

    A loop over the loader is one epoch: the n-th ends with the n-th epoch of the job, wherever that
    is when it begins. `for epoch in range(10)` works as the outer loop too. But a worker that joins
    then goes through the epochs that the job has done already without a step, as a job of one that
    is not rank 0: what the outer loop does after each, an evaluation say, takes its time, and what
    it changes is replaced when the worker enters. loader.epochs leaves them out. A worker that is
    released has no step any more: the loop ends early, job.released tells, and with the next one
    its program ends. With `epochs`, `steps` or `statistical_epochs` (see batch_range) one loop goes
    over all of them, or as many steps of the job.

    A step takes one average. To accumulate gradients, cut its batch, `for part, rest in
    zip(x.chunk(4), y.chunk(4))`, with all backward passes but the last under the model's
    `no_sync()`. Models with losses of their own, as in a GAN, take one each with `averages=2`: the
    first backward pass averages the one, the last one averages the other and commits the step. (A
    pass through a model that is not trained in it goes through `model.module`, which averages
    nothing. What a worker had that is lost between the two counts again for the first.) A batch
    that one worker must leave out, because its loss is not finite, is for `loader.step.skip`.

    The samples of a lost worker come first in the batch after. With `apart` they are a batch of
    their own, so that all others are those of a training without a loss: while
    `loader.place.left` is not empty after the average, the update lacks samples, and the next
    batch has them. Who adds up the gradients of both, by their numbers of samples, and only then
    calls optimizer.step(), makes the same updates as without the loss; the adapters for trainers
    do.

    With `batch_range=(64, 1024)` the number of samples of a step may become another one in that
    range while the job trains, between two steps and on all workers at once, as by `shoal set JOB
    batch=512`. The learning rate follows if the optimizer is made by shoal.torch.optimizer, which
    says how. What counts steps sees others then, such as len(loader); a schedule that is stepped in
    the loop is for `shoal.torch.schedule`. A sample of a larger batch brings less, so a training of
    as many epochs learns less: with `statistical_epochs=10`, or `loader.epochs(10,
    statistical=True)`, it ends when its samples are worth 10 epochs of global_batch, by the noise
    of the gradients, as job.statistical_epochs says. With a batch that stays these are epochs.
    `drop_last` leaves out what global_batch does not divide, whatever the batch is, so that
    all epochs are as long: the last batch of one may then be smaller. A program that goes on from a
    checkpoint does so with the batch that this has. Without a range the batch never changes, nor
    does it in a process that `shoal run` has not started.

    Make it before shoal.torch.ddp and shoal.torch.optimizer, with the same arguments on every
    worker. A worker that joins gets what they manage, and the schedulers, the GradScaler and other
    optimizers of that, made after `import shoal.torch` and before the loop; anything else that the
    loop changes is for `job.register`. `loader.step` tells the epoch, the step and the weight.
    `options` go to torch's DataLoader (num_workers, worker_init_fn, prefetch_factor, …); its
    workers start with each loop, or once with persistent_workers.

    Raises TypeError for a dataset that is not map-style and for other arguments that mean nothing,
    ValueError for numbers that cannot be, and where the job trains on another data set already, and
    RuntimeError where shoal.torch.ddp was called before.
    """
    for name in ("batch_size", "sampler", "batch_sampler"):
        if name in options:
            raise TypeError(
                f"{name} is not for shoal.torch.loader, which cuts the batches itself: global_batch"
                " says how large they are, and weights=… draws samples as a WeightedRandomSampler"
                " does"
            )
    if not options.get("in_order", True):
        raise ValueError(
            "in_order=False would give a step the batch of another one, and this worker other"
            " samples than those that are counted: leave it out"
        )
    if not is_map_style(dataset):
        raise TypeError(
            f"dataset is {type(dataset).__name__}: shoal.torch.loader takes a map-style one, of"
            " which dataset[i] and len(dataset) are asked, since every sample is dealt out by its"
            " number. Of a DataLoader give the dataset; a stream has to become one first"
        )
    global_batch = as_integer(
        "global_batch",
        global_batch,
        1,
        "how many samples a step takes over all workers, an integer from 1 to 2**62",
        MAX_SAMPLES,
    )
    allowed = as_batch_range(batch_range, global_batch, "global_batch", MAX_SAMPLES)
    averages = as_integer("averages", averages, 1, "how many averages a step takes, an integer")
    job = shoal.join()
    if averaged.of(job).rigid:
        raise RuntimeError(
            "shoal.torch.ddp was called before shoal.torch.loader: make the loader first, or the"
            " model cannot lose a worker"
        )
    samples = len(dataset)  # type: ignore[arg-type]
    if not samples:
        raise ValueError("the dataset is empty: shoal.torch.loader takes one of 1 sample or more")
    taken = samples
    if samples_per_epoch is not None:
        what = f"how many samples an epoch takes, an integer from 1 to the {samples} there are"
        taken = as_integer("samples_per_epoch", samples_per_epoch, 1, what, samples)
    if drop_last:
        taken -= taken % global_batch
    if not taken:
        raise ValueError(
            f"with drop_last no batch is left: an epoch has {samples_per_epoch or samples} samples,"
            f" fewer than global_batch={global_batch}"
        )
    progress = job.place(taken, global_batch, seed, shuffle, apart, allowed)
    progress.averages = averages
    draws = None if weights is None else _WeightedDraws(weights, samples, seed)
    keep_random_state(job)
    return Loader(
        job,
        progress,
        dataset,
        End(epochs, steps, statistical_epochs),
        collate_fn or default_collate,
        samples - taken if shuffle else 0,
        draws,
        options,
    )


class Loader:
    """An iterable of batches; see `loader`. Only the thread of the training loop uses it; between
    two steps, at the start of `epochs`, and in `enter`, it may wait for the other workers.
    """

    def __init__(
        self,
        job: "shoal.Job",
        progress: Progress,
        dataset: Dataset[Any],
        end: End,
        collate: Callable[[List[Any]], Any],
        epoch_shift: int,
        draws: "Optional[_WeightedDraws]",
        options: Any,
    ):
        """Deal out batches of `dataset`; `options` go to the DataLoader. `epoch_shift` is how many
        samples further on each epoch begins than the one before, and `draws` has those that weights
        draw; None = every sample once.
        """
        self._job = job
        self._progress = progress
        self._end = end
        self._memory = DeviceMemory(job, progress)
        # Batches that were begun to load before the first step of a loop; None = none.
        self._arriving: Optional[Iterator[Any]] = None
        self._orders = _BatchOrders(progress, end, epoch_shift, draws)
        batches = _Batches(dataset, collate)
        self._batches: DataLoader[Any] = DataLoader(
            batches, batch_size=None, sampler=self._orders, collate_fn=_keep_collated, **options
        )  # type: ignore[arg-type]

    @property
    def step(self) -> "shoal.Step":
        """The step under way. Raises ShoalError outside of the loop."""
        if self._job.step is None:
            raise shoal.ShoalError(
                "no step is under way: loader.step is for the body of a loop over the loader"
            )
        return self._job.step

    @property
    def epoch(self) -> int:
        """How many epochs are committed: the number of the epoch that the next step is in."""
        return self._progress.place.epoch

    def __len__(self) -> int:
        """The number of steps of a loop from the beginning to the end, as long as no worker is
        lost and the batch is that of now.
        """
        return self._end.loop_step_count(self._progress.cursor, self._progress.efficiency)

    def epochs(self, count: int, statistical: bool = False) -> Iterator[int]:
        """The epochs of a training of `count` epochs, each with one loop over the loader in it.

            for epoch in loader.epochs(10):
                for x, y in loader: ...
                schedule.step()

        As `range(10)`, but a worker that joins begins with the epoch that the job is in, and so
        does a program that goes on from a checkpoint; the last checkpoint comes after the last
        epoch; and it ends early where the job goes on without this worker. With `statistical` there
        are as many epochs as it takes until the training is worth `count` of them at the stated
        batch, and the last loop may end before its epoch does. Raises ShoalError when all of them
        are over already.
        """
        if not self._end.each_loop_is_epoch:
            raise ValueError(
                "this loader has epochs or steps of its own, for one loop over all of them: give"
                " them to loader.epochs only"
            )
        count = as_integer("epochs", count, 0, "how many epochs the whole training has, an integer")
        if not self._progress.begun:  # else the loop does so, once the one before has ended
            self._start_loading()
        return self._progress.epoch_loops(count, self._end, statistical)

    def _start_loading(self) -> Iterator[Any]:
        """Have the DataLoader begin to load, and return its batches. Before the worker joins, so
        that the loader's processes are there before the others wait for it.
        """
        if self._arriving is None:
            self._arriving = iter(self._batches)
        return self._arriving

    def enter(self, place: Optional[Cursor] = None) -> bool:
        """Enter the job before the loop over the batches, for trainers that ask where it is first:
        after it, registered state is that of the other workers or of a checkpoint of the job. Is
        called once, before the first step, and waits for the other workers.

        `place` is where a job begins that has made no step, and no checkpoint to go on from; a
        worker that joins a running job goes on where that is. Returns False where the job goes on
        without this worker.
        """
        if place is not None and not self._job.outside:
            self._progress.move_to(place)
        self._start_loading()  # before the others wait for this worker
        return self._progress.catch_up()

    def _warn_of_fixed_rate(self) -> None:
        """Say once in a job whose batch may change that no learning rate follows it, on rank 0."""
        progress, job = self._progress, self._job
        if progress.rate_decided or progress.batch_range is None:
            return
        progress.rate_decided = True
        if job.rank == 0 and not isinstance(job._backend, Solo):
            log_line(
                "the batch of this job may change, and no learning rate follows it: make the"
                " optimizer by shoal.torch.optimizer(optimizer), also where shoal.torch.ddp"
                ' averages; lr_scaling="none" leaves its rate alone'
            )

    def finish(self) -> None:
        """Let the loop end with the step under way, and the round that it belongs to, as if that
        were the last of all. Does not wait: the loop ends when it is asked for the next batch.
        """
        self._end.epochs = 0

    @property
    def place(self) -> Cursor:
        """The place in the data after the last committed step."""
        return self._progress.place

    def __iter__(self) -> Iterator[Any]:
        """The batches of one loop. A step is opened for each before it is given out, and must be
        committed before the next is asked for.
        """
        progress = self._progress
        progress.begin_loop(self._end)
        arriving = self._start_loading()
        opened: "Optional[shoal.Step]" = None  # the step that this loop has opened last
        while True:
            step = progress.step
            if step is not None and step is not opened and not step.committed:
                raise shoal.ShoalError(
                    "another loop over a loader of this job is under way, as in zip(loader, other),"
                    " and a step has one batch. Of two datasets make one, whose items have those of"
                    " both, or loop over the other by a torch DataLoader"
                )
            if progress.finish_step(self._end):
                break
            self._arriving = None
            asked = perf_counter_ns()
            # What was loaded for members that are no more is thrown away.
            batch = next(batch for plan, batch in arriving if plan == progress.lookahead.plan)
            progress.step_timer.add_data_wait(asked)
            opened = progress.open_step()
            self._orders.name_samples(opened)
            self._warn_of_fixed_rate()
            self._memory.begin_step()
            yield batch
        if progress.begun:  # the others begin to load anew too, which draws a random number
            self._arriving = None


class _BatchOrders:
    """What the DataLoader asks its workers for, without end: the batches of the plan that holds
    when it asks, which it does on the thread of the training loop. A plan is the number of times
    that the members, and so the samples of each, have become others.

    The samples are `epoch_shift` further on in each epoch, so that those that an epoch leaves out
    are not always the same. Where that is a batch or more (the least one that the job may have),
    they are further on in a random order of all samples: in the dataset's own, which may be sorted,
    an epoch would have some classes alone.
    """

    def __init__(
        self, progress: Progress, end: End, epoch_shift: int, draws: "Optional[_WeightedDraws]"
    ):
        """The orders of a job's place in its data."""
        self._progress = progress
        self._draws = draws  # what stands at the place of a sample; None = the sample itself
        self._end = end
        self._epoch_shift = epoch_shift
        # The order of all samples, in which those of an epoch are neighbours; None = the dataset's.
        self._whole: Optional[Order] = None
        stated = progress.stated_start
        # Also where another program goes on with another batch of the range.
        least = stated.batch if progress.batch_range is None else progress.batch_range[0]
        if epoch_shift >= least:
            self._whole = dataclasses.replace(stated, samples=stated.samples + epoch_shift).order()
        # The samples of orders of this plan whose steps were not made yet, by epoch and places.
        self._drawn: Dict[Tuple[int, Tuple[int, ...]], List[int]] = {}

    def __iter__(self) -> Iterator[Request]:
        """The orders, without end: drawn from the job's place in the data when the DataLoader
        asks.
        """
        progress, plan, asked = self._progress, -1, 0
        lookahead = progress.lookahead
        while True:
            if plan != lookahead.plan:
                plan, asked = lookahead.plan, 0
                self._drawn.clear()
            ahead = asked - lookahead.opened_count
            part = None if progress.job.outside else progress.batch_ahead(ahead)
            # A round that was begun is made to its end, where the loop is to end with it.
            if part is None or (part.local_index == 0 and self._end.excludes_epoch(part.epoch)):
                yield _NOTHING
            else:
                asked += 1
                samples = self._samples_at(part.epoch, part.indices)
                if self._differ:
                    self._drawn[part.epoch, tuple(part.indices)] = samples
                yield plan, samples

    def name_samples(self, step: "shoal.Step") -> None:
        """Set the indices of a step to the samples of the dataset that its batch has."""
        if self._differ:
            samples = self._drawn.pop((step.epoch, tuple(step.indices)), None)
            if samples is None:
                samples = self._samples_at(step.epoch, step.indices)
            step.indices = step.indices.copy()
            step.indices[:] = samples

    @property
    def _differ(self) -> bool:
        """Whether samples are others than their places."""
        return self._epoch_shift > 0 or self._draws is not None

    def _samples_at(self, epoch: int, places: Samples) -> List[int]:
        """The samples of the dataset at these places of an epoch."""
        whole = self._progress.cursor.samples + self._epoch_shift
        samples = [(int(i) + epoch * self._epoch_shift) % whole for i in places]
        if self._whole is not None:
            samples = [int(i) for i in self._whole.take((i, i + 1) for i in samples)]
        if self._draws is not None:
            samples = [self._draws.at(epoch, i) for i in samples]
        return samples


class _WeightedDraws:
    """Samples drawn with replacement, in proportion to weights: which one stands at a place of an
    epoch. It is not changed after `__init__`.
    """

    def __init__(self, weights: Sequence[float], samples: int, seed: int):
        """Draws by `weights`, one for each of so many samples. Raises ValueError for others."""
        numbers = [float(w) for w in weights]
        if len(numbers) != samples:
            raise ValueError(
                f"{len(numbers)} weights for {samples} samples: give one for each sample"
            )
        self._seed = seed
        self._sums = list(itertools.accumulate(numbers))  # of the weights up to each sample
        if not all(w >= 0 for w in numbers) or not 0 < self._sums[-1] < math.inf:
            raise ValueError("weights are finite numbers from 0 on, and not all of them 0")
        self._last = max(i for i, w in enumerate(numbers) if w)  # the last that can be drawn

    def at(self, epoch: int, place: int) -> int:
        """The sample at a place of an epoch."""
        drawn = random_word(self._seed, epoch, place) / 2**64 * self._sums[-1]
        # Rounding may give the whole sum, after which is nothing.
        return min(bisect.bisect_right(self._sums, drawn), self._last)


class _Batches(Dataset):  # type: ignore[type-arg]
    """The dataset by batches: what the DataLoader and its worker processes index."""

    def __init__(self, dataset: Any, collate: Callable[[List[Any]], Any]):
        """The batches of `dataset`, collated by `collate`."""
        self._dataset = dataset
        self._collate = collate

    def __getitem__(self, order: Request) -> Tuple[int, Any]:
        """The batch of an order, collated (None where it asks for no samples), and the plan that it
        belongs to. It runs in the DataLoader's worker processes, or where there are none on the
        thread of the training loop.
        """
        plan, indices = order
        if not indices:
            return plan, None
        if hasattr(self._dataset, "__getitems__"):
            return plan, self._collate(self._dataset.__getitems__(indices))
        return plan, self._collate([self._dataset[i] for i in indices])


def _keep_collated(found: Any) -> Any:
    """The item of `_Batches` itself: its batch is collated already."""
    return found
