#!/usr/bin/env python3
"""Measures what strategies of local steps do to the loss of a longer training, on a GPU.

usage: python3 bench/loop/strategies_gpu.py --text FILE [--steps N] [--batch N] [--seeds N]
       [--rates A,B] [--sync TEXT ...] [--device cuda]

The GPT and the schedule of strategies.py. A model so small keeps no GPU busy, so all replicas of
all strategies, learning rates and seeds are stacked and make each step together: a training of
3,000 steps with four strategies, three rates and three seeds takes a minute on an H200. Commits are
those of shoal.sync.
"""

from __future__ import annotations

import argparse
import math
import pathlib
import statistics
import sys
import time
from typing import Any, Dict, List, Tuple

import torch
from torch import Tensor
from torch.func import functional_call, vmap
from torch.nn import functional as F

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / folder) for folder in ("python", "examples/gpt")]

from model import GPT  # noqa: E402
from shoal.sync import parse, partners  # noqa: E402
from shoal.sync.matching import part_of_step  # noqa: E402

WORKERS, CONTEXT = 4, 32
BETAS, EPS, DECAY = (0.9, 0.999), 1e-8, 0.01  # AdamW, as torch has it


class Book:
    """Windows of a text, in a random order for each seed; its last tenth is for the validation."""

    def __init__(self, file: str, seeds: int, batch: int) -> None:
        """The text of a file, for batches of so many windows."""
        text = pathlib.Path(file).read_text()
        number = {character: i for i, character in enumerate(sorted(set(text)))}
        self.vocabulary, self.batch = len(number), batch
        self.text = torch.tensor([number[character] for character in text])
        self.end = len(text) * 9 // 10
        self._random = [torch.Generator(device="cpu").manual_seed(1000 + s) for s in range(seeds)]
        self._order = [torch.empty(0, dtype=torch.int64)] * seeds

    def windows(self, starts: Tensor) -> Tuple[Tensor, Tensor]:
        """The characters from each start on, and those that follow them."""
        found = self.text[starts[..., None] + torch.arange(CONTEXT + 1)]
        return found[..., :-1], found[..., 1:]

    def next(self, seed: int) -> Tensor:
        """Where the windows of the next batch begin, of shape (workers, windows of a worker)."""
        if len(self._order[seed]) < self.batch:
            order = torch.randperm(
                self.end - CONTEXT, generator=self._random[seed], device="cpu"
            )
            self._order[seed] = order.to(self.text.device)
        taken, self._order[seed] = self._order[seed].split(
            [self.batch, len(self._order[seed]) - self.batch]
        )
        return taken.view(WORKERS, -1)


class Replicas:
    """All replicas: tensors of shape (strategies, runs, workers, …), where a run has a rate and a
    seed.
    """

    def __init__(self, texts: List[str], runs: List[Tuple[float, int]], book: Book) -> None:
        """Random parameters, the same for all replicas of a seed."""
        self.runs, self.book = runs, book
        self.syncs = [parse(text) for text in texts]
        models = {}
        for _, seed in runs:
            torch.manual_seed(seed)
            models[seed] = GPT(book.vocabulary, CONTEXT)
        self.model = models[runs[0][1]]
        self.names = [name for name, _ in self.model.named_parameters()]
        first = [
            torch.stack([dict(models[seed].named_parameters())[n].detach() for _, seed in runs])
            for n in self.names
        ]
        shape = (len(texts), len(runs), WORKERS)
        self.w = [x[None, :, None].expand(*shape, *x.shape[1:]).contiguous() for x in first]
        self.moments = [[torch.zeros_like(w) for w in self.w] for _ in BETAS]
        # Of each strategy with local steps, each worker's anchor and what is kept beside it.
        self.z: List[List[List[Tensor]]] = [
            [[x.clone() for x in first] for _ in range(WORKERS)] for _ in texts
        ]
        self.kept: List[List[Dict[str, Any]]] = [
            [sync.strategy.keep(z) for z in anchors] for sync, anchors in zip(self.syncs, self.z)
        ]
        self.rate = torch.tensor([rate for rate, _ in runs])

    def gradients(self) -> List[Tensor]:
        """The gradients of all replicas for their next windows."""
        seeds = {seed: self.book.next(seed) for _, seed in sorted(set(self.runs))}
        x, y = self.book.windows(torch.stack([seeds[seed] for _, seed in self.runs]))
        lead = self.w[0].shape[:3]
        count = math.prod(lead)
        x, y = (t[None].expand(lead[0], *t.shape).reshape(count, *t.shape[2:]) for t in (x, y))
        flat = [w.reshape(count, *w.shape[3:]).detach().requires_grad_() for w in self.w]

        def loss(parameters: List[Tensor], inputs: Tensor, labels: Tensor) -> Tensor:
            scores = functional_call(self.model, dict(zip(self.names, parameters)), (inputs,))
            return F.cross_entropy(scores.flatten(0, -2), labels.flatten())

        total = vmap(loss)(flat, x, y).sum()
        return [g.view(*lead, *g.shape[1:]) for g in torch.autograd.grad(total, flat)]

    @torch.no_grad()
    def step(self, number: int, part: float) -> None:
        """Make step `number`, counted from 1, at this part of the learning rates."""
        with torch.enable_grad():
            gradients = self.gradients()
        for i, sync in enumerate(self.syncs):
            if sync.strategy.averages_gradients:
                for g in gradients:
                    g[i] = g[i].mean(1, keepdim=True)
        first, second = self.moments
        torch._foreach_lerp_(first, gradients, 1 - BETAS[0])
        torch._foreach_mul_(second, BETAS[1])
        torch._foreach_addcmul_(second, gradients, gradients, 1 - BETAS[1])
        sizes = torch._foreach_sqrt(second)
        torch._foreach_div_(sizes, math.sqrt(1 - BETAS[1] ** number))
        torch._foreach_add_(sizes, EPS)
        for w, moment, size in zip(self.w, first, sizes):
            rate = (self.rate * part).view(1, -1, *[1] * (w.dim() - 2))
            w.mul_(1 - DECAY * rate)
            w.sub_(rate / (1 - BETAS[0] ** number) * moment / size)
        for i, sync in enumerate(self.syncs):
            if sync.strategy.pairs:
                found = torch.tensor(partners(7, number - 1, WORKERS))
                for w in self.w:
                    own = w[i].view(len(self.runs), WORKERS, -1)
                    cut = part_of_step(own.shape[2], number - 1, sync.strategy.parts)
                    own[:, :, cut] = (own[:, :, cut] + own[:, found, cut]) * 0.5
            if not sync.strategy.averages_gradients and number % sync.every == 0:
                self._commit(i)

    def _commit(self, i: int) -> None:
        """End a round of strategy number i, on all workers."""
        moved = [(w[i] - z[:, None]).mean(1) for w, z in zip(self.w, self.z[i][0])]
        for k in range(WORKERS):
            self.syncs[i].strategy.commit(
                [w[i][:, k] for w in self.w],
                self.z[i][k],
                self.kept[i][k],
                [m.clone() for m in moved],
                WORKERS,
            )

    @torch.no_grad()
    def validate(self, i: int, run: int) -> Tuple[float, float]:
        """The loss of a run of strategy number i at the anchor, and the part that is right."""
        book, together = self.book, self.syncs[i].strategy.averages_gradients
        x, y = book.windows(torch.arange(book.end, len(book.text) - CONTEXT - 1, CONTEXT))
        state = [w[i, run, 0] for w in self.w] if together else [z[run] for z in self.z[i][0]]
        parameters = dict(zip(self.names, state))
        scores = torch.cat(
            [
                functional_call(self.model, parameters, (part,)).flatten(0, -2)
                for part in x.split(512)
            ]
        )
        right = (scores.argmax(dim=1) == y.flatten()).double().mean()
        return float(F.cross_entropy(scores, y.flatten())), float(right)


def main() -> None:
    """Train all at once, and print a table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--text", required=True, help="a file")
    parser.add_argument("--steps", type=int, default=3184, help="of the whole batch")
    parser.add_argument("--batch", type=int, default=128, help="windows of a step of all workers")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--rates", default="0.004,0.012,0.02", help="learning rates")
    parser.add_argument("--sync", nargs="*", default=["ssgd", "local:every=16"], help="strategies")
    parser.add_argument("--device", default="cuda")
    args = parser.parse_args()
    torch.set_default_device(args.device)
    rates = [float(rate) for rate in args.rates.split(",")]
    runs = [(rate, seed) for rate in rates for seed in range(args.seeds)]
    replicas = Replicas(args.sync, runs, Book(args.text, args.seeds, args.batch))
    rise, began = max(args.steps // 20, 1), time.monotonic()
    for number in range(1, args.steps + 1):
        fallen = max(number - 1 - rise, 0) / max(args.steps - rise, 1)
        replicas.step(number, min(number / rise, 0.5 + 0.5 * math.cos(math.pi * fallen)))
        if number % 200 == 0:
            print(f"step {number}, {time.monotonic() - began:.0f} s", file=sys.stderr, flush=True)
    print("| `sync` | rate | losses | mean | accuracy, % | mean |")
    print("|---|---|---|---|---|---|")
    for i, text in enumerate(args.sync):
        for j, rate in enumerate(rates):
            found = [replicas.validate(i, j * args.seeds + seed) for seed in range(args.seeds)]
            losses, rights = [x for x, _ in found], [100 * x for _, x in found]
            print(
                f"| `{text}` | {rate:g} | {', '.join(f'{x:.4f}' for x in losses)} |"
                f" {statistics.mean(losses):.4f} | {', '.join(f'{x:.2f}' for x in rights)} |"
                f" {statistics.mean(rights):.2f} |",
                flush=True,
            )


if __name__ == "__main__":
    main()
