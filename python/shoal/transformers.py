"""The Trainer of transformers on workers that come and go.

    from shoal.transformers import Trainer         # the one changed line

Everything else is transformers' own: arguments, callbacks, progress bar, checkpoints. Started by
`shoal run`, workers may be lost, join and be released while it trains; without the launcher it is
the Trainer of transformers. docs/guide/trainers.md says what is supported.

`per_device_train_batch_size` times `gradient_accumulation_steps` is the batch of a step over all
workers, so the numbers of steps, the learning rates and the losses do not depend on how many there
are.
"""

from __future__ import annotations

import dataclasses
import functools
import json
import os
import shutil
import tempfile
from typing import Any, Dict, List, Optional

import torch
import transformers
from transformers import trainer as _trainer

import shoal
import shoal.torch
from shoal._trainers import checkpoints, process
from shoal._trainers.arguments import check_arguments, find_arguments
from shoal._trainers.attributes import replaced
from shoal._trainers.batches import Part, TrainLoader, wrap_flos, wrap_tokens
from shoal._trainers.callbacks import show_progress, states_of, take_states
from shoal._trainers.rounds import Predictions, is_dealable
from shoal._trainers.update import Update
from shoal._trainers.wishes import is_of_user, unite_wishes

__all__ = ["Elastic", "Seq2SeqTrainer", "Trainer"]

process.hide_from_accelerate()

_STATE = "trainer_state.json"
# What the training loop keeps in attributes between two steps; not every version has all of them.
_RUNNING = ("_total_loss_scalar", "_globalstep_last_logged", "_initial_global_step", "current_flos")


class Elastic:
    """Before the class of a Trainer, as in `class SFT(Elastic, trl.SFTTrainer)`, has that train on
    the workers of a job. Trainer and Seq2SeqTrainer here are made so. The thread of the training
    loop calls all methods. Those that go on to a step, average, save, load the best model or
    evaluate wait for the other workers. Without a job each does what the Trainer's own does.
    """

    _job: Optional["shoal.Job"] = None  # None = without the launcher: all is as in transformers

    def __init__(self, *arguments: Any, **options: Any):
        """As the Trainer's own; in a job, refuse what a job cannot do, and join it before."""
        self._resumed: Optional[str] = None  # the checkpoint that the user named
        self._folder = ""  # a folder with the trainer_state.json that this training begins with
        self._data: Optional[TrainLoader] = None  # None = no training has begun
        self._prepared: Any = None  # what _prepare_for_training has returned; None = handed on
        self._received: Optional[Dict[str, Any]] = None  # the state of the others; None = adopted
        self._over = False  # the training loop has ended
        self._first = False  # this worker writes and prints
        self._left = 0  # number of updates that the training loop has before it in this epoch
        self._update: Optional[Update] = None  # None = outside of the training loop
        self._shared: Optional[Part] = None  # the part whose last backward pass comes; None = none
        self._idle = False  # this worker makes no backward pass in the step
        if process.is_launched():
            mro = type(self).__mro__
            check_arguments(*find_arguments(mro[mro.index(Elastic) + 1 :], arguments, options))
            self._job = shoal.join()
        super().__init__(*arguments, **options)
        self._adopt_rank()

    # Data

    def get_train_dataloader(self) -> Any:
        """The batches, dealt out over the workers, always by the same loader."""
        dataloader = super().get_train_dataloader()  # type: ignore[misc]
        if self._job is None:
            return dataloader
        args = self.args
        if self._data is None:
            self._data = TrainLoader(
                dataloader,
                self._get_train_sampler(self.train_dataset),
                self._train_batch_size,
                args.gradient_accumulation_steps,
                args.seed if args.data_seed is None else args.data_seed,
            )
        return self._data

    def set_initial_training_values(self, args: Any, dataloader: Any) -> Any:
        """As the Trainer's own. Raises TypeError for a loader that the program itself has made."""
        if self._job is not None and dataloader is not self._data:
            raise TypeError(
                "get_train_dataloader gives a loader of its own, which shoal cannot deal out: give"
                " the Trainer train_dataset and data_collator, and leave the loader to it"
            )
        return super().set_initial_training_values(args, dataloader)  # type: ignore[misc]

    def get_batch_samples(self, epoch_iterator: Any, num_batches: int, device: Any) -> Any:
        """This worker's samples for the next update, and how many items (None = not counted)."""
        if self._job is None or self._update is None:
            return super().get_batch_samples(  # type: ignore[misc]
                epoch_iterator, num_batches, device
            )
        part = self._next_part()
        if part is None:
            return [], None
        self._left -= 1
        return [*(Part([]) for _ in range(num_batches - 1)), part], part.items

    def _next_part(self) -> Optional["Part"]:
        """Open a step, and return its samples; None in a stopped job. A released worker exits."""
        assert self._job is not None and self._data is not None
        micros = next(self._data.parts, None)
        if micros is None:
            if not self._job.first:
                raise SystemExit(0)  # the others go on
            self.control.should_training_stop = True
            return None
        self._adopt_rank()
        part, step = Part(micros), self._job.step
        assert step is not None
        items = self._get_num_items_in_batch([m.inputs for m in micros], self.args.device)
        if items is not None:
            if getattr(self, "loss_is_scaled_for_ga", None) is not False:  # else it is by samples
                step.weight = int(items) if step.weight else 0  # the mean over all tokens
            part.items = items.clamp(min=1) if torch.is_tensor(items) else max(items, 1)
        return part

    def _adopt_rank(self) -> None:
        """Take over what a new generation changes: which worker writes and prints."""
        if self._job is None:
            return
        process.set_accelerate_rank()
        first, before = self._job.rank == 0, self._first
        self._first = self.state.is_world_process_zero = self.state.is_local_process_zero = first
        if not first or before:
            return
        transformers.logging.set_verbosity(self.args.get_process_log_level())
        if self.args.push_to_hub and self.hub_model_id is None:
            self.init_hf_repo()  # as rank 0 has done when its Trainer was made
        show_progress(self)

    # The training loop

    def train(self, resume_from_checkpoint: Any = None, *arguments: Any, **options: Any) -> Any:
        """As transformers' own. A worker that joins resumes from the other workers."""
        if self._job is not None:
            process.check_first(self._job, "trainer", "train()")
        if self._job is not None and self._job.outside:
            resume_from_checkpoint = None
        elif self._job is not None and resume_from_checkpoint is True:
            os.makedirs(self.args.output_dir, exist_ok=True)  # as the Trainer of rank 0 has done
        return super().train(resume_from_checkpoint, *arguments, **options)  # type: ignore[misc]

    def _inner_training_loop(self, *arguments: Any, **options: Any) -> Any:
        """As the Trainer's own; in a job it always resumes, with the methods here for its steps."""
        run = super()._inner_training_loop  # type: ignore[misc]
        if self._job is None:
            return run(*arguments, **options)
        self._resumed = options.pop("resume_from_checkpoint", None)
        self._update = Update(self._job, beside_ddp=True)
        # The loop resumes always: from what is in this folder once this worker has entered.
        with tempfile.TemporaryDirectory(prefix="shoal-") as self._folder:
            if self._resumed is not None:
                shutil.copy(os.path.join(self._resumed, _STATE), self._folder)
            with replaced(
                self,
                training_step=self._step,
                floating_point_ops=wrap_flos(self.floating_point_ops),
                _track_num_input_tokens=wrap_tokens(self, self._track_num_input_tokens),
            ):
                return run(*arguments, resume_from_checkpoint=self._folder, **options)

    def _init_training_state(self, max_steps: int, updates: int, *others: Any) -> Any:
        """As the Trainer's own, after this worker has entered the job. An epoch has `updates`."""
        begin = super()._init_training_state  # type: ignore[misc]
        if self._job is None:
            return begin(max_steps, updates, *others)
        assert self._data is not None
        # Before the state: a worker that joins gets both at once.
        prepare = super()._prepare_for_training  # type: ignore[misc]
        self._prepared = prepare(max_steps, self._data, self._folder)
        shoal.goal(steps=max(max_steps, 1))
        best = self._enter(max_steps, updates)
        begun = begin(max_steps, updates, *others)
        if self.args.load_best_model_at_end and best is not None:
            self.state.best_model_checkpoint = best
        return begun

    def _prepare_for_training(self, *arguments: Any) -> Any:
        """What the Trainer's own has returned already, in `_init_training_state`."""
        if self._job is None:
            return super()._prepare_for_training(*arguments)  # type: ignore[misc]
        prepared, self._prepared = self._prepared, None
        return prepared

    def _wrap_model(self, model: Any, training: bool = True, *others: Any) -> Any:
        """As the Trainer's own; a model that is trained in a job is under shoal.torch.ddp."""
        wrapped = super()._wrap_model(model, training, *others)  # type: ignore[misc]
        if self._job is None or not training or wrapped is not model:
            return wrapped
        prepared = self.accelerator.prepare_model(model, evaluation_mode=True)
        # Gradients in DDP's buckets take no memory of their own, and are not copied back.
        options = process.ddp_options(self.accelerator, gradient_as_bucket_view=True)
        return shoal.torch.ddp(prepared, **options)

    def _enter(self, max_steps: int, updates: int) -> Optional[str]:
        """Enter the job, with the state of the others or of its checkpoint, and wait for them.
        Return the best model's folder in that state, which this worker may not see; None = none.
        """
        job, data = self._job, self._data
        assert job is not None and data is not None and self._update is not None
        self._update.register()
        job.register("trainer", self._state_for_joiners, self._keep_received, alike=False)
        place = None
        if self._resumed is not None and not job.outside:
            with open(os.path.join(self._resumed, _STATE)) as file:
                done = json.load(file)["global_step"]
            place = checkpoints.place_after_updates(self._resumed, done, data.loader.place, updates)
        if not data.loader.enter(place):
            raise SystemExit(0)
        self._adopt_rank()
        if self._received is None:
            return None
        state = json.loads(self._received["state"])
        # A job that goes on from its checkpoint may have more steps to make than the one before.
        if self._over and state["global_step"] < max_steps:
            self._over = state["global_step"] < state["max_steps"]
            if self._over:
                checkpoints.tell_that_it_is_over(self._job, state["global_step"])
        # The Trainer would forget a folder that is not there.
        best, state["best_model_checkpoint"] = state["best_model_checkpoint"], None
        with open(os.path.join(self._folder, _STATE), "w") as file:
            json.dump(state, file)
        return best

    def _run_epoch(self, **given: Any) -> None:
        """As the Trainer's own; a worker that has joined after the last step makes none."""
        if self._job is not None:
            begun = given["epoch"] == given["epochs_trained"]
            done = given["steps_trained_in_current_epoch"] if begun else 0
            self._left = given["num_update_steps_per_epoch"]
            self._left -= done // self.args.gradient_accumulation_steps
            self._apply_received()
            if self._over:  # a worker that has joined after the last step
                self.control.should_training_stop = True
                return
        super()._run_epoch(**given)  # type: ignore[misc]
        if self._job is not None and self.control.should_epoch_stop and self._left:
            raise RuntimeError(
                "a callback has set should_epoch_stop in the middle of an epoch, and the samples of"
                " a job are dealt out by whole epochs: set should_training_stop, or leave samples"
                " out of train_dataset"
            )

    def _step(self, model: Any, part: Part, num_items_in_batch: Any = None) -> Any:
        """As training_step, with all samples of an update: returns the loss over all workers."""
        update, data, device = self._update, self._data, self.args.device
        assert update is not None and data is not None
        if not part.micros:
            return torch.zeros((), device=device)
        self._backward_pass(model, part)
        update.end([model])
        # Samples of this update that a lost worker has left.
        while data.loader.place.left:
            update.stash([model])
            rest = self._next_part()
            if rest is None:
                raise SystemExit(0)
            self._backward_pass(model, rest)
            update.end([model])
        part.flos, part.tokens = update.sums.flos, update.sums.tokens
        return torch.tensor(update.loss, device=device)

    def _backward_pass(self, model: Any, part: Part) -> None:
        """The backward passes of a part, of which the last one averages."""
        step = functools.partial(type(self).training_step, self)  # type: ignore[attr-defined]
        update = self._update
        assert update is not None
        update.begin()
        for micro in part.micros:
            last = micro is part.micros[-1]
            self._shared = part if last else None
            # What the loss is divided by, unless it is by the number of items.
            self.current_gradient_accumulation_steps = part.samples / micro.samples
            self._idle = last and not update.needs_pass(model)
            with update.averaging(model) if last else update.accumulating(model):
                step(model, micro.inputs, part.items)
        update.commit_alone()
        self._shared, self._idle = None, False

    def create_accelerator_and_postprocess(self) -> None:
        """As transformers' own; the losses of all workers are added up on the way."""
        super().create_accelerator_and_postprocess()  # type: ignore[misc]
        if self._job is None:
            return
        # Else the workers would wait for rank 0 to read what is iterable, for an evaluation.
        self.accelerator.dataloader_config.dispatch_batches = False
        backward = self.accelerator.backward

        def share(loss: Any, **options: Any) -> None:
            """As Accelerate's backward; before the last pass of a step, begin the sums."""
            if self._update is not None and loss.requires_grad:
                self._update.add_loss(float(loss.detach()))
                if self._shared is not None:
                    self._begin_sums(self._shared)
            if not self._idle:
                backward(loss, **options)
            if self._update is not None:
                self._update.end_backward()

        self.accelerator.backward = share

    def _begin_sums(self, part: Part) -> None:
        """Begin the sums over all workers, with the operations and tokens of a part."""
        flos = sum(float(self.floating_point_ops(m.inputs)) for m in part.micros)
        seen = self.state.num_input_tokens_seen
        for micro in part.micros:
            self._track_num_input_tokens(micro.inputs)
        tokens = self.state.num_input_tokens_seen - seen
        self.state.num_input_tokens_seen = seen
        asks = is_of_user("transformers", self, *self.callback_handler.callbacks)
        self._update.begin_sums(flos, float(tokens), asks)  # type: ignore[union-attr]

    def _maybe_log_save_evaluate(self, *arguments: Any, **options: Any) -> None:
        """As the Trainer's own, on all workers where a callback asks for it on any of them."""
        run = super()._maybe_log_save_evaluate  # type: ignore[misc]
        if not self._unite_wishes():
            return run(*arguments, **options)
        own, first = self.log, iter([True])  # type: ignore[attr-defined]

        def log(*given: Any, **more: Any) -> None:
            """As the Trainer's own. What a callback asks for in the first one, all workers do."""
            unites = next(first, False)
            own(*given, **more)
            if unites:
                self._unite_wishes()

        with replaced(self, log=log):
            run(*arguments, **options)
        self._unite_wishes()

    def _unite_wishes(self) -> bool:
        """Have all workers do what callbacks ask for on any; return whether there is anything."""
        if self._update is None or not self._update.sums.asking:
            return False
        names = [field.name for field in dataclasses.fields(self.control)]
        return unite_wishes(self._job, self.control, names)  # type: ignore[arg-type]

    def _finalize_training(self, *arguments: Any) -> Any:
        """As the Trainer's own, after the end of the loop over the steps of the job."""
        if self._job is not None:
            self._over = True
            self._apply_received()  # where no epoch was left
            self._data.close()  # type: ignore[union-attr]
            self._adopt_rank()
            self._update = None
        return super()._finalize_training(*arguments)  # type: ignore[misc]

    # The state that workers that join get

    def _state_for_joiners(self) -> Dict[str, Any]:
        """What workers that join get of this one, between two steps."""
        loss = getattr(self, "_tr_loss", None)
        return {
            "state": json.dumps(dataclasses.asdict(self.state)),
            "over": self._over,
            "loss": None if loss is None else float(loss),
            "running": {n: float(getattr(self, n)) for n in _RUNNING if hasattr(self, n)},
            "callbacks": states_of(self.callback_handler.callbacks),
        }

    def _keep_received(self, value: Dict[str, Any]) -> None:
        """Keep the state of the others, which `_enter` and `_apply_received` take over."""
        self._received, self._over = value, value["over"]

    def _apply_received(self) -> None:
        """Take over what the loop has set anew since this worker has entered."""
        received, self._received = self._received, None
        if received is None:
            return
        for name, value in received["running"].items():
            setattr(self, name, type(getattr(self, name))(value))
        if received["loss"] is not None:
            self._tr_loss.fill_(received["loss"])
        take_states(self.callback_handler.callbacks, received["callbacks"])

    # Checkpoints of the Trainer

    def _load_optimizer_and_scheduler(self, checkpoint: Any) -> None:
        """As the Trainer's own, from the checkpoint that `_to_load` says."""
        super()._load_optimizer_and_scheduler(self._to_load(checkpoint))  # type: ignore[misc]

    def _load_scaler(self, checkpoint: Any) -> None:
        """As the Trainer's own, from the checkpoint that `_to_load` says."""
        super()._load_scaler(self._to_load(checkpoint))  # type: ignore[misc]

    def _load_rng_state(self, checkpoint: Any) -> None:
        """As the Trainer's own, from the checkpoint that `_to_load` says."""
        super()._load_rng_state(self._to_load(checkpoint))  # type: ignore[misc]

    def _load_callback_state(self) -> None:
        """As the Trainer's own, unless `_apply_received` takes over the others' callbacks."""
        if self._received is None:
            super()._load_callback_state()  # type: ignore[misc]

    def _to_load(self, checkpoint: Any) -> Any:
        """The checkpoint that the user named, None where none was, in place of `checkpoint`, the
        folder that the loop begins with; `checkpoint` itself where the state is that of others.
        """
        return checkpoint if self._job is None or self._received else self._resumed

    def _save_checkpoint(self, model: Any, trial: Any) -> None:
        """As the Trainer's own, on one worker for all, and with the place in the data."""
        save = super()._save_checkpoint  # type: ignore[misc]
        if self._job is None:
            return save(model, trial)
        place = self._data.loader.place  # type: ignore[union-attr]
        name = f"{_trainer.PREFIX_CHECKPOINT_DIR}-{self.state.global_step}"
        folder = os.path.join(self._get_output_dir(trial), name)

        def write() -> Optional[str]:
            """Write the checkpoint; return the folder of the best one so far, None = none."""
            with process.as_rank_zero():
                os.makedirs(folder, exist_ok=True)
                checkpoints.write_place(folder, place)
                save(model, trial)
            return self.state.best_model_checkpoint

        best = checkpoints.write_once(self._job, write)
        self.store_flos()
        self.state.best_model_checkpoint = best

    def _load_best_model(self) -> None:
        """As the Trainer's own; workers that do not see the files get it from one that does."""
        load = super()._load_best_model  # type: ignore[misc]
        if self._job is None:
            return load()
        there = os.path.isdir(self.state.best_model_checkpoint)
        checkpoints.share_loaded(self._job, self.model, there, load)
        if not there:
            self.state.best_model_checkpoint = None  # the Trainer would look into it at its end

    # Evaluation

    def _evaluate(self, *arguments: Any, **options: Any) -> Any:
        """As the Trainer's own, but for `eval_on_start` on a worker that joins: the others have
        begun before.
        """
        if self._received is not None:
            return {}
        metrics = super()._evaluate(*arguments, **options)  # type: ignore[misc]
        self._unite_wishes()
        return metrics

    def evaluation_loop(self, dataloader: Any, *arguments: Any, **options: Any) -> Any:
        """As transformers' own, with the batches dealt out over the workers."""
        loop = super().evaluation_loop  # type: ignore[misc]
        if self._job is None or self._job.size == 1 or not is_dealable(dataloader):
            return loop(dataloader, *arguments, **options)
        inputs = "inputs" in self.args.include_for_metrics
        rounds = Predictions(
            self._job,
            dataloader,
            self.prediction_step,
            self.preprocess_logits_for_metrics,
            getattr(self.model, "main_input_name", "input_ids") if inputs else None,
            self.args.device,
            self.callback_handler,
        )
        with replaced(
            self, prediction_step=rounds.prediction_step, preprocess_logits_for_metrics=None
        ):
            return loop(self.accelerator.prepare(rounds.numbers_loader()), *arguments, **options)


class Trainer(Elastic, transformers.Trainer):
    """transformers.Trainer, on workers that come and go."""


class Seq2SeqTrainer(Elastic, transformers.Seq2SeqTrainer):
    """transformers.Seq2SeqTrainer, on workers that come and go."""


def _skip_first_batches(dataloader: Any, num_batches: int = 0) -> Any:
    """As transformers' own; the steps of the job go on where they are."""
    return dataloader if isinstance(dataloader, TrainLoader) else _skip(dataloader, num_batches)


_skip = _trainer.skip_first_batches
_trainer.skip_first_batches = _skip_first_batches
