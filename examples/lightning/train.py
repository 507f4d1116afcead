"""A small GPT-2 learns to write like Newton, byte by byte, by the Trainer of Lightning on workers
that may come and go. One argument is not Lightning's own: the strategy.

    $ TEXT=$(go env GOROOT)/src/testdata/Isaac.Newton-Opticks.txt
    $ shoal run -n 2 -- python3 examples/lightning/train.py $TEXT
    ...
    [0] epoch 0  loss 3.3883  validation 3.1369
    [0] epoch 1  loss 2.9044  validation 2.6446
    ...
"""

import sys

import lightning
import shoal.lightning
import torch
from torch.utils.data import DataLoader
from transformers import GPT2Config, GPT2LMHeadModel

CONTEXT = 64


class Newton(lightning.LightningModule):
    """The model, whose methods the Trainer calls."""

    def __init__(self):
        super().__init__()
        shape = dict(vocab_size=256, n_positions=CONTEXT, n_embd=64, n_layer=2, n_head=4)
        self.gpt = GPT2LMHeadModel(GPT2Config(bos_token_id=0, eos_token_id=0, **shape))

    def training_step(self, batch, _):
        loss = self.gpt(batch, labels=batch).loss
        self.log("loss", loss, on_epoch=True, on_step=False)
        return loss

    def validation_step(self, batch, _):
        self.log("validation", self.gpt(batch, labels=batch).loss)

    def on_train_epoch_end(self):
        loss, validation = (self.trainer.callback_metrics[k] for k in ("loss", "validation"))
        if self.trainer.is_global_zero:
            print(f"epoch {self.current_epoch}  loss {loss:.4f}  validation {validation:.4f}")

    def configure_optimizers(self):
        return torch.optim.AdamW(self.parameters(), lr=3e-3)


def windows(text):
    """The rows of CONTEXT bytes of a text, without a rest."""
    return torch.tensor(list(text[: len(text) // CONTEXT * CONTEXT])).view(-1, CONTEXT)


with open(sys.argv[1], "rb") as file:
    text = file.read()[:140_000]
lightning.seed_everything(1)
silent = dict(logger=False, enable_checkpointing=False, enable_progress_bar=False)
trainer = lightning.Trainer(strategy=shoal.lightning.Strategy(), max_epochs=4, **silent)
loader = DataLoader(windows(text[:-10_000]), batch_size=32, shuffle=True)
trainer.fit(Newton(), loader, DataLoader(windows(text[-10_000:]), batch_size=32))
