"""A small GPT-2 learns to write like Newton, byte by byte, by the Trainer of transformers, on
workers that may come and go. One line is not transformers' own: the import of Trainer.

    $ TEXT=$(go env GOROOT)/src/testdata/Isaac.Newton-Opticks.txt
    $ shoal run -n 2 -- python3 examples/transformers/finetune.py $TEXT
    ...
    [0] {'loss': '3.878', ...
    ...
    ...
    [0] from loss 3.445 to loss 2.612
"""

import sys

import torch
from shoal.transformers import Trainer
from transformers import GPT2Config, GPT2LMHeadModel, TrainingArguments, set_seed

CONTEXT = 64


class Windows(torch.utils.data.Dataset):
    """A text, bytes, in windows of CONTEXT bytes, each the input and the labels."""

    def __init__(self, text):
        self.rows = torch.tensor(list(text[: len(text) // CONTEXT * CONTEXT])).view(-1, CONTEXT)

    def __len__(self):
        return len(self.rows)

    def __getitem__(self, i):
        return {"input_ids": self.rows[i], "labels": self.rows[i]}


with open(sys.argv[1], "rb") as file:
    text = file.read()
set_seed(1)
shape = dict(vocab_size=256, n_positions=CONTEXT, n_embd=64, n_layer=2, n_head=4)
model = GPT2LMHeadModel(GPT2Config(bos_token_id=0, eos_token_id=0, **shape))
trainer = Trainer(
    model=model,
    args=TrainingArguments(
        "build/finetune",
        max_steps=90,
        per_device_train_batch_size=32,
        learning_rate=3e-3,
        logging_steps=20,
        eval_strategy="steps",
        eval_steps=30,
        save_strategy="no",
        disable_tqdm=True,
    ),
    train_dataset=Windows(text[:-10_000]),
    eval_dataset=Windows(text[-10_000:]),
)
trainer.train()
losses = [line["loss"] for line in trainer.state.log_history if "loss" in line]
if trainer.is_world_process_zero():
    print(f"from loss {losses[0]:.3f} to loss {losses[-1]:.3f}")
