"""A job whose batch follows what is measured: the program opens it, and shoal changes it where that
trains faster.

    $ shoal run -n 2 --auto -- python3 examples/auto/train.py 2
    ...
    [0] epoch 0  batch 32  loss 0.5741
    [0] epoch 1  batch 64  loss 0.4712
    [0] 2 workers trained 2 epochs

What is changed stands between the lines of the epochs, with its reason, what was predicted, and
what came of it; `shoal explain train` says it again, and why nothing was changed. The argument is
the number of epochs. Works alone, too, where the batch stays.
"""

import sys

import shoal
import shoal.torch
import torch
from torch.nn import functional as F


def dataset(samples, seed):
    """Points and the class that a hidden linear rule gives each, with some noise."""
    draws = torch.Generator().manual_seed(seed)
    points = torch.randn(samples, 32, generator=draws)
    rule = torch.randn(32, 10, generator=torch.Generator().manual_seed(0))
    noise = torch.randn(samples, 10, generator=draws)
    return torch.utils.data.TensorDataset(points, (points @ rule + noise).argmax(1))


def main(epochs):
    """Train for so many epochs; rank 0 prints the loss on other points after each."""
    torch.manual_seed(1)
    torch.set_num_threads(1)
    loader = shoal.torch.loader(dataset(20_000, 1), global_batch=32, batch_range=(32, 2048))
    model = torch.nn.Sequential(torch.nn.Linear(32, 256), torch.nn.ReLU(), torch.nn.Linear(256, 10))
    ddp = shoal.torch.ddp(model)
    # The learning rate follows the batch during each step: schedules do not see it.
    optimizer = shoal.torch.optimizer(torch.optim.SGD(model.parameters(), lr=0.05))
    points, classes = dataset(2_000, 2).tensors
    job = shoal.join()
    for epoch in loader.epochs(epochs):
        for x, y in loader:
            optimizer.zero_grad()
            F.cross_entropy(ddp(x), y).backward()
            optimizer.step()
        if job.rank == 0:
            with torch.no_grad():
                loss = F.cross_entropy(model(points), classes)
            print(f"epoch {epoch}  batch {loader.place.batch}  loss {loss:.4f}", flush=True)
    if job.rank == 0:
        print(f"{job.size} workers trained {epochs} epochs")


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 10)
