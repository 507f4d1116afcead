"""A small training with local steps, for tests that play the agent of a job of one."""

import torch
from torch import nn, optim

import shoal
import shoal.torch


def make_data():
    """A data set of 48 samples."""
    x = torch.randn(48, 4, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    return torch.utils.data.TensorDataset(x, x.sum(1, keepdim=True))


def make_model():
    """A small model with a batch norm."""
    torch.manual_seed(1)
    return nn.Sequential(nn.Linear(4, 3), nn.BatchNorm1d(3), nn.Linear(3, 1)).double()


def make_parts(sync, rate=0.1, kind=optim.SGD, **options):
    """A loader, a model and an optimizer of a kind with that `sync`."""
    loader = shoal.torch.loader(make_data(), global_batch=6, **options)
    model = make_model()
    return loader, model, shoal.torch.optimizer(
        kind(model.parameters(), lr=rate), model, sync=sync
    )


def backward(model, x, y):
    """Compute the gradients of a batch."""
    model.zero_grad()
    ((model(x) - y) ** 2).mean().backward()


def values_of(model):
    """The parameters of a model, as one tensor of its own."""
    return torch.cat([p.detach().reshape(-1) for p in model.parameters()])


def anchor_of(optimizer, model):
    """The anchor of a model's parameters, as one tensor."""
    with optimizer.anchor():
        return values_of(model)
