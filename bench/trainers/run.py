#!/usr/bin/env python3
"""Measures what a loss costs other people's trainers: on shoal, on torchrun and on torchft.

usage: make bench-trainers, or .venv-torch2/bin/python bench/trainers/run.py [--quick] [--write]

Three parts: whether Trainer, Lightning and Accelerate stay right, what a kill and a new worker
cost, and what shoal costs a worker that is alone.
"""

from __future__ import annotations

import argparse
import os
import pathlib
import sys
import textwrap

HERE = pathlib.Path(__file__).resolve().parent
sys.path[:0] = [str(HERE.parent / "peers"), str(HERE.parents[1] / "python" / "tests")]

import correct  # noqa: E402
import losses  # noqa: E402
import overhead  # noqa: E402
import shape  # noqa: E402
import systems  # noqa: E402
import turns  # noqa: E402

PARTS = {"correct": correct, "losses": losses, "overhead": overhead}
QUICK = dict(shape="tiny", runs=1, correct_steps=24, steps=30, wait=0)


def measure(args: argparse.Namespace) -> list[dict]:
    """Measures the parts of args.parts one after the other; returns their results, each with
    `load`, the load of the machine over a minute before its part.
    """
    results = []
    for part in args.parts:
        load = os.getloadavg()[0]
        results += [dict(line, load=load) for line in PARTS[part].measure(args)]
    return results


def text(document: dict) -> str:
    """Returns the tables of a measurement in Markdown, with the processors and the load of the
    machine. `document` is what turns.main keeps.
    """
    results, machine = document["results"], document["machine"]
    parts = [part.text(results) for part in PARTS.values()]
    loads = [r["load"] for r in results]
    about = f"{machine['processor']}, {machine['cores']} cores, {document['date']}"
    about += f". Load of the machine before the parts {min(loads):.1f} to {max(loads):.1f}"
    looked = [r["quiet"] for r in results if "quiet" in r]  # the trainings that were timed
    if looked:
        busy = looked.count(False)
        about += f"; {busy} of {len(looked)} timed trainings began on a busy machine"
    parts.append(f"{about}.")
    return "\n\n".join(part for part in parts if part)


BEGIN, END = "<!-- bench/trainers wrote this -->\n", "<!-- to here -->\n"


def write(document: dict, folder: pathlib.Path) -> None:
    """Writes the tables into guide/trainers.md of this folder, between the two marks that are there
    for them; raises OSError where the marks are missing.
    """
    page = folder / "guide" / "trainers.md"
    before, _, rest = page.read_text().partition(BEGIN)
    _, found, after = rest.partition(END)
    if not found:
        raise OSError(f"{page} has no line {BEGIN!r} with a line {END!r} below it: put them there")
    parts = text(document).split("\n\n")
    lines = [x if x.startswith("|") else textwrap.fill(x, 100) for x in parts]
    page.write_text("\n\n".join([before + BEGIN.strip(), *lines, END + after]))


def main() -> int:
    """Measures as the command line says; returns the exit status."""
    parser = turns.parser(__doc__, runs=5, wait=60, limit=900, page="guide/trainers.md")
    parser.add_argument(
        "-n", type=int, default=3, help="workers of which one is ordered and one killed (3)"
    )
    parser.add_argument(
        "--shape",
        default="gpt2-small",
        choices=shape.SHAPES,
        help="the model (gpt2-small, 124M parameters, about 4 GB of memory a worker)",
    )
    parser.add_argument(
        "--steps", type=int, default=20, help="steps of a training of one worker (20)"
    )
    parser.add_argument(
        "--correct-steps", type=int, default=60, help="steps of the trainings of four workers (60)"
    )
    for name, known in (("parts", PARTS), ("systems", systems.SYSTEMS)):
        parser.add_argument(
            f"--{name}",
            type=turns.list_of(turns.one_of(list(known))),
            default=list(known),
            help=f"{name} ({','.join(known)})",
        )
    parser.add_argument(
        "--quick", action="store_true", help="a tiny model and one round: does all of it run?"
    )
    quick = "--quick" in sys.argv
    if quick:
        parser.set_defaults(**QUICK)
    return turns.main(
        parser.parse_args(), "trainers", measure, text, write, needs="scripts/setup torchft"
    )


if __name__ == "__main__":
    sys.exit(main())
