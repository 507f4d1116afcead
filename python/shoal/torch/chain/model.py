"""Models that are a list of layers, trained on any mesh of replicas and pipeline stages."""

from __future__ import annotations

from typing import Any, Callable, Iterable, Iterator, Optional, Tuple

import torch
from torch import nn

import shoal
from shoal._runtime.arguments import wrong_type
from shoal.live import Trained

from .layers import Layers, Optimizers
from .planned import read_mesh
from .stage import Program, Stage


class Chain:
    """A model that is a list of layers, which `chain` makes. The thread of the training loop uses
    it.
    """

    def __init__(
        self,
        layers: Callable[[], Iterable[nn.Module]],
        loss: Callable[[Any, Any], torch.Tensor],
        optimizer: Optimizers,
        schedule: Optional[Callable[[int], float]] = None,
    ) -> None:
        """As `chain` says."""
        for name, given in (("layers", layers), ("loss", loss), ("optimizer", optimizer)):
            if not callable(given):
                raise wrong_type(name, given, "a function")
        if isinstance(layers, nn.Module):  # which is callable
            raise wrong_type("layers", layers, "a function that gives modules, as lambda: model")
        if schedule is not None and not callable(schedule):
            raise wrong_type("schedule", schedule, "a function of the number of a step, or None")
        self.layers, self.loss, self.optimizer, self.schedule = layers, loss, optimizer, schedule

    def train(
        self,
        *,
        samples: int,
        fetch: Callable[[torch.Tensor], Tuple[Any, Any]],
        batch: int,
        mesh: str = "dp=1",
        seed: int = 0,
        epochs: Optional[int] = None,
        steps: Optional[int] = None,
        shuffle: bool = True,
    ) -> Iterator[Trained]:
        """Train, and yield every step that is committed, as shoal.train does. All workers call it
        alike.

        `fetch(indices)` gives the samples with these numbers, which are an int64 tensor: what goes
        into the first layer, a tensor or a tuple of them, and what the loss is to be compared with.
        It gives the same for the same numbers, because the first and the last stage both call it.

        `mesh` is what the job begins with, of the axes dp and pp: its text, such as
        "dp=2,pp=2(8/6;micro=4;ahead=3/1)", or the name of a file that `shoal plan -o` has written.
        Where it does not say how large a micro-batch is, each stage makes four for each stage.
        `seed` is that of the first values of the parameters and of the order of the samples. The
        other arguments are those of shoal.train.

        Raises ShoalError where a chain cannot train the model, with the path of the module, and
        ValueError for a mesh that does not fit it, with what would.
        """
        if not callable(fetch):
            raise wrong_type("fetch", fetch, "a function that gives inputs and targets of samples")
        layers = Layers(self.layers, self.optimizer, seed)
        program = Program(self.loss, self.optimizer, self.schedule, fetch)
        return shoal.train(
            lambda mesh: Stage(layers, program, mesh),
            layout=layers.layout(),
            catalogue=layers.catalogue(),
            mesh=read_mesh(mesh, len(layers)),
            samples=samples,
            batch=batch,
            seed=seed,
            epochs=epochs,
            steps=steps,
            shuffle=shuffle,
        )


def chain(
    layers: Callable[[], Iterable[nn.Module]],
    *,
    loss: Callable[[Any, Any], torch.Tensor],
    optimizer: Optimizers,
    schedule: Optional[Callable[[int], float]] = None,
) -> Chain:
    """A model that is a list of layers, to be trained on any mesh of replicas and pipeline stages.

        chain = shoal.torch.chain(
            lambda: [Embed(), *(Block() for _ in range(12)), Head()],
            loss=F.cross_entropy,
            optimizer=lambda parameters: torch.optim.AdamW(parameters, 3e-4),
        )
        for step in chain.train(samples=len(data), fetch=data.take, batch=96, mesh="pp=2"):
            print(step.number, step.loss)

    `layers()` gives the modules, or yields them, of which each gets what the one before gives: a
    tensor, or the tensors of a tuple as arguments. They begin with the values that their modules
    give them, by a seed, so the losses are the same on every mesh, to rounding, but for layers that
    draw random numbers, such as Dropout. A worker has
    memory for its own layers alone; while training begins, for all that `layers` makes at once,
    which is one where it is a generator.

    `loss(outputs, targets)` is the mean over the samples. `optimizer(parameters)` makes an
    optimizer of torch for the parameters of a stage. With `schedule` the learning rate of step n,
    counted from 0, is that of the optimizer times schedule(n).

    Not for a chain: parameters that two layers share, layers that take statistics over a batch,
    such as BatchNorm, and tensors on a GPU.
    """
    return Chain(layers, loss, optimizer, schedule)
