#!/usr/bin/env python3
"""Measures what strategies of local steps do to the loss: a small GPT, after equal samples.

usage: .venv-torch2/bin/python bench/loop/strategies.py [--steps N] [--seeds N] [--rates A,B]

All workers are played in this process, one after the other, with the arithmetic of shoal.sync that
jobs use too: it measures what is learned, not how long that takes. The text is Newton's Opticks,
which every Go installation has; its last tenth is for the validation.
"""

from __future__ import annotations

import argparse
import copy
import dataclasses
import pathlib
import statistics
import subprocess
import sys
from typing import List

import torch
from torch.nn import functional as F

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "python"), str(ROOT / "examples/gpt")]

from model import GPT  # noqa: E402
from shoal.cursor import Cursor  # noqa: E402
from shoal.sync import parse, partners  # noqa: E402
from shoal.sync.contract import assign, differences  # noqa: E402
from shoal.sync.matching import meet  # noqa: E402

BATCH = 32
TEXTS = (
    "ssgd",
    "local:every=16",
    "diloco:every=16",
    "diloco:every=16,momentum=0.5",
    "diloco:every=16,lr=1,momentum=0.3",
    "hybrid:every=16",
    "pair:every=16",
    "sma",
)


def read_text() -> torch.Tensor:
    """The number of each character of the text."""
    root = subprocess.run(["go", "env", "GOROOT"], stdout=subprocess.PIPE, text=True, check=True)
    path = pathlib.Path(root.stdout.strip()) / "src/testdata/Isaac.Newton-Opticks.txt"
    book = path.read_text()
    alphabet = sorted(set(book))
    return torch.tensor([alphabet.index(character) for character in book])


class Worker:
    """A replica of the model, and its optimizer."""

    def __init__(self, model: GPT, steps: int, rate: float):
        """A copy of the model. The learning rate falls to a tenth in so many steps."""
        self.model = copy.deepcopy(model)
        self.opt = torch.optim.AdamW(self.model.parameters(), lr=rate)
        self.schedule = torch.optim.lr_scheduler.CosineAnnealingLR(self.opt, steps, rate / 10)
        self.w = [p.detach() for p in self.model.parameters()]

    def backward(self, text: torch.Tensor, starts: torch.Tensor) -> None:
        """Compute the gradients of the windows that begin at these characters."""
        windows = text[starts[:, None] + torch.arange(self.model.context + 1)]
        self.opt.zero_grad()
        scores = self.model(windows[:, :-1])
        F.cross_entropy(scores.flatten(0, 1), windows[:, 1:].flatten()).backward()

    def step(self) -> None:
        """Make a local step with the gradients."""
        self.opt.step()
        self.schedule.step()


def train(
    text: str, seed: int, steps: int, rate: float, workers: int, book: torch.Tensor
) -> float:
    """Train with a strategy and a learning rate for so many steps of the whole batch; return the
    loss of the validation at the anchor.
    """
    sync = parse(text)
    torch.manual_seed(seed)
    model = GPT(int(book.max()) + 1)
    held = len(book) * 9 // 10
    cursor = Cursor.start(held - model.context, BATCH, seed)
    cursor = dataclasses.replace(cursor, round=sync.every)
    team = [Worker(model, steps, rate) for _ in range(workers)]
    z = [w.clone() for w in team[0].w]
    kept = [sync.strategy.keep(z) for _ in team]
    anchors = [[a.clone() for a in z] for _ in team]
    made = 0
    while made < steps:
        order = cursor.order()
        pieces = [cursor.pieces(rank, workers) for rank in range(workers)]
        for local in range(len(pieces[0])):
            for rank, worker in enumerate(team):
                starts = torch.as_tensor(order.take(pieces[rank][local]))
                worker.backward(book, starts)
            if sync.strategy.averages_gradients:
                average_gradients(team)
            for worker in team:
                worker.step()
            if sync.strategy.pairs:
                found = partners(seed, made, workers)
                before = [[w.clone() for w in worker.w] for worker in team]
                for rank, worker in enumerate(team):
                    if found[rank] != rank:
                        meet(worker.w, before[found[rank]])
            made += 1
        if not sync.strategy.averages_gradients:
            each = [differences(worker.w, z) for worker in team]
            mean = [sum(parts) / workers for parts in zip(*each)]
            for worker, own, beside in zip(team, anchors, kept):
                moved = [m.clone() for m in mean]
                sync.strategy.commit(worker.w, own, beside, moved, workers)
            z = [a.clone() for a in anchors[0]]
        cursor = cursor.commit(workers, [True] * workers)
    if not sync.strategy.averages_gradients:
        assign(team[0].w, z)
    return validate(team[0].model, book[held:])


def average_gradients(team: List[Worker]) -> None:
    """Give all workers the mean of their gradients."""
    for parameters in zip(*(worker.model.parameters() for worker in team)):
        mean = sum(p.grad for p in parameters) / len(team)
        for p in parameters:
            p.grad = mean.clone()


def validate(model: GPT, held: torch.Tensor) -> float:
    """The loss of a model on a text that it was not trained on."""
    starts = torch.arange(0, len(held) - model.context - 1, model.context)
    windows = held[starts[:, None] + torch.arange(model.context + 1)]
    with torch.no_grad():
        scores = model(windows[:, :-1]).flatten(0, 1)
        return float(F.cross_entropy(scores, windows[:, 1:].flatten()))


def main() -> None:
    """Train with each strategy and seed, and print a table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=320, help="of the whole batch")
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--workers", type=int, default=4)
    parser.add_argument("--rates", default="0.001,0.002", help="learning rates")
    parser.add_argument("--sync", nargs="*", default=TEXTS, help="strategies")
    args = parser.parse_args()
    torch.set_num_threads(1)
    book = read_text()
    print("| rate | `sync` | loss | of that of the first | bytes of that of ssgd |")
    print("|---|---|---|---|---|")
    for rate in map(float, args.rates.split(",")):
        first: List[float] = []
        for text in args.sync:
            losses = [
                train(text, seed, args.steps, rate, args.workers, book)
                for seed in range(args.seeds)
            ]
            first = first or losses
            ratios = [mine / theirs for mine, theirs in zip(losses, first)]
            # Of n workers, an all-reduce sends 2 (n - 1) / n models each, and a meeting one.
            pairs = parse(text).strategy.pairs * args.workers / (2 * (args.workers - 1))
            print(
                f"| {rate:g} | `{text}` | {statistics.mean(losses):.4f} |"
                f" {statistics.mean(ratios):.3f} | {1 / parse(text).every + pairs:.2f} |",
                flush=True,
            )


if __name__ == "__main__":
    main()
