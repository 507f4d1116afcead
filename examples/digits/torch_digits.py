"""Handwritten digits in PyTorch: DistributedDataParallel on shoal, in an ordinary training loop.

    $ shoal run -n 4 -- python3 examples/digits/torch_digits.py
    [0] step  102  loss 1.3691  accuracy 87.7 %
    [0] step  204  loss 0.5311  accuracy 90.8 %
    ...
    [0] 4 workers trained 2000 steps: accuracy 98.3 %

Without the launcher it is a job of one, which prints the same losses.
"""

import sys

import numpy as np
import shoal
import shoal.torch
import torch
from numpy_digits import HIDDEN, MOMENTUM, RATE, SEED, batches, load
from torch import nn
from torch.nn import functional as F


def train(job, steps, dtype=np.float32):
    """Trains and returns the loss of every global batch, which does not depend on the number of workers."""
    torch.manual_seed(SEED)
    images, labels, test_images, test_labels = [torch.from_numpy(part) for part in load(dtype)]
    model = nn.Sequential(nn.Linear(64, HIDDEN), nn.ReLU(), nn.Linear(HIDDEN, 10)).to(images.dtype)
    model = shoal.torch.ddp(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=RATE, momentum=MOMENTUM)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda done: 1 - done / steps)
    losses, samples, epoch = torch.zeros(steps, dtype=images.dtype), 0, 0
    for step, (batch, last) in enumerate(batches(len(labels), steps, SEED), 1):
        mine = batch[job.rank * len(batch) // job.size:(job.rank + 1) * len(batch) // job.size]
        # This rank's part of the mean over the global batch. DDP takes the mean of the ranks' gradients: hence job.size.
        loss = F.cross_entropy(model(images[mine]), labels[mine], reduction="sum") / len(batch)
        optimizer.zero_grad()
        (loss * job.size).backward()
        optimizer.step()
        schedule.step()
        losses[step - 1] = loss.detach()
        samples += len(batch)
        if last or step == steps:
            job.allreduce(losses[epoch:step], op="sum")
            if job.rank == 0:
                report(job, model.module, losses[epoch:step], test_images, test_labels, step, steps, samples)
            epoch = step
    return losses.tolist()


def report(job, model, losses, images, labels, step, steps, samples):
    with torch.no_grad():
        right = (model(images).argmax(dim=1) == labels).double().mean().item()
    loss = losses.mean().item()
    job.report(step=step, loss=loss, accuracy=right, samples=samples)
    print(f"step {step:4d}  loss {loss:.4f}  accuracy {100 * right:.1f} %", flush=True)
    if step == steps:
        print(f"{job.size} workers trained {step} steps: accuracy {100 * right:.1f} %")


if __name__ == "__main__":
    train(shoal.join(), steps=int(sys.argv[1]) if len(sys.argv) > 1 else 2000)
