"""A chain of small layers of several kinds: what test_chain.py trains, on meshes and alone."""

import json
import pathlib
import sys

import shoal
import shoal.torch
import torch
from running_job import sleep_if_slowed
from shoal.cursor import Cursor
from shoal.torch.chain.layers import Layers
from shoal.torch.chain.stage import Program, Stage
from torch import nn
from torch.nn import functional as F

SAMPLES, BATCH, CONTEXT, WIDTH, VOCABULARY, SEED = 90, 12, 5, 8, 11, 3
DATA = torch.randint(
    0, VOCABULARY, (SAMPLES, CONTEXT + 1), generator=torch.Generator().manual_seed(1)
)


class Embed(nn.Module):
    """Numbers of characters as vectors, and which of them count, which has no gradient."""

    def __init__(self):
        """As training begins."""
        super().__init__()
        self.characters = nn.Embedding(VOCABULARY, WIDTH)
        self.places = nn.Parameter(torch.randn(CONTEXT, WIDTH) / 9)

    def forward(self, numbers):
        """Vectors of shape (samples, CONTEXT, WIDTH), and the mask."""
        return self.characters(numbers) + self.places, numbers > 2


class Block(nn.Module):
    """A perceptron beside its input, with a buffer that stays as it is."""

    def __init__(self):
        """As training begins."""
        super().__init__()
        self.inside = nn.Sequential(
            nn.LayerNorm(WIDTH), nn.Linear(WIDTH, 20), nn.Tanh(), nn.Linear(20, WIDTH)
        )
        self.register_buffer("weights", torch.linspace(0.5, 1, CONTEXT)[:, None])

    def forward(self, x, mask):
        """What goes to the next block: the vectors that count are changed."""
        return x + self.inside(x) * self.weights * mask[..., None], mask


class Head(nn.Module):
    """The scores of the next characters; a part of it is not trained."""

    def __init__(self):
        """As training begins."""
        super().__init__()
        self.scores = nn.Linear(WIDTH, VOCABULARY)
        self.scores.bias.requires_grad_(False)

    def forward(self, x, _):
        """Scores of shape (samples, CONTEXT, VOCABULARY)."""
        return self.scores(x)


def layers():
    """The layers, one at a time."""
    torch.set_default_dtype(torch.float64)
    yield Embed()
    for _ in range(3):
        yield Block()
    yield Head()


def fetch(indices):
    """The characters of some samples, and those that follow."""
    return DATA[indices, :-1], DATA[indices, 1:]


def loss(scores, following):
    """The mean loss."""
    return F.cross_entropy(scores.flatten(0, 1), following.flatten())


def adam(parameters):
    """The optimizer of most tests."""
    return torch.optim.AdamW(parameters, 1e-2)


def rate(step):
    """The factor of the learning rate."""
    return 1 / (1 + step / 10)


CHAIN = shoal.torch.chain(layers, loss=loss, optimizer=adam, schedule=rate)


def batches():
    """The samples of all steps, in the order of the job."""
    place = Cursor.start(SAMPLES, BATCH, SEED)
    while True:
        yield place.order().take(place.part(0, 1))
        place = place.commit(1, [True])


def plain_losses():
    """Yields the losses of a plain loop of torch, without chain: whole batches, one model."""
    modules = [module for _, module in Layers(layers, adam, SEED).initial_layers()]
    optimizer = adam([p for m in modules for p in m.parameters() if p.requires_grad])
    for step, indices in enumerate(batches()):
        inputs, targets = fetch(torch.as_tensor(indices))
        x = (inputs,)
        for module in modules:
            y = module(*x)
            x = y if isinstance(y, tuple) else (y,)
        value = loss(x[0], targets)
        optimizer.zero_grad()
        value.backward()
        optimizer.param_groups[0]["lr"] = 1e-2 * rate(step)
        optimizer.step()
        yield value.item()


def curve(job, mesh, steps):
    """The losses of so many steps on a mesh, from the beginning; all ranks make them together."""
    program = Program(loss, adam, rate, fetch)
    stage = Stage(Layers(layers, adam, SEED), program, job.mesh(mesh))
    stage.initialize()
    losses = []
    for _, indices in zip(range(steps), batches()):
        losses.append(job.allreduce(stage.gradients(indices)).item())
        stage.update()
    return losses


def main(mesh, steps, *files):
    """Train by CHAIN, and print every step; until the last of the files is there, if one is given.
    Checkpoints are made when the job is parked, in the folder that is named before it.
    """
    *folder, end = files or (None,)
    if folder:
        shoal.join().checkpoint(folder[0], every=1 << 20)
    trained = CHAIN.train(
        samples=SAMPLES, fetch=fetch, batch=BATCH, mesh=mesh, seed=SEED, steps=int(steps)
    )
    for step in trained:
        if shoal.join().rank == 0:
            print(f"STEP {step.number} on {step.mesh} loss {step.loss!r}", flush=True)
        if end:
            sleep_if_slowed(end)
    print("RELEASED" if shoal.join().released else "END", flush=True)


if __name__ == "__main__":
    torch.set_num_threads(1)
    if sys.argv[1] == "curves":
        folder, steps, *meshes = sys.argv[2:]
        job = shoal.join()
        found = {mesh: curve(job, mesh, int(steps)) for mesh in meshes}
        pathlib.Path(folder, str(job.rank)).write_text(json.dumps(found))
    else:
        main(*sys.argv[1:])
