"""A paced worker that trains by PyTorch, for sync.py: its compute is sleeps within the forward and
the backward pass, off the processor as on a GPU.

usage: sync_worker.py OPTIONS, a JSON object: `system` is shoal, torchft or hivemind, `sync` how
workers synchronise, `workers` their number, `batch` the samples of a step over all of them, `a` and
`b` the seconds of a step of n samples, a + b · n, which are `slow` times as many on the worker
`slow_worker`; `samples` are those of an epoch, `width` is that of the layers, and `out` a folder
for what the worker writes down. With `noisy` samples differ, and so do their gradients.

Each worker has a file there, with a line for each commit: when it was, and how many samples were
committed by all workers until then. Torchft and hivemind know no order of samples, so there a
commit counts the samples of the workers that had a part in it.
"""

from __future__ import annotations

import json
import os
import pathlib
import sys
import time
from typing import Any

import torch
from torch import Tensor, nn

LAYERS = 4


class Sleep(torch.autograd.Function):
    """The identity, which takes its time: once in the forward pass, and twice in the backward."""

    @staticmethod
    def forward(context: Any, x: Tensor, seconds: float) -> Tensor:
        """x, after so many seconds."""
        context.seconds = seconds
        time.sleep(seconds)
        return x.view_as(x)

    @staticmethod
    def backward(context: Any, *gradients: Tensor) -> Any:
        """The gradient as it is, after twice the seconds."""
        time.sleep(2 * context.seconds)
        return gradients[0], None


class Paced(nn.Module):
    """Layers with as many inputs as outputs, of which each takes its part of a step's time."""

    def __init__(self, options: dict):
        """The model of the options, with the same parameters on all workers."""
        super().__init__()
        torch.manual_seed(1)
        self._options, self.factor = options, 1.0
        width = options["width"]
        self.layers = nn.ModuleList(nn.Linear(width, width) for _ in range(LAYERS))

    def forward(self, x: Tensor) -> Tensor:
        """What the layers make of the samples x."""
        seconds = self._options["a"] + self._options["b"] * len(x)
        for layer in self.layers:
            x = Sleep.apply(layer(x), self.factor * seconds / 3 / LAYERS)
        return x


class Numbered(torch.utils.data.Dataset):
    """Samples with their numbers."""

    def __init__(self, options: dict):
        """As many samples as the options say, as wide as the layers."""
        self._width, self._samples = options["width"], options["samples"]
        self._noisy = options.get("noisy", False)

    def __len__(self) -> int:
        """How many there are."""
        return self._samples

    def __getitem__(self, i: int) -> Any:
        """A sample and its number."""
        if self._noisy:
            return torch.randn(self._width, generator=torch.Generator().manual_seed(i)), i
        return torch.ones(self._width), i


class Notes:
    """What a worker writes down."""

    def __init__(self, options: dict, number: int):
        """Into a file of its own, in the folder of the options."""
        path = pathlib.Path(options["out"]) / f"worker{number}-{os.getpid()}.jsonl"
        self._file = open(path, "w")
        self._begun = dict(worker=number, pid=os.getpid())

    def write(self, **line: Any) -> None:
        """Write down a line, with the time."""
        line.update(at=time.time(), **self._begun)
        print(json.dumps(line), file=self._file, flush=True)


def train(model: Paced, optimizer: torch.optim.Optimizer, x: Tensor) -> None:
    """Make one step with the samples x."""
    optimizer.zero_grad()
    model(x).square().mean().backward()
    optimizer.step()


def by_shoal(options: dict) -> None:
    """Train in a job of shoal until that is ended."""
    import shoal
    import shoal.torch

    job, number = shoal.join(), int(os.environ["SHOAL_RANK"])
    late = job.outside
    notes = Notes(options, number)
    loader = shoal.torch.loader(Numbered(options), options["batch"], seed=1, epochs=1 << 20)
    model: Any = Paced(options)
    model.factor = options["slow"] if number == options["slow_worker"] else 1
    inner = torch.optim.SGD(model.parameters(), lr=1e-3)
    if options["sync"] == "ssgd":
        model = shoal.torch.ddp(model)
        optimizer = shoal.torch.optimizer(inner)
    else:
        optimizer = shoal.torch.optimizer(inner, model, sync=options["sync"])
    own: list = []
    for x, indices in loader:
        step = loader.step
        assert step is not None
        own = [] if step.local_index == 0 else own
        own += indices.tolist() if step.local_weight else []
        train(model, optimizer, x)
        if step.ends_round:
            line = dict(samples=step.after.committed(), epoch=step.epoch, step=step.number)
            notes.write(**line, own=own, size=job.size, late=late)


def main(options: dict) -> None:
    """Train as the options say."""
    torch.set_num_threads(1)
    if options["system"] == "shoal":
        by_shoal(options)
    else:
        import sync_peers

        sync_peers.SYSTEMS[options["system"]](options)


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
