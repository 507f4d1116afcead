"""A worker that trains a GPT-2 with the Trainer of transformers.

    worker.py CONFIG

CONFIG is JSON: `out` a folder for notes and checkpoints, `shape`, `batch` the batch of the Trainer,
`steps` how many, `save` how many steps there are between two checkpoints (0 = none), and `trainer`
whose Trainer it is, "transformers" or "shoal".
"""

import json
import os
import pathlib
import sys

os.environ["HF_HUB_OFFLINE"] = "1"
CONFIG = json.loads(sys.argv[1])

import torch  # noqa: E402

if CONFIG["trainer"] == "shoal":
    from shoal.transformers import Trainer  # noqa: E402
else:
    from transformers import Trainer  # noqa: E402
from shape import Notes, model_of, rows_of  # noqa: E402
from transformers import TrainerCallback, TrainingArguments  # noqa: E402

WHOLE = "whole"  # a file in a checkpoint that was written to its end


class Rows(torch.utils.data.Dataset):
    """The data as the Trainer takes it: each row is the input and the labels."""

    def __init__(self, rows):
        """The rows of shape.rows_of."""
        self._rows = rows

    def __len__(self):
        """The number of rows."""
        return len(self._rows)

    def __getitem__(self, i):
        """A row by its number."""
        return {"input_ids": self._rows[i], "labels": self._rows[i]}


class Watch(TrainerCallback):
    """Notes the end of each step, and marks checkpoints that are whole. The Trainer calls its
    methods, on the thread of the loop.
    """

    def __init__(self, out):
        """Notes go into the folder `out`."""
        self._notes = Notes(out)

    def on_step_end(self, args, state, control, **more):
        """Note the step."""
        self._notes.ended(state.global_step, args.process_index)

    def on_save(self, args, state, control, **more):
        """Mark the checkpoint. Only rank 0 does."""
        if state.is_world_process_zero:
            (pathlib.Path(args.output_dir) / f"checkpoint-{state.global_step}" / WHOLE).touch()


def last_checkpoint(out):
    """Returns the path of the newest checkpoint in a folder that is whole; None where there is
    none.
    """
    found = {int(p.parent.name.split("-")[1]): p.parent for p in out.glob(f"checkpoint-*/{WHOLE}")}
    return str(found[max(found)]) if found else None


def main():
    """Train as CONFIG says, from the last checkpoint where there is one."""
    out = pathlib.Path(CONFIG["out"])
    arguments = TrainingArguments(
        str(out / "checkpoints"),
        max_steps=CONFIG["steps"],
        per_device_train_batch_size=CONFIG["batch"],
        save_strategy="steps" if CONFIG["save"] else "no",
        save_steps=CONFIG["save"] or 1,
        save_total_limit=2,
        logging_strategy="no",
        report_to="none",
        disable_tqdm=True,
        use_cpu=True,
    )
    trainer = Trainer(
        model=model_of(CONFIG["shape"]),
        args=arguments,
        train_dataset=Rows(rows_of(CONFIG["shape"])),
        callbacks=[Watch(out)],
    )
    trainer.train(resume_from_checkpoint=last_checkpoint(out / "checkpoints"))


if __name__ == "__main__":
    main()
