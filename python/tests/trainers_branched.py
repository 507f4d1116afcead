"""A worker that trains a model with a branch that some steps leave out, with one of the trainers of
other people, and writes down which gradients each step had.

    trainers_branched.py CONFIG END

CONFIG is JSON: `trainer` says which, `out` is a folder, `gates` are steps to wait at, `lost` steps
in which the worker of the highest rank kills itself, and `branched` the numbers of the samples for
which the branch is used. END is not used. The trainers call the methods of the classes, on the
thread of the training loop.
"""

import json
import os
import pathlib
import signal
import sys

import torch
from torch import nn
from trainers_common import CLASSES, FEATURES, SEED, Data, Gates, append_json_line, worker_number

import shoal

SAMPLES, BATCH = 144, 8


class Branched(nn.Module):
    """A linear model with a branch, which is left out where no sample of a batch needs it."""

    def __init__(self, branched):
        """The same parameters on every worker; the samples of these numbers need the branch."""
        super().__init__()
        torch.manual_seed(SEED)
        self.body = nn.Linear(FEATURES, CLASSES).double()
        self.branch = nn.Linear(FEATURES, CLASSES).double()
        self._needs = torch.zeros(SAMPLES, dtype=torch.bool)
        self._needs[branched] = True

    def forward(self, x, labels, index):
        """The loss of a batch."""
        logits, needs = self.body(x), self._needs[index]
        if needs.any():
            logits = logits + self.branch(x) * needs[:, None]
        return {"loss": nn.functional.cross_entropy(logits, labels)}


class Ledger:
    """Writes down what each step had."""

    def __init__(self, config, model):
        """Open the ledger of this worker."""
        self._model, self._out = model, pathlib.Path(config["out"])
        self._gates = Gates(self._out, config["gates"])
        self._file = open(self._out / f"ledger-{worker_number()}.jsonl", "a")
        self._lost = config["lost"]
        self._begun = -1  # the number of the step that was begun last
        self._line = {}  # what take_gradients has found

    def begin(self):
        """Before each pass: wait at the gate of the step, or be lost in it."""
        job = shoal.join()
        number = job.step.number
        if self._begun < number:
            self._begun = number
            self._gates.wait(job.rank, number)
            if number in self._lost and job.rank == job.size - 1:
                os.kill(os.getpid(), signal.SIGKILL)

    def check_gradients(self):
        """Behind a backward pass: all parameters of the body have a gradient."""
        assert all(p.grad is not None for p in self._model.body.parameters()), "no gradient"

    def take_gradients(self):
        """Before the optimizer makes its step: keep what its gradients are."""
        self._line = describe_gradients(self._model)

    def end(self, step):
        """Write down the step of this number, which the optimizer has made."""
        append_json_line(self._file, step=step, **self._line, **describe_parameters(self._model))


def describe_gradients(model):
    """The norm of the gradient of the body of a Branched, and of the branch; None = it has none."""
    branch = model.branch.weight.grad
    return dict(
        body=model.body.weight.grad.norm().item(),
        branch=None if branch is None else branch.norm().item(),
    )


def describe_parameters(model):
    """The sums of two parameters of a Branched."""
    return dict(sums=[layer.weight.sum().item() for layer in (model.body, model.branch)])


def make_optimizer(model):
    """An optimizer that moves a parameter also where its gradient is zero."""
    return torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9, weight_decay=0.01)


def train_with_transformers(config, model, ledger):
    """Train with the Trainer of transformers."""
    sys.modules["deepspeed"] = None
    from shoal.transformers import Trainer
    from transformers import TrainerCallback, TrainingArguments
    from accelerate.utils import DistributedDataParallelKwargs

    class Callback(TrainerCallback):
        """Fills the ledger."""

        def on_pre_optimizer_step(self, args, state, control, **more):
            """Take the gradients."""
            ledger.take_gradients()

        def on_step_end(self, args, state, control, **more):
            """Write down the step."""
            ledger.end(state.global_step)

    class Looking(Trainer):
        """Looks at gradients after the backward pass."""

        def training_step(self, *arguments, **options):
            """As the Trainer's own."""
            ledger.begin()
            loss = super().training_step(*arguments, **options)
            ledger.check_gradients()
            return loss

        def create_accelerator_and_postprocess(self):
            """As the Trainer's own, with the options for DDP."""
            super().create_accelerator_and_postprocess()
            self.accelerator.ddp_handler = DistributedDataParallelKwargs(
                find_unused_parameters=True, gradient_as_bucket_view=True
            )

    arguments = TrainingArguments(
        output_dir=f"{config['out']}/hf",
        per_device_train_batch_size=1,
        gradient_accumulation_steps=BATCH,
        num_train_epochs=1,
        lr_scheduler_type="constant",
        max_grad_norm=0.0,
        report_to="none",
        use_cpu=True,
        save_strategy="no",
    )
    Looking(
        model=model,
        args=arguments,
        train_dataset=Data(SAMPLES),
        callbacks=[Callback()],
        optimizers=(make_optimizer(model), None),
    ).train()


def train_with_accelerate(config, model, ledger):
    """Train in a loop of Accelerate's."""
    from accelerate.utils import DistributedDataParallelKwargs
    from shoal.accelerate import Accelerator

    options = DistributedDataParallelKwargs(
        find_unused_parameters=True, gradient_as_bucket_view=True
    )
    accelerator = Accelerator(cpu=True, kwargs_handlers=[options])
    loader = torch.utils.data.DataLoader(Data(SAMPLES), batch_size=BATCH, shuffle=True)
    wrapped, optimizer, loader = accelerator.prepare(model, make_optimizer(model), loader)
    done = [0]  # the number of updates, which workers that join get
    shoal.join().register("done", lambda: done[0], lambda value: done.__setitem__(0, value))
    for batch in loader:
        ledger.begin()
        optimizer.zero_grad()
        accelerator.backward(wrapped(**batch)["loss"])
        ledger.check_gradients()
        if accelerator.sync_gradients:
            ledger.take_gradients()
        optimizer.step()
        if accelerator.sync_gradients:
            done[0] += 1
            ledger.end(done[0])


def train_with_lightning(config, model, ledger):
    """Train with the Trainer of Lightning."""
    import lightning
    import shoal.lightning

    class Module(lightning.LightningModule):
        """The model, which fills the ledger."""

        def __init__(self):
            """Of the model."""
            super().__init__()
            self.net = model

        def training_step(self, batch, _):
            """The loss."""
            ledger.begin()
            return self.net(**batch)["loss"]

        def on_after_backward(self):
            """Look at the gradients."""
            ledger.check_gradients()

        def on_before_optimizer_step(self, optimizer):
            """Take the gradients."""
            ledger.take_gradients()

        def on_train_batch_end(self, *_):
            """Write down the step."""
            ledger.end(self.trainer.global_step)

        def configure_optimizers(self):
            """The optimizer."""
            return make_optimizer(model)

    lightning.seed_everything(7)
    trainer = lightning.Trainer(
        strategy=shoal.lightning.Strategy(find_unused_parameters=True),
        accelerator="cpu",
        max_epochs=1,
        logger=False,
        enable_checkpointing=False,
        enable_model_summary=False,
    )
    trainer.fit(
        Module(), torch.utils.data.DataLoader(Data(SAMPLES), batch_size=BATCH, shuffle=True)
    )


def main(config):
    """Train as the config says; return the rank and the size."""
    job, model = shoal.join(), Branched(config["branched"])
    trains = globals()[f"train_with_{config['trainer']}"]
    trains(config, model, Ledger(config, model))
    return [job.rank, job.size]


if __name__ == "__main__":
    print("RESULT", json.dumps(main(json.loads(sys.argv[1]))), flush=True)
