#!/usr/bin/env python3
"""Measures whole steps of data-parallel training: torch's DistributedDataParallel on gloo against
shoal.

usage: bench/peers/install.sh && make build && bench/peers/step.py [--write]

All programs must end with the same loss.
"""

from __future__ import annotations

import argparse
import json
import pathlib
import sys
import tempfile

import turns
from report import LIMITS, column_of, factors, facts, section, spread, table

WORKER = str(turns.ROOT / "bench" / "peers" / "step_worker.py")
TITLES = {"gloo": "torch + gloo", "shoal": "shoal", "elastic": "shoal, elastic"}
# Steps of a training, by model.
STEPS = {"gpt": 40, "gpt-1M": 30, "gpt-3M": 20, "gpt-13M": 12, "resnet": 25, "resnet-5M": 12}
PROMISED = 0.8  # a share of gloo's time, for the GPT of the examples


def train_once(name: str, model: str, n: int, limit_s: float) -> dict:
    """Trains once with a program, a key of TITLES, on n workers, and returns what rank 0 measured;
    raises Failure with the last words of a run that fails or takes longer than limit_s.
    """
    with tempfile.TemporaryDirectory() as folder:
        command = [turns.PYTHON, WORKER, name, model, str(STEPS[model])]
        if name != "gloo":
            command = [turns.SHOAL, "run", "-n", str(n), "--log-dir", folder, "--", *command]
        output = turns.run_and_read(
            command,
            limit_s,
            OMP_NUM_THREADS="1",
            STORE=f"{folder}/store",
            SIZE=str(n),
            GLOO_SOCKET_IFNAME="lo",
        )
    results = [line.split("RESULT ")[1] for line in output.splitlines() if "RESULT " in line]
    if len(results) != 1:
        raise turns.Failure(f"{name}, {model}: {len(results)} results\n{output[-3000:]}")
    return json.loads(results[0])


def measure(args: argparse.Namespace) -> list[dict]:
    """Trains every model with every program in turn; returns the results. Raises Failure if the
    losses differ.
    """
    results: list[dict] = []
    for model in args.models:
        for name, line in turns.in_turn(args, list(TITLES), f"{model} "):
            line.update(train_once(name, model, args.n, args.limit))
            print(
                f"{line['step_ms']:.1f} ms, {line['cpu_ms']:.1f} ms of processors", file=sys.stderr
            )
            results.append(line)
            first = next(r for r in results if r["model"] == model)
            if abs(line["loss"] - first["loss"]) > 1e-3 * abs(first["loss"]):
                raise turns.Failure(
                    f"{name}, {model}: the loss is {line['loss']}, and {first['loss']} with"
                    f" {first['name']}"
                )
    return results


def tables(document: dict, key: str) -> str:
    """Returns the table of a measurement in Markdown, of step_ms or cpu_ms (`key`)."""
    rows = []
    for model in dict.fromkeys(r["model"] for r in document["results"]):

        def column(name: str) -> dict[int, float]:
            """Returns the number of a program by round; empty where it was not measured."""
            return column_of(document, name, key, model=model)

        gloo = column("gloo")
        one = next(r for r in document["results"] if r["model"] == model)
        row = [model, f"{4 * one['parameters'] / (1 << 20):.1f} MiB"]
        row += [spread(list(column(name).values()), 1, " ms") for name in TITLES]
        for name in ("shoal", "elastic"):
            own = column(name)
            row.append(factors([own[i] / gloo[i] for i in own if i in gloo]))
        rows.append(row)
    return table(["model", "gradient", *TITLES.values(), "shoal / gloo", "elastic / gloo"], rows)


PAGE = """# Whole steps

The time of a step of training (forward, backward, average of the gradients, optimizer) with {n}
workers on this machine: PyTorch's DistributedDataParallel on gloo, the same loop on shoal, and an
elastic loop over `shoal.torch.loader`, whose workers may come and go. The all-reduce alone is in
[benchmarks.md](benchmarks.md).

{table}

Promised is {promised} of gloo's time for `gpt`, the model of `examples/gpt`, and never more than
gloo's.

{kept}## Processor time

The processor time of a step, of all workers and the agent. It does not include what other programs
do on the machine. Where there are more workers than cores it decides how long a step takes at
least:

{cpu}

## Machine

{machine}

{quiet}

## Method

- The median of the steps of a run after a warm-up of 3; then the median of {runs} runs, with the
  smallest and the largest. Ratios are those of one round.
- A global batch of 16, one torch thread a worker, SGD. All programs train on the same samples, and
  must end with the same loss to 0.1 %.
- `bench/peers/step.py --write` wrote this page.
"""


def write(document: dict, folder: pathlib.Path) -> None:
    """Writes benchmarks-steps.md into folder."""
    page = PAGE.format(
        n=document["results"][0]["n"],
        table=tables(document, "step_ms"),
        cpu=tables(document, "cpu_ms"),
        promised=PROMISED,
        kept=section(folder / "benchmarks-steps.md", LIMITS),
        **facts(document),
    )
    (folder / "benchmarks-steps.md").write_text(page)


def main() -> int:
    """Measures as the command line says; returns the exit status."""
    parser = turns.parser(__doc__, runs=5, wait=60, limit=600, page="benchmarks-steps.md")
    parser.add_argument(
        "-n", type=int, default=4, help="workers (4); they share the batch of 16 evenly"
    )
    parser.add_argument(
        "--models",
        type=turns.list_of(turns.one_of(list(STEPS))),
        default=list(STEPS),
        help=f"models ({','.join(STEPS)})",
    )
    return turns.main(
        parser.parse_args(),
        "steps",
        measure,
        lambda d: f"{tables(d, 'step_ms')}\n\n{tables(d, 'cpu_ms')}",
        write,
        needs="bench/peers/install.sh and make build",
    )


if __name__ == "__main__":
    sys.exit(main())
