"""Train a classifier with PyTorch alone: a schedule, clipped gradients, validation after each
epoch, the best model kept, and early stopping. train.py beside it is the same for `shoal run`.
"""

import math
import sys

import torch
from torch.nn import functional as F
from torch.utils import data

EPOCHS, PATIENCE, FOLDER = 20, 3, sys.argv[1]

torch.manual_seed(0)
x = torch.randn(1200, 16)
y = (x[:, 0] * x[:, 1] + x[:, 2] > 0).long()
train, valid = data.TensorDataset(x[:1000], y[:1000]), data.TensorDataset(x[1000:], y[1000:])
loader = data.DataLoader(train, batch_size=50, shuffle=True)
model = torch.nn.Sequential(torch.nn.Linear(16, 32), torch.nn.ReLU(), torch.nn.Linear(32, 2))
optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, EPOCHS * 20)
best = {"loss": math.inf, "epoch": 0}


def total_loss(samples):
    """The sum of the losses of some samples of the validation."""
    with torch.no_grad():
        x, y = valid[samples]
        return F.cross_entropy(model(x), y, reduction="sum").item()


for epoch in range(EPOCHS):
    for x, y in loader:
        optimizer.zero_grad()
        F.cross_entropy(model(x), y).backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
    loss = total_loss(range(200)) / 200
    print(f"epoch {epoch}: loss {loss:.4f}")
    if loss < best["loss"]:
        best.update(loss=loss, epoch=epoch)
        torch.save(model.state_dict(), f"{FOLDER}/best.pt")
    elif epoch - best["epoch"] >= PATIENCE:
        break
print(f"best: epoch {best['epoch']}, loss {best['loss']:.4f}")
