"""A worker that trains with PyTorch and writes checkpoints: model with dropout and batch norm,
Adam, a scheduler.

    checkpoint_torch.py FOLDER

The job kills itself before the step STOP of the environment, and compresses gradients as COMPRESS
says.
"""

import hashlib
import json
import os
import signal
import sys

import torch
from torch import nn

import shoal.torch

job = shoal.join()
torch.manual_seed(5 + job.rank)
x = torch.arange(240.0).reshape(60, 4) / 240
data = torch.utils.data.TensorDataset(x, x.sum(1, keepdim=True))
model = nn.Sequential(
    nn.Linear(4, 16), nn.BatchNorm1d(16), nn.Dropout(0.2), nn.Linear(16, 1).to(torch.float32)
)
loader = shoal.torch.loader(data, global_batch=12, epochs=8, seed=1)
wrapped = shoal.torch.ddp(model, compress=os.environ.get("COMPRESS"))
adam = torch.optim.Adam(model.parameters(), lr=0.01)
scheduler = torch.optim.lr_scheduler.StepLR(adam, step_size=7, gamma=0.5)
optimizer = shoal.torch.optimizer(adam, scheduler)
job.checkpoint(sys.argv[1], every=3)
first = None
for inputs, wanted in loader:
    first = loader.step.number if first is None else first
    if loader.step.number >= int(os.environ.get("STOP", 1 << 60)):
        os.kill(os.getpid(), signal.SIGKILL)
    optimizer.zero_grad()
    nn.functional.mse_loss(wrapped(inputs), wanted).backward()
    optimizer.step()
    scheduler.step()
found = hashlib.sha256(
    repr((model.state_dict(), adam.state_dict(), scheduler.last_epoch, torch.rand(3))).encode()
).hexdigest()
print("RESULT", json.dumps([job.rank, job.committed, job.digest(), found, first]), flush=True)
