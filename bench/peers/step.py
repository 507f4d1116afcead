#!/usr/bin/env python3
"""Measures whole steps of data-parallel training: torch's DistributedDataParallel on gloo against shoal.

usage: bench/peers/install.sh && make build && bench/peers/step.py [--write]

The ways take turns (A B C A B C …), ratios are taken within a round, and all ways must end with the same loss.
"""
from __future__ import annotations

import argparse
import json
import os
import pathlib
import signal
import subprocess
import sys
import tempfile
import time

import machine
from report import factors, spread, table

ROOT = pathlib.Path(__file__).resolve().parents[2]
WORKER = ROOT / "bench" / "peers" / "step_worker.py"
PYTHON = "/usr/bin/python3"  # the one that Debian's python3-torch belongs to
TITLES = {"gloo": "torch + gloo", "shoal": "shoal", "elastic": "shoal, elastic"}
STEPS = {"gpt": 40, "gpt-1M": 30, "gpt-3M": 20, "gpt-13M": 12, "resnet": 25, "resnet-5M": 12}
PROMISED = 0.8  # of gloo's time, for the GPT of the examples
QUIET = 0.92  # share of idle processor time, before a program starts


def run(way: str, model: str, n: int, limit_s: float) -> dict:
    """Trains once and returns what rank 0 measured; raises RuntimeError with the last words of a run that fails."""
    with tempfile.TemporaryDirectory() as folder:
        command = [PYTHON, str(WORKER), way, model, str(STEPS[model])]
        if way != "gloo":
            command = [str(ROOT / "bin" / "shoal"), "run", "-n", str(n), "--log-dir", folder, "--", *command]
        env = dict(os.environ, PYTHONPATH=str(ROOT / "python"), OMP_NUM_THREADS="1", STORE=f"{folder}/store", SIZE=str(n), GLOO_SOCKET_IFNAME="lo")
        # One session for all workers, whatever starts them: a scheduler that shares the processors out over sessions treats all ways alike.
        process = subprocess.Popen(command, env=env, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, start_new_session=True)
        try:
            output, _ = process.communicate(timeout=limit_s)
        except subprocess.TimeoutExpired:
            raise RuntimeError(f"{way}, {model}: no result after {limit_s:.0f} s") from None
        finally:
            try:
                os.killpg(process.pid, signal.SIGKILL)  # whatever it left behind
            except ProcessLookupError:
                pass
    results = [line.split("RESULT ")[1] for line in output.splitlines() if "RESULT " in line]
    if len(results) != 1 or process.returncode:
        raise RuntimeError(f"{way}, {model}: exit {process.returncode}, {len(results)} results\n{output[-3000:]}")
    return dict(json.loads(results[0]), way=way)


def measure(args: argparse.Namespace) -> list[dict]:
    results = []
    for model in args.models:
        for i in range(args.runs):
            for way in TITLES:
                quiet = machine.wait_until_idle(QUIET, args.wait)
                line = dict(run(way, model, args.n, args.limit), run=i, quiet=quiet)
                print(f"{model} run {i + 1}/{args.runs} {way}: {line['step_ms']:.1f} ms, {line['cpu_ms']:.1f} ms of processors{'' if quiet else ' (busy machine)'}", file=sys.stderr)
                results.append(line)
                first = next(r for r in results if r["model"] == model)
                if abs(line["loss"] - first["loss"]) > 1e-3 * abs(first["loss"]):
                    raise RuntimeError(f"{way}, {model}: the loss is {line['loss']}, and {first['loss']} with {first['way']}")
    return results


def column(results: list[dict], model: str, way: str, key: str) -> dict[int, float]:
    """A number of each run."""
    return {r["run"]: r[key] for r in results if (r["model"], r["way"]) == (model, way)}


def report(document: dict, key: str) -> str:
    """The table of a measurement, of step_ms or cpu_ms."""
    results, rows = document["results"], []
    for model in dict.fromkeys(r["model"] for r in results):
        gloo = column(results, model, "gloo", key)
        one = next(r for r in results if r["model"] == model)
        row = [model, f"{4 * one['parameters'] / (1 << 20):.1f} MiB"]
        row += [spread(list(column(results, model, way, key).values()), 1, " ms") for way in TITLES]
        for way in ("shoal", "elastic"):
            own = column(results, model, way, key)
            row.append(factors([own[i] / gloo[i] for i in own if i in gloo]))
        rows.append(row)
    return table(["model", "gradient", *TITLES.values(), "shoal / gloo", "elastic / gloo"], rows)


PAGE = """# Whole steps

The time of a step of training (forward, backward, average of the gradients, optimizer) with {n} workers on this machine: PyTorch's
DistributedDataParallel on gloo, the same loop on shoal, and an elastic loop over `shoal.torch.loader`, whose workers may come and go.
`bench/peers/step.py --write` wrote this page. The all-reduce alone is in [benchmarks.md](benchmarks.md).

{table}

Promised is {promised} of gloo's time for `gpt`, the model of `examples/gpt`, and never more than gloo's.

The processor time of a step, of all workers and the agent. What other programs do on the machine is not in it, and where there are more workers than cores
it decides how long a step takes at least:

{cpu}

{machine}

{quiet}

- The median of the steps of a run after a warm-up of 3; then the median of {runs} runs, with the smallest and the largest. Ratios are those of one round.
- A global batch of 16, one torch thread a worker, SGD. All ways train on the same samples, and must end with the same loss to 0.1 %.
"""


def write(document: dict) -> None:
    """Writes docs/benchmarks-steps.md."""
    results = document["results"]
    busy = sum(1 for r in results if not r["quiet"])
    details = [[key, value] for key, value in document["machine"].items() if value] + [["date", document["date"]]]
    quiet = f"The machine was **not idle** before {busy} of {len(results)} runs: read with care." if busy else "The machine was idle before every run."
    page = PAGE.format(n=results[0]["n"], table=report(document, "step_ms"), cpu=report(document, "cpu_ms"), promised=PROMISED, machine=table(["", ""], details), quiet=quiet,
                       runs=1 + max(r["run"] for r in results))
    (ROOT / "docs" / "benchmarks-steps.md").write_text(page)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("-n", type=int, default=4, help="workers (4); they share the batch of 16 evenly")
    parser.add_argument("--models", type=lambda s: s.split(","), default=list(STEPS), help=f"models ({','.join(STEPS)})")
    parser.add_argument("--runs", type=int, default=5, help="rounds over all ways (5)")
    parser.add_argument("--wait", type=float, default=60, help="seconds to wait for an idle machine before a run (60)")
    parser.add_argument("--limit", type=float, default=600, help="seconds that one run may take (600)")
    parser.add_argument("--write", action="store_true", help="write docs/benchmarks-steps.md")
    args = parser.parse_args()
    if unknown := [m for m in args.models if m not in STEPS]:
        parser.error(f"--models: unknown model {unknown[0]}; known are {', '.join(STEPS)}")
    try:
        results = measure(args)
    except RuntimeError as e:
        print(f"step.py: {e}", file=sys.stderr)
        return 1
    document = {"date": time.strftime("%Y-%m-%d", time.gmtime()), "machine": machine.describe(ROOT), "results": results}
    print(report(document, "step_ms"), report(document, "cpu_ms"), sep="\n\n")
    if args.write:
        write(document)
    return 0


if __name__ == "__main__":
    sys.exit(main())
