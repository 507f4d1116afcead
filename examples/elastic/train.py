"""Train a classifier on workers that come and go: plain.py beside it, with the lines changed that
shoal needs. Start it again after any end, and it goes on from its last checkpoint.

    $ shoal run -n 2 --min 1 --prefork torch -- python3 examples/elastic/train.py $(mktemp -d)
    ...
    [0] epoch 0: loss 0.3866
    ...
    [0] best: epoch 16, loss 0.1320
    ...
"""

import math
import sys

import torch
from torch.nn import functional as F
from torch.utils import data

import shoal.torch

EPOCHS, PATIENCE, FOLDER = 20, 3, sys.argv[1]

torch.manual_seed(0)
x = torch.randn(1200, 16)
y = (x[:, 0] * x[:, 1] + x[:, 2] > 0).long()
train, valid = data.TensorDataset(x[:1000], y[:1000]), data.TensorDataset(x[1000:], y[1000:])
job = shoal.join()
loader = shoal.torch.loader(train, global_batch=50)
model = torch.nn.Sequential(torch.nn.Linear(16, 32), torch.nn.ReLU(), torch.nn.Linear(32, 2))
model = shoal.torch.ddp(model)
optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, EPOCHS * 20)
best = {"loss": math.inf, "epoch": 0}
job.register("best", lambda: best, best.update)
job.checkpoint(f"{FOLDER}/checkpoints")


def total_loss(samples):
    """The sum of the losses of some samples of the validation."""
    with torch.no_grad():
        x, y = valid[samples]
        return F.cross_entropy(model(x), y, reduction="sum").item()


for epoch in loader.epochs(EPOCHS):
    for x, y in loader:
        optimizer.zero_grad()
        F.cross_entropy(model(x), y).backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
    loss = sum(job.evaluate(200, total_loss)) / 200
    if job.first:
        print(f"epoch {epoch}: loss {loss:.4f}")
    if loss < best["loss"]:
        best.update(loss=loss, epoch=epoch)
        if job.first:
            torch.save(model.module.state_dict(), f"{FOLDER}/best.pt")
    elif epoch - best["epoch"] >= PATIENCE:
        break
if job.first:
    print(f"best: epoch {best['epoch']}, loss {best['loss']:.4f}")
