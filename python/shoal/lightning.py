"""A strategy with which the Trainer of Lightning trains on workers that come and go.

    trainer = lightning.Trainer(strategy=shoal.lightning.Strategy(), ...)    # the one changed line

Started by `shoal run`, workers may be lost, join and be released while it trains; without the
launcher it is a strategy for a single device. docs/guide/trainers.md says what is supported.

The batch size of the training's DataLoader, times `accumulate_grad_batches`, is the batch of a step
over all workers.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import Any, Callable, Dict, Iterator, List, NamedTuple, Optional

import torch
from lightning.fabric.utilities.rank_zero import rank_zero_only as fabric_rank_zero
from lightning.pytorch.callbacks import ModelCheckpoint, ProgressBar
from lightning.pytorch.strategies import SingleDeviceStrategy
from lightning.pytorch.strategies.ddp import _DDPForwardRedirection
from lightning.pytorch.trainer import call
from lightning.pytorch.trainer.states import TrainerFn
from lightning.pytorch.utilities.rank_zero import rank_zero_only
from torch.utils.data import DataLoader, RandomSampler

import shoal
import shoal.torch
from shoal._trainers import process
from shoal._trainers.batches import (
    FOREVER,
    Part,
    batches_in_epoch,
    cut_evenly,
    worker_options,
)
from shoal._trainers.checkpoints import write_once
from shoal._live.object_collectives import pack, allgather_objects, unpack
from shoal._trainers.update import Update
from shoal._trainers.validation import NUMBERS, Validation, can_be_dealt
from shoal.cursor import Cursor

__all__ = ["Strategy"]

_PLACE = "shoal-place"  # the place in the data, in a checkpoint of Lightning
_LOGGED = "shoal-logged"  # what was logged in the epoch so far, in the same


class _Logged(NamedTuple):
    """What was logged in a step that is not committed yet."""

    name: str  # what `self.log` was given
    how: str  # how the values of the workers are put together: sum, min or max
    shared: Any  # the handle of the call that does
    finish: Callable[[Any], None]  # logs the result of that call


class Strategy(SingleDeviceStrategy):
    """Trains on the workers of a job. `options` go to shoal.torch.ddp. The thread of the training
    loop calls the methods; `setup`, `broadcast`, `save_checkpoint`, `on_train_end` and what makes
    the backward pass that ends a step wait for the other workers.
    """

    strategy_name = "shoal"

    def __init__(self, device: Any = None, **options: Any):
        """Join the job, if a launcher of shoal has started this process."""
        self._job: Optional["shoal.Job"] = None  # None = without the launcher
        if process.is_launched():
            process.select_device()
            self._job = shoal.join()
        if device is None:
            device = "cuda:0" if torch.cuda.is_available() else "cpu"
        super().__init__(device)
        self._options = options
        self._train: Optional[_TrainLoader] = None  # None = no training has begun
        self._fitting = False  # the loader of the training is asked for
        self._place: Optional[Cursor] = None  # of the checkpoint that is loaded; None = none is
        self._received: Optional[Dict[str, Any]] = None  # the state of the others; None = taken
        self._over = False  # the training loop has ended
        # What was logged before, in the epoch in which this worker joined or resumed, by name.
        self._logged: Dict[str, Any] = {}
        self._waiting: List[_Logged] = []  # what was logged in the step under way
        # What was logged in the steps before of the update under way, over all workers, by name.
        self._found: Dict[str, torch.Tensor] = {}
        self._finish: Dict[str, Callable[[Any], None]] = {}  # what logs these, by name
        # The others' count of steps for loggers; None = taken over, or there was none.
        self._stepped: Optional[int] = None
        self._update: Optional[Update] = None  # None = before the training
        self._validations: List[Validation] = []  # those that are dealt out
        if self._job is not None:
            self._forward_redirection = _DDPForwardRedirection()
            self._adopt_rank()

    @property
    def is_global_zero(self) -> bool:
        """Whether this worker writes and prints."""
        return self._job is None or self._job.rank == 0

    def _adopt_rank(self) -> None:
        """Take over what a new generation changes: the rank, and with it which worker writes and
        shows the progress bar.
        """
        assert self._job is not None
        before, rank = self.global_rank, self._job.rank
        self.global_rank = self.local_rank = rank
        rank_zero_only.rank = fabric_rank_zero.rank = rank
        trainer = getattr(self, "_trainer", None)
        if rank or not before or trainer is None:
            return
        for callback in trainer.callbacks:
            if isinstance(callback, ProgressBar):
                callback.enable()
                callback.on_train_start(trainer, trainer.lightning_module)
                callback.on_train_epoch_start(trainer, trainer.lightning_module)

    # Setting up

    def setup(self, trainer: Any) -> None:
        """As Lightning's own, then enter the job: a worker that joins has the state behind it."""
        if self._job is None or trainer.state.fn != TrainerFn.FITTING:
            return super().setup(trainer)
        if self._train is not None:
            raise RuntimeError(
                "fit() was called a second time, and a job of shoal trains once: give the one"
                " training all of its epochs, or start another job"
            )
        self._trainer = trainer
        self._fitting = True
        trainer.fit_loop.setup_data()
        self._fitting = False
        if self._train is None:
            raise TypeError("the training has no DataLoader, which shoal could deal out")
        if 0 < trainer.estimated_stepping_batches < float("inf"):
            shoal.goal(steps=trainer.estimated_stepping_batches)
        super().setup(trainer)
        trainer.fit_loop.epoch_loop._results.log = self._wrap_log(
            trainer.fit_loop.epoch_loop._results.log
        )
        self._enter(trainer)

    def _setup_model(self, model: Any) -> Any:
        """The model, under shoal.torch.ddp where it is trained."""
        if self._job is None or self._train is None:
            return model
        return shoal.torch.ddp(model, **self._options)

    def process_dataloader(self, dataloader: Any) -> Any:
        """The batches of the training, dealt out over the workers; a loader of an evaluation is
        returned as it is.
        """
        if self._job is None or not isinstance(dataloader, DataLoader):
            return dataloader
        if self._fitting:
            trainer = self._trainer
            self._train = _TrainLoader(self, dataloader, trainer.accumulate_grad_batches)
            return self._train
        if self._train is None or not can_be_dealt(self._trainer, dataloader):
            return dataloader
        number = len(self._validations)
        validation = Validation(self._job, self._trainer, dataloader, number)
        self._validations.append(validation)
        return validation

    def _enter(self, trainer: Any) -> None:
        """Enter the job, for which it waits, and take over the state of the others where this
        worker joins. Ends the program where the job goes on without it.
        """
        job, train = self._job, self._train
        assert job is not None and train is not None
        self._update = Update(job)
        self._update.register()
        job.register("lightning", self._state_for_joiners, self._keep_received, alike=False)
        if not train.loader.enter(self._place):
            raise SystemExit(0)
        self._adopt_rank()
        if self._received is None:
            return
        received, self._received = self._received, None
        connector = trainer._checkpoint_connector
        checkpoint = connector.dump_checkpoint(False)
        checkpoint["loops"] = unpack(received["loops"])
        checkpoint["callbacks"] = callbacks = unpack(received["callbacks"])
        for callback in trainer.callbacks:
            if isinstance(callback, ModelCheckpoint) and callback.state_key in callbacks:
                callback.dirpath = callbacks[callback.state_key]["dirpath"]
        connector._loaded_checkpoint = checkpoint
        connector.restore_callbacks()
        self._stepped, self._logged = received["stepped"], unpack(received["logged"])
        self._found = unpack(received["found"])
        trainer.should_stop = trainer.should_stop or received["over"]

    def _state_for_joiners(self) -> Dict[str, Any]:
        """What workers that join get of this one, between two steps."""
        trainer = self._trainer
        return {
            "loops": pack(trainer._checkpoint_connector._get_loops_state_dict()),
            "callbacks": pack(call._call_callbacks_state_dict(trainer)),
            "logged": pack(_epoch_values(trainer.fit_loop.epoch_loop._results)),
            "found": pack(self._found),
            "stepped": trainer.fit_loop.epoch_loop._batches_that_stepped,
            "over": self._over,
        }

    def _keep_received(self, value: Dict[str, Any]) -> None:
        """Keep the state of the others, which `_enter` takes over."""
        self._received = value

    # Training

    def training_step(self, *arguments: Any, **options: Any) -> Any:
        """As Lightning's own. Gradients are averaged in the last batch of a step of the job."""
        if self._train is not None:
            update = self._update
            self.model.require_backward_grad_sync = self._train.last and update.averages
        return super().training_step(*arguments, **options)

    def validation_step(self, *arguments: Any, **options: Any) -> Any:
        """As Lightning's own; where the batches are dealt out, for one of which these are the
        numbers of the samples, what is logged is that of the worker that has evaluated it.
        """
        run, batch = super().validation_step, arguments[0]
        if not isinstance(batch, dict) or set(batch) != NUMBERS:
            return run(*arguments, **options)
        return self._validations[int(batch["loader"])].step(batch["samples"], run)

    def backward(self, closure_loss: Any, *arguments: Any, **options: Any) -> Any:
        """As Lightning's own, with the loss weighted by the samples of this worker."""
        train, update = self._train, self._update
        if train is None or update is None or self._job.step is None:  # type: ignore[union-attr]
            return super().backward(closure_loss, *arguments, **options)
        if train.first:
            update.begin()
        update.add_loss(float(closure_loss.detach()) * train.share)
        if train.last:
            update.begin_sums(0.0, 0.0)
        result = super().backward(closure_loss * train.share, *arguments, **options)
        if train.last:
            update.commit_alone()
            update.end(train.part, self._parameters())
            self._log_pending(whole=not self._has_lost_samples())
        return result

    def _has_lost_samples(self) -> bool:
        """Whether a lost worker has left samples of this update, whose step is committed."""
        assert self._train is not None
        return bool(self._train.loader.place.left)

    def _log_pending(self, whole: bool) -> None:
        """Put together what the batches of this update have, once the values of all workers are
        there, for which it waits; those of one name as one value, which so does not depend on how
        the samples are cut. Log it where the update is `whole`.
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

    def _parameters(self) -> List[Any]:
        """The parameters that are trained."""
        return [p for p in self.model.parameters() if p.requires_grad]

    def optimizer_step(
        self, optimizer: Any, closure: Callable[[], Any], model: Any = None, **options: Any
    ) -> Any:
        """As Lightning's own, with the samples of the update that a lost worker has left."""
        if self._train is not None:
            closure = self._closure_over_steps(optimizer, closure)
        return super().optimizer_step(optimizer, closure, model, **options)

    def _closure_over_steps(self, optimizer: Any, closure: Callable[[], Any]) -> Callable[[], Any]:
        """The closure of an optimizer's step, and after it the steps that are left of the
        update.
        """

        def run() -> Any:
            """Call the closure, go through the batches of the steps that are left of the update,
            and return what the closure did.
            """
            result = closure()
            train, loop = self._train, self._trainer.fit_loop
            assert train is not None and self._update is not None
            while self._has_lost_samples():
                self._update.stash(self._parameters())
                more = False
                for batch in train.rest():
                    more = True
                    batch = self.batch_to_device(batch)
                    index = loop.epoch_loop.batch_idx
                    given = loop.epoch_loop._build_kwargs(OrderedDict(), batch, index)
                    automatic = loop.epoch_loop.automatic_optimization
                    step = automatic._make_step_fn(given)()
                    automatic._make_backward_fn(optimizer)(step.closure_loss)
                if not more:
                    raise SystemExit(0)  # the job was stopped; its checkpoint has the gradients
            return result

        return run

    def _wrap_log(self, log: Callable[..., Any]) -> Callable[..., Any]:
        """`log` in the place of Lightning's own, which is given: values of a training step are
        those over all workers, and are logged when the step is committed.
        """

        def everywhere(fx: str, name: str, value: Any, *others: Any, **options: Any) -> Any:
            """Log a value of this worker; in a training step of the job, begin the call that
            combines those of all workers, and keep it for `_log_pending`.
            """
            step, train = self._job.step, self._train  # type: ignore[union-attr]
            if fx != "training_step" or step is None or step.committed or train is None:
                return log(fx, name, value, *others, **options)
            if not torch.is_tensor(value):
                return log(fx, name, value, *others, **options)
            how = options.get("reduce_fx", "mean")
            how = how if isinstance(how, str) else how.__name__
            mine, mean = value.detach().double().reshape(-1).cpu(), how in ("mean", "avg")
            if mean:
                sums = torch.zeros(mine.numel() + 1, dtype=torch.float64)
                if train.weight:
                    sums[:-1], sums[-1] = mine * train.weight, train.weight
                mine = sums
            # A part of the step: a worker that is lost has its samples neither here nor there.
            shared = step.share(mine, last=False, op="sum" if mean else how)

            def finish(sums: torch.Tensor) -> None:
                """Log the value over all workers: `sums` is what the call has combined, for a mean
                with the number of samples at its end.
                """
                if mean:
                    options["batch_size"] = int(sums[-1])
                    sums = sums[:-1] / sums[-1]
                new = sums.to(value.device, value.dtype).reshape(value.shape)
                log(fx, name, new, *others, **options)
                before = self._logged.pop(f"{fx}.{name}", None)
                if before is not None:
                    results = self._trainer.fit_loop.epoch_loop._results
                    _restore_metric(results[f"{fx}.{name}"], before)

            self._waiting.append(_Logged(name, "sum" if mean else how, shared, finish))
            return None

        return everywhere

    def on_train_end(self) -> None:
        """As Lightning's own, then end the loop over the steps of the job: the last one is made."""
        super().on_train_end()
        if self._train is not None:
            self._over = True
            self._train.close()
            self._adopt_rank()

    # What the workers tell each other

    def broadcast(self, obj: Any, src: int = 0) -> Any:
        """What the lowest rank that is not lost has, whatever `src` is. Without a job, and in a
        training without a step under way, this worker's own `obj`.
        """
        job = self._job
        if job is None or self._train is not None and job.step is None:
            return obj
        return next(iter(allgather_objects(job, obj).values()))

    # Checkpoints of Lightning

    def save_checkpoint(self, checkpoint: Any, filepath: Any, storage_options: Any = None) -> None:
        """As Lightning's own, with the place in the data; another worker writes where rank 0 is
        lost meanwhile.
        """
        job = self._job
        if job is None or self._train is None:
            return super().save_checkpoint(checkpoint, filepath, storage_options)
        checkpoint[_PLACE] = self._train.loader.place.pack().hex()
        checkpoint[_LOGGED] = pack(_epoch_values(self._trainer.fit_loop.epoch_loop._results))
        save = super().save_checkpoint
        write_once(job, lambda: save(checkpoint, filepath, storage_options))

    def load_checkpoint(self, checkpoint_path: Any, *others: Any, **options: Any) -> Any:
        """As Lightning's own, and keep the place in the data, from which `setup` begins."""
        checkpoint = super().load_checkpoint(checkpoint_path, *others, **options)
        if self._job is not None and _PLACE in checkpoint:
            self._place = Cursor.unpack(bytes.fromhex(checkpoint[_PLACE]))
            if _LOGGED in checkpoint:  # not in checkpoints of earlier versions
                self._logged = unpack(checkpoint[_LOGGED])
        return checkpoint


class _TrainLoader:
    """The batches of the training, dealt out over the workers. Only the thread of the training loop
    uses it; the next step may wait for the other workers.
    """

    def __init__(self, strategy: Strategy, dataloader: Any, each: int):
        """Deal out the samples of `dataloader`, `each` batches a step."""
        options = worker_options(dataloader)
        self.dataset, self.batch_size = dataloader.dataset, dataloader.batch_size
        self._strategy, self._collate = strategy, dataloader.collate_fn
        self._count = batches_in_epoch(dataloader, dataloader.batch_size, each)
        self.loader = shoal.torch.loader(
            dataloader.dataset,
            dataloader.batch_size * each,
            seed=torch.initial_seed() % (1 << 63),
            epochs=FOREVER,
            shuffle=type(dataloader.sampler) is RandomSampler,
            drop_last=dataloader.drop_last,
            apart=True,
            collate_fn=list,
            **options,
        )
        self._steps = iter(self.loader)
        self._batches: Iterator[Any] = self._all_batches()
        self.part = Part([])  # Update wants one; this has no samples
        # Of the batch given out: what its loss is multiplied by, and how many samples of it count.
        self.share, self.weight = 1.0, 0
        self.first = self.last = True  # the batch is the first, or the last, of its step

    def __len__(self) -> int:
        """The number of batches in an epoch."""
        return self._count

    def __iter__(self) -> Iterator[Any]:
        """The batches that follow, over all epochs: always the same iterator."""
        return self._batches

    def rest(self) -> Iterator[Any]:
        """The batches of one step more, for samples of a lost worker; none where the job was
        stopped.
        """
        for batch in self._batches:
            yield batch
            if self.last:
                return

    def close(self) -> None:
        """End the loop over the steps of the job, whose last step is committed."""
        self.loader.finish()
        next(self._steps, None)

    def _all_batches(self) -> Iterator[Any]:
        """The batches of all steps of the job; ends the program of a released worker."""
        strategy = self._strategy
        for samples in self._steps:
            strategy._adopt_rank()
            if strategy._stepped is not None:
                loop = strategy._trainer.fit_loop.epoch_loop
                loop._batches_that_stepped, strategy._stepped = strategy._stepped, None
            step = self.loader.step
            count = -(-step.count // self.batch_size)
            # Lightning divides by the number of batches that it accumulates.
            whole = -(-(step.count + strategy._update.weight) // self.batch_size)
            for i, cut in enumerate(cut_evenly(samples, count, self.batch_size)):
                self.weight = len(cut) if step.weight else 0
                self.share = len(cut) / len(samples) * whole
                self.first, self.last = i == 0, i == count - 1
                yield self._collate(cut or samples[:2])
        if not strategy._job.first:  # type: ignore[union-attr]
            raise SystemExit(0)  # the others go on without this worker
        strategy._trainer.should_stop = True


def _combine(how: str, one: torch.Tensor, other: torch.Tensor) -> torch.Tensor:
    """Two values of several workers as one, by `how`: sum, max or min."""
    if how == "sum":
        return one + other
    return torch.maximum(one, other) if how == "max" else torch.minimum(one, other)


def _epoch_values(results: Any) -> Dict[str, Any]:
    """What was logged so far for a value over the whole epoch, by the key of Lightning's results:
    the value, and the number of samples in it, None where it has none.
    """
    return {
        key: [metric.value, getattr(metric, "cumulated_batch_size", None)]
        for key, metric in results.items()
        if metric.is_tensor and metric.meta.on_epoch
    }


def _restore_metric(metric: Any, before: List[Any]) -> None:
    """Add to a metric of Lightning what was logged in the epoch before this worker joined or
    resumed: a value as `_epoch_values` gives it.
    """
    value, size = before
    if metric.meta.is_max_reduction or metric.meta.is_min_reduction:
        metric.value = metric.meta.reduce_fx(torch.stack([metric.value, value.to(metric.value)]))
    else:
        metric.value = metric.value + value.to(metric.value)
    if size is not None:
        metric.cumulated_batch_size = metric.cumulated_batch_size + size


# self.log of a compiled module, and what it is averaged by, talk to the agent.
shoal.torch.untraced.skip_package(__name__)
shoal.torch.untraced.skip_package("shoal.steps")
shoal.torch.untraced.skip_package("shoal._live.step")
