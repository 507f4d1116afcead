#!/usr/bin/env python3
"""Measures the planner: how true what it predicts is, and what its plans bring.

usage: make bench-plan, or .venv/bin/python bench/plan/run.py [--quick] [--parts A,B] [--write]

Each part is a module with measure(args), which returns results, and text(results), its table.
--write puts the table of each part between its own two marks in docs/experiments/planning.md.
"""

from __future__ import annotations

import argparse
import datetime
import importlib
import json
import os
import pathlib
import sys
import time

HERE = pathlib.Path(__file__).resolve().parent
sys.path.insert(0, str(HERE))

PARTS = ["replay", "spp", "replan", "chains", "peers"]  # names of modules beside this one
PAGE = HERE.parents[1] / "docs/experiments/planning.md"
END = "<!-- to here -->\n"


def main() -> None:
    """Measure the parts of the command line, print their tables, and with --write put them into
    the page.
    """
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--parts", default=",".join(PARTS), help="what to measure")
    parser.add_argument("--quick", action="store_true", help="a few cases of each part")
    parser.add_argument("--write", action="store_true", help=f"write the tables into {PAGE.name}")
    parser.add_argument("--json", help="also keep all results in this file")
    parser.add_argument("--seed", type=int, default=1, help="of what is drawn")
    args = parser.parse_args()
    results = []
    for name in args.parts.split(","):
        if name not in PARTS:
            parser.error(f"there is no part {name}: there are {', '.join(PARTS)}")
        part = importlib.import_module(name)
        load, began = os.getloadavg()[0], time.monotonic()
        found = part.measure(args)
        results += found
        table = (
            f"{part.text(found)}\n\nLoad of the machine before: {load:.1f}. Measured on"
            f" {datetime.date.today()} in {(time.monotonic() - began) / 60:.1f} minutes on"
            f" {os.cpu_count()} processors."
        )
        print(table, flush=True)
        if args.write:
            write(name, table)
    if args.json:
        pathlib.Path(args.json).write_text(json.dumps(results, indent=1) + "\n")


def write(name: str, table: str) -> None:
    """Put the table of a part into the page, in place of the one that is there."""
    begin = f"<!-- bench/plan {name} wrote this -->\n"
    before, rest = PAGE.read_text().split(begin)
    PAGE.write_text(before + begin + "\n" + table + "\n\n" + END + rest.split(END, 1)[1])


if __name__ == "__main__":
    main()
