"""A GPT with a heavy head as a list of layers: what chains.py measures, plans and trains.

python3 chain_worker.py MESH trains until the job is stopped; rank 0 prints a line for each step.
"""

from __future__ import annotations

import sys
import time
from typing import Iterator, Tuple

import shoal
import shoal.torch
import torch
from torch import nn
from torch.nn import functional as F

BATCH, CONTEXT, WIDTH, HEADS, BLOCKS, VOCABULARY = 32, 64, 128, 4, 8, 8192
SAMPLES = 4096
tokens = torch.randint(
    0, VOCABULARY, (SAMPLES, CONTEXT + 1), generator=torch.Generator().manual_seed(1)
)


class Embed(nn.Module):
    """Tokens and their places as vectors."""

    def __init__(self) -> None:
        """With the values of torch."""
        super().__init__()
        self.tokens = nn.Embedding(VOCABULARY, WIDTH)
        self.places = nn.Embedding(CONTEXT, WIDTH)

    def forward(self, numbers: torch.Tensor) -> torch.Tensor:
        """Vectors of shape (samples, CONTEXT, WIDTH)."""
        return self.tokens(numbers) + self.places.weight


class Block(nn.Module):
    """A block of the transformer."""

    def __init__(self) -> None:
        """With the values of torch."""
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.qkv, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.up, self.down = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)
        self.register_buffer("future", torch.ones(CONTEXT, CONTEXT, dtype=torch.bool).triu(1))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """What the next layer gets."""
        q, k, v = self.qkv(self.norm1(x)).unflatten(-1, (3, HEADS, -1)).permute(2, 0, 3, 1, 4)
        scores = (q @ k.transpose(2, 3) * q.shape[-1] ** -0.5).masked_fill(self.future, -1e9)
        x = x + self.out((scores.softmax(3) @ v).transpose(1, 2).flatten(2))
        return x + self.down(F.gelu(self.up(self.norm2(x))))


def layers() -> Iterator[nn.Module]:
    """The model, a layer at a time."""
    yield Embed()
    for _ in range(BLOCKS):
        yield Block()
    yield nn.Sequential(nn.LayerNorm(WIDTH), nn.Linear(WIDTH, VOCABULARY))


def fetch(indices: torch.Tensor) -> Tuple[torch.Tensor, torch.Tensor]:
    """The tokens of some samples, and those that follow."""
    return tokens[indices, :-1], tokens[indices, 1:]


def loss(scores: torch.Tensor, following: torch.Tensor) -> torch.Tensor:
    """The mean loss."""
    return F.cross_entropy(scores.flatten(0, 1), following.flatten())


def optimizer(parameters: list) -> torch.optim.Optimizer:
    """AdamW."""
    return torch.optim.AdamW(parameters, 3e-4)


chain = shoal.torch.chain(layers, loss=loss, optimizer=optimizer)

if __name__ == "__main__":
    torch.set_num_threads(1)
    before = time.perf_counter()
    trained = chain.train(
        samples=SAMPLES, fetch=fetch, batch=BATCH, mesh=sys.argv[1], epochs=1 << 20
    )
    for step in trained:
        now = time.perf_counter()
        if shoal.join().rank == 0:
            print(f"STEP {step.number} on {step.mesh} took {now - before:.6f}", flush=True)
        before = now
