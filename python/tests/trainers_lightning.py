"""A worker that trains with Lightning, and writes down what each step had.

    trainers_lightning.py CONFIG END

CONFIG is JSON: `out` a folder, and what it has of DEFAULTS: `gates` steps to wait at, `resume` a
checkpoint of Lightning's, None = none, `every` after how many steps Lightning and the job make
checkpoints, `checkpoint` a folder for those of the job, and `limit` the batches of an epoch, None =
all. END is not used. Lightning calls the
methods of Module and Watch, on the thread of the training loop.
"""

import json
import pathlib
import sys

import lightning
import shoal.lightning
import torch
from lightning.pytorch.callbacks import Callback, ModelCheckpoint
from trainers_common import (
    Data,
    Gates,
    Net,
    append_json_line,
    make_optimizer,
    make_scheduler,
    worker_number,
)

import shoal

DEFAULTS = dict(
    samples=96,
    batch=4,
    accumulate=2,
    epochs=3,
    gates=[],
    resume=None,
    every=None,
    checkpoint=None,
    limit=None,
)


class Module(lightning.LightningModule):
    """The net of the tests."""

    def __init__(self, samples, steps):
        """The net for so many samples, trained for so many steps."""
        super().__init__()
        self.net, self._steps = Net(samples), steps
        self.validated = 0  # number of batches that this worker has validated
        self.trained = 0  # number of epochs that the job has trained

    def training_step(self, batch, _):
        """The loss of a batch, which is logged for each step and each epoch; so is the number of
        samples of each step.
        """
        loss = self.net(**batch)["loss"]
        self.log("loss", loss, on_step=True, on_epoch=True)
        self.log("samples", torch.tensor(float(len(batch["index"]))), reduce_fx="sum")
        return loss

    def validation_step(self, batch, _):
        """Log the loss and the accuracy of a batch."""
        self.validated += not self.trainer.sanity_checking
        output = self.net(**batch)
        right = (output["logits"].argmax(1) == batch["labels"]).double().mean()
        self.log_dict({"val_loss": output["loss"], "right": right})

    def on_train_epoch_end(self):
        """Count the epoch."""
        self.trained += 1

    def on_save_checkpoint(self, checkpoint):
        """Add the number of epochs, which on_load_checkpoint takes over."""
        checkpoint["trained"] = self.trained

    def on_load_checkpoint(self, checkpoint):
        """Take over what on_save_checkpoint has added."""
        self.trained = checkpoint["trained"]

    def configure_optimizers(self):
        """The optimizer, and the scheduler, which goes on with each step."""
        optimizer = make_optimizer(self.net)
        scheduler = make_scheduler(optimizer, self._steps)
        return [optimizer], [{"scheduler": scheduler, "interval": "step"}]


class LedgerCallback(Callback):
    """Writes the ledger, and has a state: the number of steps that it has seen."""

    def __init__(self, config):
        """Open the ledger of this worker."""
        self.seen, self._each = 0, config["accumulate"]  # steps made, and batches of a step
        self._gates = Gates(config["out"], config["gates"])
        self._file = open(pathlib.Path(config["out"]) / f"ledger-{worker_number()}.jsonl", "a")
        self.epochs = []  # what was logged of each: the loss, and of the evaluation loss, accuracy
        self._rate = None  # the learning rate of the step that is being made

    def on_train_batch_start(self, trainer, module, batch, index):
        """Keep the learning rate; with the first batch of a step, wait at a gate before it."""
        self._rate = trainer.optimizers[0].param_groups[0]["lr"]
        if trainer.global_step <= shoal.join().step.number and not index % self._each:
            self._gates.wait(shoal.join().rank, trainer.global_step)

    def on_train_batch_end(self, trainer, module, output, batch, index):
        """Write down a step when its last batch is done."""
        if (index + 1) % self._each and index + 1 != trainer.num_training_batches:
            return
        self.seen += 1
        append_json_line(
            self._file,
            step=trainer.global_step,
            seen=self.seen,
            rate=self._rate,
            loss=trainer.callback_metrics["loss_step"].item(),
            samples=trainer.callback_metrics["samples"].item(),
            taken=module.net.take_marks(),
            digest=module.net.layers[0].weight.sum().item().hex(),
        )

    def on_train_epoch_end(self, trainer, module):
        """Keep what was logged for the epoch."""
        found = trainer.callback_metrics
        self.epochs.append([found[k].item() for k in ("loss_epoch", "val_loss", "right")])

    def state_dict(self):
        """The steps seen, and what was logged."""
        return {"seen": self.seen, "epochs": self.epochs}

    def load_state_dict(self, state):
        """Take over what `state_dict` has returned."""
        self.seen, self.epochs = state["seen"], state["epochs"]


class Average(Callback):
    """Adds up the model's state after each batch, and saves as Lightning's WeightAveraging does:
    what is added up takes the place of the model's state, which has another key.
    """

    def setup(self, trainer, module, stage):
        """Begin with the state that the model has."""
        self.sums = {name: value.clone() for name, value in module.state_dict().items()}

    def on_train_batch_end(self, trainer, module, output, batch, index):
        """Add the state."""
        for name, value in module.state_dict().items():
            self.sums[name] += value

    def on_save_checkpoint(self, trainer, module, checkpoint):
        """Put the sums in the place of the model's state."""
        checkpoint["current"], checkpoint["state_dict"] = checkpoint["state_dict"], self.sums

    def on_load_checkpoint(self, trainer, module, checkpoint):
        """Take over what on_save_checkpoint has put."""
        self.sums = {name: value.clone() for name, value in checkpoint["state_dict"].items()}
        module.load_state_dict(checkpoint["current"])


def main(config):
    """Train as the config says; return the rank, the size, and what all workers must have found
    alike: steps, epochs, what was logged of each epoch, and a sum of parameters.
    """
    config = {**DEFAULTS, **config}
    out, batch, epochs = config["out"], config["batch"], config["epochs"]
    lightning.seed_everything(7)
    steps = -(-config["samples"] // (batch * config["accumulate"])) * epochs
    watch, average = LedgerCallback(config), Average()
    saved = ModelCheckpoint(f"{out}/saved", save_top_k=-1, every_n_train_steps=config["every"])
    trainer = lightning.Trainer(
        strategy=shoal.lightning.Strategy(),
        accelerator="cpu",
        max_epochs=epochs,
        accumulate_grad_batches=config["accumulate"],
        limit_train_batches=config["limit"],
        callbacks=[watch, average, *([saved] if config["every"] else [])],
        gradient_clip_val=0.5,
        logger=False,
        enable_checkpointing=bool(config["every"]),
        enable_model_summary=False,
    )
    if config["checkpoint"]:
        shoal.join().checkpoint(config["checkpoint"], every=config["every"])
    module = Module(config["samples"], steps)
    load = torch.utils.data.DataLoader
    trainer.fit(
        module,
        load(Data(config["samples"]), batch_size=batch, shuffle=True),
        load(Data(37, seed=1), batch_size=4),
        ckpt_path=config["resume"],
    )
    job = shoal.join()
    weights = (module.state_dict(), average.sums)
    digests = [x["net.layers.0.weight"].sum().item().hex() for x in weights]
    told = [trainer.global_step, trainer.current_epoch, watch.epochs, *digests, module.trained]
    return [job.rank, job.size, told, module.validated]


if __name__ == "__main__":
    print("RESULT", json.dumps(main(json.loads(sys.argv[1]))), flush=True)
