#!/usr/bin/env python3
"""Measures what strategies of local steps do to the loss: a small model, after equal samples.

usage: .venv-torch2/bin/python bench/loop/strategies.py [--text FILE] [--steps N] [--batch N]
       [--seeds N] [--rates A,B] [--sync TEXT ...] [--digits]

A small GPT learns a text, whose last tenth is for the validation: by default Newton's Opticks,
which every Go installation has. With --digits a perceptron learns handwritten digits, by SGD with
momentum as in examples/digits. All workers are played in this process, one after the other, with
the arithmetic of shoal.sync that jobs use too: this measures what is learned, not how long that
takes.
"""

from __future__ import annotations

import argparse
import copy
import functools
import math
import pathlib
import statistics
import subprocess
import sys
from typing import Callable, NamedTuple, Optional, Tuple

import numpy as np
import torch
from torch import nn
from torch.nn import functional as F

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / folder) for folder in ("python", "examples/gpt", "examples/digits")]

import numpy_digits  # noqa: E402
from model import GPT  # noqa: E402
from shoal.cursor import Cursor  # noqa: E402
from shoal.sync import parse, partners  # noqa: E402
from shoal.sync.contract import assign, differences  # noqa: E402
from shoal.sync.matching import average_pair, part_of_step  # noqa: E402

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


class Task(NamedTuple):
    """What a model learns."""

    samples: int
    model: Callable[[], nn.Module]  # a new one with random parameters
    # Inputs and labels of training samples, by their numbers.
    take: Callable[[torch.Tensor], Tuple[torch.Tensor, torch.Tensor]]
    held: Tuple[torch.Tensor, torch.Tensor]  # inputs and labels of the validation
    optimizer: Callable[..., torch.optim.Optimizer]


def characters(file: Optional[str]) -> Task:
    """The next character of a text, from the 32 before it, with AdamW."""
    if file is None:
        command = ["go", "env", "GOROOT"]
        root = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True).stdout
        file = root.strip() + "/src/testdata/Isaac.Newton-Opticks.txt"
    book = pathlib.Path(file).read_text()
    number = {character: i for i, character in enumerate(sorted(set(book)))}
    text, context = torch.tensor([number[character] for character in book]), 32
    end = len(text) * 9 // 10

    def take(starts: torch.Tensor) -> Tuple[torch.Tensor, torch.Tensor]:
        windows = text[starts[:, None] + torch.arange(context + 1)]
        return windows[:, :-1], windows[:, 1:]

    held = take(torch.arange(end, len(text) - context - 1, context))
    return Task(
        end - context,
        lambda: GPT(len(number), context),
        take,
        held,
        functools.partial(torch.optim.AdamW, fused=True),
    )


def digits() -> Task:
    """Handwritten digits, with SGD and momentum."""
    x, y, held_x, held_y = map(torch.from_numpy, numpy_digits.load(np.float32))
    hidden = numpy_digits.HIDDEN
    return Task(
        len(y),
        lambda: nn.Sequential(nn.Linear(64, hidden), nn.ReLU(), nn.Linear(hidden, 10)),
        lambda numbers: (x[numbers], y[numbers]),
        (held_x, held_y),
        functools.partial(torch.optim.SGD, momentum=numpy_digits.MOMENTUM),
    )


class Worker:
    """A replica of the model, and its optimizer."""

    def __init__(self, task: Task, model: nn.Module, steps: int, rate: float):
        """A copy of the model. In so many steps the learning rate rises for a twentieth of them,
        and then falls to 0 by a cosine.
        """
        self.task, self.model = task, copy.deepcopy(model)
        self.w = [p.detach() for p in self.model.parameters()]
        self.opt = task.optimizer(self.model.parameters(), lr=rate)
        rise = max(steps // 20, 1)

        def part(made: int) -> float:
            fallen = max(made - rise, 0) / max(steps - rise, 1)
            return min((made + 1) / rise, 0.5 + 0.5 * math.cos(math.pi * fallen))

        self.schedule = torch.optim.lr_scheduler.LambdaLR(self.opt, part)

    def step(self, samples: torch.Tensor) -> None:
        """Make a local step with the mean gradient of some samples."""
        x, labels = self.task.take(samples)
        self.opt.zero_grad()
        F.cross_entropy(self.model(x).flatten(0, -2), labels.flatten()).backward()
        self.opt.step()
        self.schedule.step()


class Result(NamedTuple):
    """What a model does on the samples of the validation."""

    loss: float
    accuracy: float


def train(
    task: Task, text: str, seed: int, steps: int, batch: int, rate: float, workers: int
) -> Result:
    """Train with a strategy and a learning rate for so many steps of the whole batch; return what
    the anchor does then.
    """
    sync = parse(text)
    torch.manual_seed(seed)
    model = task.model()
    cursor = Cursor.start(task.samples, batch, seed).with_round(sync.every)
    # With synchronous SGD all workers are alike: one that has the whole batch does what they do.
    size = 1 if sync.strategy.averages_gradients else workers
    team = [Worker(task, model, steps, rate) for _ in range(size)]
    z = [w.clone() for w in team[0].w]
    kept = [sync.strategy.keep(z) for _ in team]
    anchors = [[a.clone() for a in z] for _ in team]
    made = 0
    while made < steps:
        order = cursor.order()
        pieces = [cursor.pieces(rank, size) for rank in range(size)]
        for local in range(len(pieces[0])):
            for worker, parts in zip(team, pieces):
                worker.step(torch.as_tensor(order.take(parts[local])))
            if sync.strategy.pairs:
                found = partners(seed, made, size)
                cuts = [
                    [w.view(-1)[part_of_step(w.numel(), made, sync.strategy.parts)] for w in x.w]
                    for x in team
                ]
                before = [[cut.clone() for cut in own] for own in cuts]
                for rank, own in enumerate(cuts):
                    if found[rank] != rank:
                        average_pair(own, before[found[rank]])
            made += 1
        each = [differences(worker.w, z) for worker in team]
        mean = [sum(parts) / size for parts in zip(*each)]
        for worker, own, beside in zip(team, anchors, kept):
            sync.strategy.commit(worker.w, own, beside, [m.clone() for m in mean], size)
        z = [a.clone() for a in anchors[0]]
        cursor = cursor.commit(size, [True] * size)
    assign(team[0].w, z)
    return validate(team[0].model, *task.held)


def validate(model: nn.Module, x: torch.Tensor, labels: torch.Tensor) -> Result:
    """What a model does on samples that it was not trained on."""
    with torch.no_grad():
        scores = torch.cat([model(part).flatten(0, -2) for part in x.split(512)])
    labels = labels.flatten()
    right = (scores.argmax(dim=1) == labels).double().mean()
    return Result(float(F.cross_entropy(scores, labels)), float(right))


def main() -> None:
    """Train with each strategy, rate and seed, and print a table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--text", help="a file; else Newton's Opticks")
    parser.add_argument("--digits", action="store_true", help="learn handwritten digits")
    parser.add_argument("--steps", type=int, default=320, help="of the whole batch")
    parser.add_argument("--batch", type=int, default=32, help="samples of a step of all workers")
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--workers", type=int, default=4)
    parser.add_argument("--rates", default="0.002,0.004", help="learning rates")
    parser.add_argument("--sync", nargs="*", default=TEXTS, help="strategies")
    args = parser.parse_args()
    torch.set_num_threads(1)
    task = digits() if args.digits else characters(args.text)
    print("| `sync` | bytes of those of ssgd | rate | losses | mean | accuracy, % | mean |")
    print("|---|---|---|---|---|---|---|")
    for text in args.sync:
        # Of n workers, an all-reduce sends 2 (n - 1) / n models each, and a meeting one.
        sync = parse(text)
        meeting = args.workers / (2 * (args.workers - 1)) / sync.strategy.parts
        bytes_of_ssgd = 1 / sync.every + sync.strategy.pairs * meeting
        for rate in map(float, args.rates.split(",")):
            results = [
                train(task, text, seed, args.steps, args.batch, rate, args.workers)
                for seed in range(args.seeds)
            ]
            losses = [result.loss for result in results]
            rights = [100 * result.accuracy for result in results]
            print(
                f"| `{text}` | {bytes_of_ssgd:.4f} | {rate:g} |"
                f" {', '.join(f'{x:.4f}' for x in losses)} | {statistics.mean(losses):.4f} |"
                f" {', '.join(f'{x:.2f}' for x in rights)} | {statistics.mean(rights):.2f} |",
                flush=True,
            )


if __name__ == "__main__":
    main()
