"""A worker that computes: it trains a small convolution on the digits with PyTorch."""

from __future__ import annotations

import numpy as np
import numpy_digits
import torch
from torch import nn
from torch.nn import functional as F

import shoal.torch


def train(_, options):
    """Train by SGD until the job is ended, on one processor. Batch, range, rate and epochs are
    those of the options.
    """
    torch.set_num_threads(1)
    torch.manual_seed(options["seed"])
    images, labels, _, _ = numpy_digits.load(np.float32)
    data = torch.utils.data.TensorDataset(
        torch.from_numpy(images).view(-1, 1, 8, 8), torch.from_numpy(labels)
    )
    loader = shoal.torch.loader(
        data,
        options["batch"],
        seed=options["seed"],
        epochs=options["epochs"],
        batch_range=(options["least"], options["most"]),
    )
    model = shoal.torch.ddp(
        nn.Sequential(
            nn.Conv2d(1, 32, 3, padding=1),
            nn.ReLU(),
            nn.Conv2d(32, 64, 3, padding=1),
            nn.ReLU(),
            nn.MaxPool2d(2),
            nn.Flatten(),
            nn.Linear(1024, 10),
        )
    )
    optimizer = shoal.torch.optimizer(torch.optim.SGD(model.parameters(), lr=options["rate"] / 10))
    for x, y in loader:
        optimizer.zero_grad()
        F.cross_entropy(model(x), y).backward()
        optimizer.step()
