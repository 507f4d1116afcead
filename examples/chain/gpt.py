"""A GPT as a list of layers: measured, planned over two workers, and trained by the plan.

    $ export TEXT=$(go env GOROOT)/src/testdata/Isaac.Newton-Opticks.txt OMP_NUM_THREADS=1
    $ mkdir -p build && GPT=examples/chain/gpt.py
    $ python3 -m shoal.torch.profile $GPT:chain --sample $GPT:fetch --micro 2,4 -o build/model.json
    $ shoal plan build/model.json --cluster examples/chain/hosts.json --batch 16 -o build/plan.json
    $ shoal run -n 2 -- python3 $GPT build/plan.json
    6 layers, 2 sizes of micro-batches: forward, backward by input and by weights, update; ...
    plan        ... on 2 workers of cpu
    predicted   ...
    ...
    [0] step    1  loss 4.6306  on ...
    [0] step   50  loss 2.7216  on ...

It trains on any other mesh of replicas and stages too, with the same losses: the argument is a
plan, or the text of a mesh, such as dp=1 for a job of one.
"""

import os
import sys

import shoal
import shoal.torch
import torch
from torch import nn
from torch.nn import functional as F

CONTEXT, WIDTH, HEADS, BLOCKS, STEPS, BATCH = 32, 48, 4, 4, 50, 16
with open(os.environ["TEXT"], encoding="utf-8") as file:
    book = file.read()
alphabet = {character: i for i, character in enumerate(sorted(set(book)))}
data = torch.tensor([alphabet[character] for character in book])


class Embed(nn.Module):
    """Characters and their places as vectors."""

    def __init__(self):
        """With the values of torch."""
        super().__init__()
        self.characters = nn.Embedding(len(alphabet), WIDTH)
        self.places = nn.Embedding(CONTEXT, WIDTH)

    def forward(self, numbers):
        """Vectors of shape (samples, CONTEXT, WIDTH)."""
        return self.characters(numbers) + self.places.weight


class Block(nn.Module):
    """A block of the transformer: attention to the characters before, and a perceptron."""

    def __init__(self):
        """With the values of torch."""
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.attention = nn.MultiheadAttention(WIDTH, HEADS, batch_first=True)
        self.perceptron = nn.Sequential(
            nn.Linear(WIDTH, 4 * WIDTH), nn.GELU(), nn.Linear(4 * WIDTH, WIDTH)
        )
        self.register_buffer("future", torch.ones(CONTEXT, CONTEXT, dtype=torch.bool).triu(1))

    def forward(self, x):
        """What the next layer gets."""
        y = self.norm1(x)
        x = x + self.attention(y, y, y, attn_mask=self.future, need_weights=False)[0]
        return x + self.perceptron(self.norm2(x))


def layers():
    """The model, a layer at a time."""
    yield Embed()
    for _ in range(BLOCKS):
        yield Block()
    yield nn.Sequential(nn.LayerNorm(WIDTH), nn.Linear(WIDTH, len(alphabet)))


def fetch(starts):
    """Windows of the text that begin at these places, and the characters that follow."""
    windows = data[starts[:, None] + torch.arange(CONTEXT + 1)]
    return windows[:, :-1], windows[:, 1:]


chain = shoal.torch.chain(
    layers,
    loss=lambda scores, following: F.cross_entropy(scores.flatten(0, 1), following.flatten()),
    optimizer=lambda parameters: torch.optim.AdamW(parameters, 3e-3),
)

if __name__ == "__main__":
    samples, mesh = len(data) - CONTEXT, sys.argv[1]
    for step in chain.train(samples=samples, fetch=fetch, batch=BATCH, mesh=mesh, steps=STEPS):
        if shoal.join().rank == 0 and step.number in (0, STEPS - 1):
            print(f"step {step.number + 1:4d}  loss {step.loss:.4f}  on {step.mesh}", flush=True)
