"""Messages of a worker to the person who reads its log. Any thread may call the functions."""

import sys


def log_line(what: str) -> None:
    """Write a line to the log of this worker, which is its standard error."""
    print(f"shoal: {what}", file=sys.stderr, flush=True)


def counted(n: int, what: str) -> str:
    """A number with the noun `what`, whose plural ends with s: "1 step", "2 steps"."""
    return f"{n} {what}" if n == 1 else f"{n} {what}s"
