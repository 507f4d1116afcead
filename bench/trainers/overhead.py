"""What the Trainer of shoal costs one worker, against the Trainer of transformers alone."""

from __future__ import annotations

import argparse
import json
import pathlib
import statistics
import sys
import tempfile

import shape
import turns
from report import table

HERE = pathlib.Path(__file__).resolve().parent
PLAIN = "transformers"
PROGRAMS = (PLAIN, "shoal, no launcher", "shoal run -n 1")
WARM = 3  # steps that are not counted
BAR = 0.01  # how much longer a step may take: a share of the plain one


def measure(args: argparse.Namespace) -> list[dict]:
    """Trains with every program in turn; returns the results, one a round and program, each with
    `step_s`, the seconds of a step. Raises Failure if a program fails.
    """
    results = []
    for name, line in turns.in_turn(args, PROGRAMS, "overhead "):
        turns.BUILD.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix="overhead-", dir=turns.BUILD) as folder:
            line["step_s"] = step_time(name, folder, args)
        print(f"{1000 * line['step_s']:.1f} ms a step", file=sys.stderr, flush=True)
        results.append(dict(line, part="overhead", shape=args.shape))
    return results


def step_time(name: str, folder: str, args: argparse.Namespace) -> float:
    """Trains once in an empty folder with the program of this name; blocks until it has ended and
    returns the median time of a step in seconds. Raises Failure if it fails.
    """
    trainer = "transformers" if name == PLAIN else "shoal"
    config = dict(out=folder, shape=args.shape, batch=1, save=0, trainer=trainer)
    config["steps"] = args.steps + WARM + 1
    command = [sys.executable, str(HERE / "worker.py"), json.dumps(config)]
    if name.startswith("shoal run"):
        command = [turns.SHOAL, "run", "-n", "1", "--log-dir", f"{folder}/run", "--", *command]
    turns.run_and_read(command, args.limit, OMP_NUM_THREADS="1")
    times = [x["at"] for x in shape.read_notes(pathlib.Path(folder))][WARM:]
    return statistics.median(b - a for a, b in zip(times, times[1:]))


def text(results: list[dict]) -> str:
    """Returns the table of this part in Markdown; "" when no result is of it."""
    results = [r for r in results if r["part"] == "overhead"]
    if not results:
        return ""
    by_name: dict[str, dict[int, float]] = {name: {} for name in PROGRAMS}
    for r in results:
        by_name[r["name"]][r["run"]] = r["step_s"]
    plain, rows = by_name[PLAIN], []
    for name, own in by_name.items():
        more = [own[run] / plain[run] - 1 for run in own if run in plain]
        low, median, high = quartiles(more)
        against = ["–", "–"]
        if name != PLAIN:
            met = "yes" if median <= BAR else "NO"
            against = [f"{median:+.2%} ({low:+.2%}..{high:+.2%})", met]
        step = f"{1000 * statistics.median(own.values()):.1f} ms"
        rows.append([name, f"{len(own)}", step, *against])
    head = ["one worker", "rounds", "step", "more than transformers", f"at most {BAR:.0%}"]
    note = f"Shape {results[0]['shape']}; quartiles of the rounds in brackets."
    return f"{note}\n\n" + table(head, rows)


def quartiles(values: list[float]) -> tuple[float, float, float]:
    """Returns the lower quartile, the median and the upper quartile of one value at least."""
    if len(values) < 2:
        return values[0], values[0], values[0]
    low, median, high = statistics.quantiles(values, n=4, method="inclusive")
    return low, median, high
