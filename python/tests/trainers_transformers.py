"""A worker that trains with the Trainer of transformers, and writes down what each step had.

    trainers_transformers.py CONFIG END

CONFIG is JSON: `out` a folder, `gates` steps to wait at, `arguments` those of the Trainer,
`resume` for train(), and `checkpoint` a folder for the checkpoints of the job. END is not used.
With STOCK in the environment it is the Trainer of transformers itself. That calls the methods of
Watch, on the thread of the training loop.
"""

import json
import os
import pathlib
import sys

os.environ["HF_HUB_OFFLINE"] = "1"
# A Trainer imports DeepSpeed where it is installed, which takes two seconds of a processor.
sys.modules["deepspeed"] = None

import shoal
from trainers_common import (
    Data,
    Gates,
    Net,
    append_json_line,
    make_optimizer,
    make_scheduler,
    worker_number,
)

if os.environ.get("STOCK"):
    from transformers import Trainer
else:
    from shoal.transformers import Trainer
from transformers import EarlyStoppingCallback, TrainerCallback, TrainingArguments

DEFAULTS = dict(samples=96, evaluation=37, gates=[], arguments={}, resume=None, checkpoint=None)


class LedgerCallback(TrainerCallback):
    """Writes the ledger, and has a state: the number of steps that it has seen."""

    def __init__(self, config, net):
        """Open the ledger of this worker."""
        self.seen = 0
        self._net = net
        self._gates = Gates(config["out"], config["gates"])
        self._file = open(pathlib.Path(config["out"]) / f"ledger-{worker_number()}.jsonl", "a")

    def on_step_begin(self, args, state, control, **more):
        """Wait at a gate before the step."""
        self._gates.wait(args.process_index, state.global_step)

    def on_step_end(self, args, state, control, **more):
        """Write down the step."""
        self.seen += 1
        append_json_line(
            self._file,
            step=state.global_step,
            seen=self.seen,
            epoch=state.epoch,
            taken=self._net.take_marks(),
            digest=self._net.layers[0].weight.sum().item().hex(),
        )


class FallingRateTrainer(Trainer):
    """The Trainer with a scheduler that it makes itself when it begins, as those of its own are
    made: around what Accelerate has made of the optimizer.
    """

    def create_scheduler(self, num_training_steps, optimizer=None):
        """The scheduler of a training of so many steps."""
        if self.lr_scheduler is None:
            self.lr_scheduler = make_scheduler(self.optimizer, num_training_steps)
        return self.lr_scheduler


def accuracy(predicted):
    """The accuracy of predictions, from 0 to 1, as the Trainer asks for metrics."""
    return {
        "accuracy": float((predicted.predictions.argmax(1) == predicted.label_ids).mean())
    }


def main(config):
    """Train as the config says; return the rank, the size, and what all workers must have found
    alike, as a dict.
    """
    config = {**DEFAULTS, **config}
    job, out = shoal.join(), config["out"]
    net, data = Net(config["samples"]), Data(config["samples"])
    arguments = TrainingArguments(
        **{
            **dict(
                output_dir=f"{out}/hf",
                per_device_train_batch_size=8,
                num_train_epochs=3,
                logging_steps=4,
                report_to="none",
                use_cpu=True,
                save_strategy="no",
            ),
            **config["arguments"],
        }
    )
    trainer = FallingRateTrainer(
        model=net,
        args=arguments,
        train_dataset=data,
        eval_dataset=Data(config["evaluation"], seed=1),
        callbacks=[LedgerCallback(config, net)]
        + [EarlyStoppingCallback(3)] * arguments.load_best_model_at_end,
        compute_metrics=accuracy,
        optimizers=(make_optimizer(net), None),
    )
    if config["checkpoint"]:
        job.checkpoint(config["checkpoint"], every=4)
    result = trainer.train(resume_from_checkpoint=config["resume"])
    metrics = trainer.evaluate()
    state = trainer.state
    told = dict(
        step=state.global_step,
        loss=result.training_loss,
        evaluation=[metrics["eval_loss"], metrics["eval_accuracy"]],
        best=state.best_model_checkpoint and pathlib.Path(state.best_model_checkpoint).name,
        logs=[
            {k: line[k] for k in line if not k.endswith(("_runtime", "_per_second", "_time"))}
            for line in state.log_history
        ],
        digest=net.layers[0].weight.sum().item().hex(),
    )
    return [job.rank, job.size, told]


if __name__ == "__main__":
    print("RESULT", json.dumps(main(json.loads(sys.argv[1]))), flush=True)
