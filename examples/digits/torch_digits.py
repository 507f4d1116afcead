"""Handwritten digits in PyTorch: an ordinary training loop with DistributedDataParallel, whose
workers may come and go.

    $ shoal run -n 4 -- python3 examples/digits/torch_digits.py
    [0] step  102  loss 1.3951  accuracy 88.9 %
    [0] step  204  loss 0.5107  accuracy 95.0 %
    ...
    [0] 4 workers trained 2000 steps: accuracy 98.6 %

Without the launcher it is a job of one, which prints the same losses.
"""

import sys

import numpy as np
import shoal
import shoal.torch
import torch
from numpy_digits import BATCH, HIDDEN, MOMENTUM, RATE, SEED, load
from torch import nn
from torch.nn import functional as F


def train(job, steps, dtype=np.float32, watch=iter):
    """Trains for so many steps and returns the loss of every global batch, which does not depend on
    the number of workers. `watch` is called with the loader, and yields what that yields.
    """
    torch.manual_seed(SEED)
    images, labels, test_images, test_labels = [torch.from_numpy(part) for part in load(dtype)]
    # A data set of numbers, and a whole batch of images at once: a fast way for data that fits into
    # memory.
    loader = shoal.torch.loader(
        range(len(labels)),
        BATCH,
        seed=SEED,
        steps=steps,
        collate_fn=lambda i: (images[i], labels[i]),
    )
    model = nn.Sequential(nn.Linear(64, HIDDEN), nn.ReLU(), nn.Linear(HIDDEN, 10)).to(images.dtype)
    model = shoal.torch.ddp(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=RATE, momentum=MOMENTUM)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda done: 1 - done / steps)
    # so that workers that join get the state of both
    optimizer = shoal.torch.optimizer(optimizer, schedule)
    losses, epoch = [], 0
    for x, y in watch(loader):
        step = loader.step
        loss = F.cross_entropy(model(x), y)
        # the loss over all workers, in the step that the gradient commits
        mean = step.share(loss.detach().clone(), last=False)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        schedule.step()
        losses.append(mean.wait().item())
        done = step.number + 1
        if job.rank == 0 and (step.last or done == steps):
            report(
                job, model.module, np.mean(losses[epoch:]), test_images, test_labels, step, steps
            )
        epoch = len(losses) if step.last else epoch
    return losses


def report(job, model, loss, images, labels, step, steps):
    """Reports the progress after a step, with the accuracy on these images, and prints it; rank 0
    calls it.
    """
    with torch.no_grad():
        right = (model(images).argmax(dim=1) == labels).double().mean().item()
    done = step.number + 1
    job.report(step=done, loss=loss, accuracy=right, samples=step.after.committed())
    print(f"step {done:4d}  loss {loss:.4f}  accuracy {100 * right:.1f} %", flush=True)
    if done == steps:
        print(f"{job.size} workers trained {done} steps: accuracy {100 * right:.1f} %")


if __name__ == "__main__":
    train(shoal.join(), steps=int(sys.argv[1]) if len(sys.argv) > 1 else 2000)
