#!/usr/bin/env python3
"""Measures the loop: how true its predictions are, and what it brings, on paced workers.

usage: make bench-loop, or .venv/bin/python bench/loop/run.py [--quick] [--parts A,B] [--write]

Paced workers sleep where others compute, off the processor as on a GPU, so that four of them do not
disturb each other on a small machine. The parts routes, interference, takeover and sync need root.
"""

from __future__ import annotations

import argparse
import datetime
import json
import os
import pathlib
import sys
import time

HERE = pathlib.Path(__file__).resolve().parent
sys.path.insert(0, str(HERE))

import bad  # noqa: E402
import batch  # noqa: E402
import interference  # noqa: E402
import page  # noqa: E402
import predictions  # noqa: E402
import routes  # noqa: E402
import straggler  # noqa: E402
import sync  # noqa: E402
import takeover  # noqa: E402

PARTS = {
    "predictions": predictions,
    "routes": routes,
    "batch": batch,
    "straggler": straggler,
    "bad": bad,
    "interference": interference,
    "takeover": takeover,
    "page": page,
    "sync": sync,
}
PAGE = HERE.parents[1] / "docs/design/loop.md"
BEGIN, END = "<!-- bench/loop wrote this -->\n", "<!-- to here -->\n"


def main() -> None:
    """Measure the parts of the command line, print their tables, and with --write put them into
    docs/design/loop.md.
    """
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--parts", default=",".join(PARTS), help="what to measure")
    parser.add_argument("--quick", action="store_true", help="few changes and one seed")
    parser.add_argument("--write", action="store_true", help=f"write the tables into {PAGE.name}")
    parser.add_argument("--json", help="also keep all results in this file")
    parser.add_argument("--real", action="store_true", help="predictions of workers that compute")
    parser.add_argument("--seed", type=int, default=1, help="of the changes")
    args = parser.parse_args()
    args.changes, args.seeds, args.epochs = (12, 1, 4) if args.quick else (105, 5, 12)
    args.turns, args.takeovers = (1, 2) if args.quick else (3, 8)
    results, tables = [], []
    for name in args.parts.split(","):
        if name not in PARTS:
            parser.error(f"there is no part {name}: there are {', '.join(PARTS)}")
        load, began = os.getloadavg()[0], time.monotonic()
        found = PARTS[name].measure(args)
        results += found
        tables.append(
            f"{PARTS[name].text(results)}\n\nLoad of the machine before: {load:.1f}. Measured on"
            f" {datetime.date.today()} in {(time.monotonic() - began) / 60:.1f} minutes on"
            f" {os.cpu_count()} processors."
        )
        print(tables[-1], flush=True)
    if args.json:
        pathlib.Path(args.json).write_text(json.dumps(results, indent=1) + "\n")
    if args.write:
        before, rest = PAGE.read_text().split(BEGIN)
        written = BEGIN + "\n" + "\n\n".join(tables) + "\n\n" + END
        PAGE.write_text(before + written + rest.split(END)[1])


if __name__ == "__main__":
    main()
