"""Train a classifier with workers that make eight steps by themselves, and then move their common
parameters (DiLoCo): for slow cables. Kill a worker at any moment, and the others go on. A second
argument is another way to synchronise.

    $ shoal run -n 2 --min 1 --prefork torch -- python3 examples/local/train.py $(mktemp -d)
    ...
    [0] epoch 0: loss 0.4176
    ...
    [0] epoch 9: loss 0.1442
    ...
"""

import sys

import shoal.torch
import torch
from torch.nn import functional as F
from torch.utils import data

FOLDER, SYNC = sys.argv[1], (sys.argv[2:] or ["diloco:every=8,momentum=0.5"])[0]

torch.manual_seed(0)
x = torch.randn(1200, 16)
y = (x[:, 0] * x[:, 1] + x[:, 2] > 0).long()
train, valid = data.TensorDataset(x[:1000], y[:1000]), data.TensorDataset(x[1000:], y[1000:])
job = shoal.join()
loader = shoal.torch.loader(train, global_batch=40)
model = torch.nn.Sequential(torch.nn.Linear(16, 32), torch.nn.ReLU(), torch.nn.Linear(32, 2))
optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
optimizer = shoal.torch.optimizer(optimizer, model, sync=SYNC)
job.checkpoint(f"{FOLDER}/checkpoints")


def total_loss(samples):
    """The sum of the losses of some samples of the validation."""
    with torch.no_grad():
        x, y = valid[samples]
        return F.cross_entropy(model(x), y, reduction="sum").item()


for epoch in loader.epochs(10):
    for x, y in loader:
        optimizer.zero_grad()
        F.cross_entropy(model(x), y).backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)  # those of this worker
        optimizer.step()
    with optimizer.anchor():  # the parameters that all workers agree on
        loss = sum(job.evaluate(200, total_loss)) / 200
    if job.first:
        print(f"epoch {epoch}: loss {loss:.4f}")
with optimizer.anchor():
    if job.first:
        torch.save(model.state_dict(), f"{FOLDER}/model.pt")
