"""What the measurements have in common: programs take turns, each on an idle machine, and what they
say goes into a page of docs/.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import pathlib
import signal
import subprocess
import sys
import time
from typing import Callable, Iterator, Sequence

import machine

ROOT = pathlib.Path(__file__).resolve().parents[2]
BUILD = ROOT / "build" / "peers"
SHOAL = str(ROOT / "bin" / "shoal")
PYTHON = "/usr/bin/python3"  # the one that Debian's python3-torch and python3-numpy belong to
UNITS = {"": 1, "B": 1, "KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30}
QUIET = 0.92  # share of idle processor time, before a program starts


class Failure(RuntimeError):
    """A program ended without its results, or has wrong ones; the text has its last words."""


def list_of(parse: Callable[[str], object] = str) -> Callable[[str], list]:
    """Returns the type of an argument: words with commas between them, each of which parse reads.
    """
    return lambda text: [parse(word) for word in text.split(",")]


def one_of(known: Sequence[str]) -> Callable[[str], str]:
    """Returns the type of an argument: one of these words."""

    def parse(word: str) -> str:
        """Returns the word, if it is known."""
        if word not in known:
            raise argparse.ArgumentTypeError(f"unknown: {word}; known are {', '.join(known)}")
        return word

    return parse


def parse_size(text: str) -> int:
    """The type of an argument: a size in bytes of float32."""
    digits = text.rstrip("BKMGi")
    if (
        not digits.isdigit()
        or text[len(digits) :] not in UNITS
        or not int(digits)
        or int(digits) * UNITS[text[len(digits) :]] % 4
    ):
        raise argparse.ArgumentTypeError(
            f"{text!r} is no size: write a multiple of 4 bytes such as 4096, 4KiB or 16MiB"
        )
    return int(digits) * UNITS[text[len(digits) :]]


def parser(
    description: str, runs: int, wait: float, limit: float, page: str
) -> argparse.ArgumentParser:
    """Returns a parser with the options of every measurement. runs, wait and limit are their
    defaults, the last two in seconds; `page` is what --write writes, below docs/.
    """
    options = argparse.ArgumentParser(description=description.splitlines()[0])
    options.add_argument(
        "--runs", type=int, default=runs, help=f"rounds over all programs ({runs})"
    )
    options.add_argument(
        "--wait",
        type=float,
        default=wait,
        help=f"seconds to wait for an idle machine before a program ({wait:.0f})",
    )
    options.add_argument(
        "--limit", type=float, default=limit, help=f"seconds that one program may run ({limit:.0f})"
    )
    options.add_argument(
        "--from",
        dest="source",
        type=pathlib.Path,
        help="read results from this file, measure nothing",
    )
    options.add_argument("--write", action="store_true", help=f"write docs/{page}")
    return options


def in_turn(
    args: argparse.Namespace, names: Sequence[str], what: str = ""
) -> Iterator[tuple[str, dict]]:
    """Yields the programs in turn, round after round (A B C A B C …), so that a slow minute of the
    machine hits all of them; ratios are taken within a round. Waits before each until the machine
    is idle. With each comes what its results begin with: its name, the round, and whether the
    machine was idle before.
    """
    for run in range(args.runs):
        for name in names:
            quiet = machine.wait_until_idle(QUIET, args.wait)
            print(
                f"{what}run {run + 1}/{args.runs}, {name}{'' if quiet else ' (busy machine)'}",
                file=sys.stderr,
            )
            yield name, {"name": name, "run": run, "quiet": quiet}


def run_and_read(command: list[str], limit_s: float, **env: str) -> str:
    """Runs a program until it ends and returns what it prints. Raises Failure with its last words
    when it fails or takes too long.

    One session for all its processes, whatever starts them: a scheduler that shares the processors
    out over sessions treats all programs alike, and nothing of it is left behind.
    """
    process = subprocess.Popen(
        command,
        env=dict(os.environ, PYTHONPATH=str(ROOT / "python"), **env),
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        start_new_session=True,
    )
    try:
        out, err = process.communicate(timeout=limit_s)
    except subprocess.TimeoutExpired:
        raise Failure(f"no result after {limit_s:.0f} s: {' '.join(command)}") from None
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
    if process.returncode:
        raise Failure(f"exit {process.returncode}: {' '.join(command)}\n{out[-1000:]}{err[-2000:]}")
    return out


def main(
    args: argparse.Namespace,
    stem: str,
    measure: Callable[[argparse.Namespace], list[dict]],
    text: Callable[[dict], str],
    write: Callable[[dict, pathlib.Path], None],
    needs: str,
) -> int:
    """Measures, keeps the results in build/peers as `stem`.json, prints the tables, and writes
    pages into docs if that was asked for; returns the exit status. With --from it reads the results
    and measures nothing. measure(args) returns results, text(document) the tables, and
    write(document, docs) writes the pages; `needs` says after a failure what must be there. Only
    the main thread may call it, since it takes SIGTERM.
    """
    # as an exception: nothing is left behind
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    if args.source:
        document = json.loads(args.source.read_text())
    else:
        started = time.strftime("%Y-%m-%d", time.gmtime())
        try:
            results = measure(args)
        except (Failure, OSError, subprocess.CalledProcessError) as e:
            print(f"{sys.argv[0]}: {e}\nIt needs {needs}.", file=sys.stderr)
            return 1
        document = {"date": started, "machine": machine.describe(ROOT), "results": results}
        BUILD.mkdir(parents=True, exist_ok=True)
        (BUILD / f"{stem}.json").write_text(json.dumps(document))
    print(text(document))
    if args.write:
        write(document, ROOT / "docs")
    return 0
