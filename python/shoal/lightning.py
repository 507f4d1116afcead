"""A strategy with which the Trainer of Lightning trains on workers that come and go.

    trainer = lightning.Trainer(strategy=shoal.lightning.Strategy(), ...)    # the one changed line

Started by `shoal run`, workers may be lost, join and be released while it trains; without the
launcher it is a strategy for a single device. docs/guide/trainers.md says what is supported.

The batch size of the training's DataLoader, times `accumulate_grad_batches`, is the batch of a step
over all workers.
"""

from __future__ import annotations

import contextlib
from collections import OrderedDict
from typing import Any, Callable, Dict, Iterator, List, Optional

import torch
from lightning.fabric.utilities.rank_zero import rank_zero_only as fabric_rank_zero
from lightning.pytorch.callbacks import ModelCheckpoint, ProgressBar
from lightning.pytorch.strategies import SingleDeviceStrategy
from lightning.pytorch.strategies.ddp import _DDPForwardRedirection
from lightning.pytorch.trainer import call
from lightning.pytorch.trainer.states import TrainerFn
from lightning.pytorch.utilities.model_helpers import is_overridden
from lightning.pytorch.utilities.rank_zero import rank_zero_only
from torch.utils.data import DataLoader, RandomSampler

import shoal
import shoal.torch
from shoal._trainers import process
from shoal._trainers.batches import (
    FOREVER,
    check_dealable,
    cut_evenly,
    samples_to_train,
    worker_options,
)
from shoal._trainers.checkpoints import tell_that_it_is_over, write_once
from shoal._trainers.logged import Logged
from shoal._trainers.metrics import metrics_alone
from shoal._trainers.refused import check_trainer
from shoal._trainers.saved import Saved, leave_out_schedulers
from shoal._live.object_collectives import pack, allgather_objects, unpack
from shoal._trainers.update import Update
from shoal._trainers.validation import NUMBERS, Validation, can_be_dealt, timed_together
from shoal._trainers.wishes import is_of_user, unite_wishes
from shoal.cursor import Cursor

__all__ = ["Strategy"]

_PLACE = "shoal-place"  # the place in the data, in a checkpoint of Lightning
_LOGGED = "shoal-logged"  # what was logged in the epoch so far, in the same
# Methods that Lightning calls between the last backward pass of a step and its end: of a callback
# or a module, and of a module alone.
_LATE = ("on_after_backward", "on_before_optimizer_step", "on_train_batch_end")
_LATE_OF_MODULE = ("optimizer_step", "configure_gradient_clipping", "lr_scheduler_step")


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
        self._stops = False  # should_stop was set in a batch of the step under way
        self._stops_late = False  # code of the user may set should_stop after the backward pass
        self._logged: Any = None  # a Logged; None = without the launcher
        # The others' count of steps for loggers; None = taken over, or there was none.
        self._stepped: Optional[int] = None
        self._update: Optional[Update] = None  # None = before the training
        self._saved: Any = None  # a Saved; None = before the training
        self._validations: List[Validation] = []  # those that are dealt out
        self._alone = contextlib.ExitStack()  # what an evaluation has set, to be set back
        if self._job is not None:
            self._logged = Logged(self._job)
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
        """As Lightning's own, then enter the job: a worker that joins has the state after it."""
        if self._job is None or trainer.state.fn != TrainerFn.FITTING:
            return super().setup(trainer)
        check_trainer(trainer)
        process.check_first(self._job, "lightning", "fit()")
        self._trainer = trainer
        self._fitting = True
        trainer.fit_loop.setup_data()
        self._fitting = False
        if self._train is None:
            raise TypeError("the training has no DataLoader, which shoal could deal out")
        if 0 < trainer.estimated_stepping_batches < float("inf"):
            shoal.goal(steps=trainer.estimated_stepping_batches)
        super().setup(trainer)
        self._logged.begin(trainer.fit_loop.epoch_loop._results)
        self._stop_together(trainer)
        self._enter(trainer)

    def _setup_model(self, model: Any) -> Any:
        """The model, under shoal.torch.ddp where it is trained."""
        if self._job is None or self._train is None or self._over:
            return model
        return shoal.torch.ddp(model, **self._options)

    def process_dataloader(self, dataloader: Any) -> Any:
        """The batches of the training, dealt out over the workers; a loader of an evaluation is
        returned as it is.
        """
        if self._job is None or not isinstance(dataloader, DataLoader):
            return dataloader
        if self._fitting:
            if self._train is not None:
                raise ValueError(
                    "the training has several DataLoaders, and shoal deals out one: give it a"
                    " dataset whose samples have what those of all loaders have"
                )
            trainer = self._trainer
            self._train = _TrainLoader(self, dataloader, trainer)
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
        self._saved = Saved(trainer, job.outside)
        leave_out_schedulers(job, trainer)
        job.register("lightning", self._state_for_joiners, self._keep_received, alike=False)
        if not train.loader.enter(self._place):
            raise SystemExit(0)
        self._adopt_rank()
        if self._received is None:
            return
        received, self._received = self._received, None
        callbacks = unpack(received["callbacks"])
        for callback in trainer.callbacks:
            if isinstance(callback, ModelCheckpoint) and callback.state_key in callbacks:
                callback.dirpath = callbacks[callback.state_key]["dirpath"]
        self._saved.take(received["saved"], unpack(received["loops"]), callbacks)
        self._stepped = received["stepped"]
        self._logged.take_epoch_values(received["logged"])
        self._logged.take_update_values(received["found"])
        if received["over"]:
            trainer.should_stop = True
            tell_that_it_is_over(job, train.loader.place.step)

    def _state_for_joiners(self) -> Dict[str, Any]:
        """What workers that join get of this one, between two steps."""
        trainer = self._trainer
        return {
            "loops": pack(trainer._checkpoint_connector._get_loops_state_dict()),
            "callbacks": pack(call._call_callbacks_state_dict(trainer)),
            "saved": self._saved.state(),
            "logged": self._logged.epoch_values(),
            "found": self._logged.update_values(),
            "stepped": trainer.fit_loop.epoch_loop._batches_that_stepped,
            # At the limit of epochs or steps Lightning stops by itself, and the limit may rise.
            "over": self._over and trainer.should_stop,
        }

    def _keep_received(self, value: Dict[str, Any]) -> None:
        """Keep the state of the others, which `_enter` takes over."""
        self._received = value

    def _stop_together(self, trainer: Any) -> None:
        """Have all workers stop at the end of the same step, epoch or validation where
        `trainer.should_stop` is set on any of them: before Lightning looks at it.
        """
        module, callbacks = trainer.lightning_module, trainer.callbacks
        own = [c for c in callbacks if is_of_user("lightning", c)]
        self._stops_late = any(is_overridden(name, x) for name in _LATE for x in (module, *own))
        self._stops_late |= any(is_overridden(name, module) for name in _LATE_OF_MODULE)
        loop, batches = trainer.fit_loop, trainer.fit_loop.epoch_loop
        end_batch, end_epoch = batches.on_advance_end, loop.on_advance_end

        def keep_within_step() -> None:
            """Between the batches of a step nothing stops: keep what is set for the end of it."""
            last, stops = self._train.last, self._stops or trainer.should_stop
            self._stops, trainer.should_stop = stops and not last, stops and last

        def after_batch(data_fetcher: Any) -> None:
            """As Lightning's own."""
            keep_within_step()
            if self._train.last and self._update.sums.asking:
                self._unite_stops()
            with timed_together(self._job, trainer, self._train.last):
                end_batch(data_fetcher)
            keep_within_step()  # a validation may have set it

        def after_epoch() -> None:
            """As Lightning's own."""
            end_epoch()
            self._logged.end_epoch()
            self._unite_stops()

        batches.on_advance_end, loop.on_advance_end = after_batch, after_epoch

    def on_validation_start(self) -> None:
        """As Lightning's own; metrics of torchmetrics then have what this worker evaluates."""
        super().on_validation_start()
        self._alone.enter_context(metrics_alone(self._job, self.lightning_module))

    def on_test_start(self) -> None:
        """As Lightning's own, and as on_validation_start."""
        super().on_test_start()
        self._alone.enter_context(metrics_alone(self._job, self.lightning_module))

    def on_test_end(self) -> None:
        """As Lightning's own."""
        super().on_test_end()
        self._alone.close()

    def on_validation_end(self) -> None:
        """As Lightning's own; of a validation in the training, all workers stop or none does."""
        super().on_validation_end()
        self._alone.close()
        if self._train is not None and not self._over and not self._trainer.sanity_checking:
            self._unite_stops()

    def _unite_stops(self) -> None:
        """Set `trainer.should_stop` where it is set on any worker. Waits for the others."""
        unite_wishes(self._job, self._trainer, ["should_stop"])  # type: ignore[arg-type]

    # Training

    def training_step(self, *arguments: Any, **options: Any) -> Any:
        """As Lightning's own. Gradients are averaged in the last batch of a step of the job."""
        if self._train is not None:
            assert self._update is not None
            averages = self._train.last and self._update.averages(self.model)
            self.model.require_backward_grad_sync = averages
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
        train.passed = True
        if train.first:
            update.begin()
        if train.last:
            asks = self._stops_late or self._stops or self._trainer.should_stop
            update.begin_sums(0.0, 0.0, asks)
        result = super().backward(closure_loss * train.share, *arguments, **options)
        if train.last:
            update.commit_alone()
            update.end([self.model])
            self._logged.end_step(whole=not self._has_lost_samples())
        return result

    def _has_lost_samples(self) -> bool:
        """Whether a lost worker has left samples of this update, whose step is committed."""
        assert self._train is not None
        return bool(self._train.loader.place.left)

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
            """Call the closure, go through the batches that are left of the update, and return what
            the closure did. Of a worker that has joined in the middle of an update, Lightning takes
            the first batch for the last one of the update; the step under way may have more.
            """
            result = closure()
            train, loop = self._train, self._trainer.fit_loop
            assert train is not None and self._update is not None
            while not train.last or self._has_lost_samples():
                if train.last:
                    self._update.stash([self.model])
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

    def on_train_end(self) -> None:
        """As Lightning's own, then end the loop over the steps of the job: the last one is made."""
        super().on_train_end()
        if self._train is not None:
            self._over = True
            self._train.close()
            self._adopt_rank()

    # What the workers tell each other

    def reduce_boolean_decision(self, decision: bool, all: bool = True) -> bool:
        """What the lowest rank that is not lost has decided, as `broadcast` says: all workers stop
        early, or save, alike.
        """
        return bool(self.broadcast(decision))

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
        checkpoint[_LOGGED] = self._logged.epoch_values()
        save = self.checkpoint_io.save_checkpoint  # in Lightning's own, rank 0 alone calls it
        write_once(job, lambda: save(checkpoint, filepath, storage_options=storage_options))

    def load_checkpoint(self, checkpoint_path: Any, *others: Any, **options: Any) -> Any:
        """As Lightning's own, and for a training keep the place in the data, where it begins."""
        checkpoint = super().load_checkpoint(checkpoint_path, *others, **options)
        fits = self.lightning_module.trainer.state.fn == TrainerFn.FITTING  # else it is evaluated
        if fits and self._job is not None and _PLACE in checkpoint:
            place = self._place = Cursor.unpack(bytes.fromhex(checkpoint[_PLACE]))
            # Not after the end of an epoch, nor in checkpoints of earlier versions.
            if place.next and _LOGGED in checkpoint:
                self._logged.take_epoch_values(checkpoint[_LOGGED])
        return checkpoint


class _TrainLoader:
    """The batches of the training, dealt out over the workers. Only the thread of the training loop
    uses it; the next step may wait for the other workers.
    """

    def __init__(self, strategy: Strategy, dataloader: Any, trainer: Any):
        """Deal out the samples of `dataloader`, as many batches a step as the Trainer accumulates.
        Raises TypeError or ValueError where they cannot be dealt out.
        """
        check_dealable(dataloader)
        self.dataset, self.batch_size = dataloader.dataset, dataloader.batch_size
        self._strategy, self._collate = strategy, dataloader.collate_fn
        samples = samples_to_train(dataloader, self.batch_size)
        limit, whole = trainer.limit_train_batches, -(-samples // self.batch_size)
        limit = int(whole * limit) if isinstance(limit, float) else min(whole, limit)
        # Lightning computes the same, and says what is wrong with a limit of no batch.
        self._whole, limit = whole, max(limit, 1)
        self.loader = shoal.torch.loader(
            dataloader.dataset,
            self.batch_size * trainer.accumulate_grad_batches,
            seed=torch.initial_seed() % (1 << 63),
            epochs=FOREVER,
            shuffle=type(dataloader.sampler) is RandomSampler,
            samples_per_epoch=min(samples, limit * self.batch_size),
            apart=True,
            collate_fn=list,
            **worker_options(dataloader),
        )
        self._steps = iter(self.loader)
        self._batches: Iterator[Any] = self._all_batches()
        self.share = 1.0  # what the loss of the batch given out is multiplied by
        self.first = self.last = True  # the batch is the first, or the last, of its step
        self.passed = True  # the batch given out has had its backward pass

    def __len__(self) -> int:
        """The number of batches of the DataLoader, of which a limit may leave out some."""
        return self._whole

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
                strategy._logged.weight = len(cut) if step.weight else 0
                self.share = len(cut) / len(samples) * whole
                self.first, self.last, self.passed = i == 0, i == count - 1, False
                yield self._collate(cut or samples[:2])
                if not self.passed:
                    raise RuntimeError(
                        "a batch had no backward pass, as where training_step returns None or"
                        " on_train_batch_start -1, and a job makes its steps of all batches: return"
                        " a loss times 0, end the training with trainer.should_stop, or leave"
                        " samples out of the dataset"
                    )
        if not strategy._job.first:  # type: ignore[union-attr]
            raise SystemExit(0)  # the others go on without this worker
        strategy._trainer.should_stop = True


# self.log of a compiled module, and what it is averaged by, talk to the agent.
shoal.torch.untraced.skip_package(__name__)
shoal.torch.untraced.skip_package("shoal._trainers.logged")
shoal.torch.untraced.skip_package("shoal.steps")
shoal.torch.untraced.skip_package("shoal._live.step")
