"""Messages of a worker to the person who reads its log. Any thread may call the functions."""

import sys


def log_line(what: str) -> None:
    """Write a line to the log of this worker, which is its standard error."""
    print(f"shoal: {what}", file=sys.stderr, flush=True)


def format_count(n: int, noun: str) -> str:
    """A number with a noun, whose plural ends with s: "1 step", "2 steps"."""
    return f"{n} {noun}" if n == 1 else f"{n} {noun}s"
