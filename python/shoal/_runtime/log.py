"""Messages of a worker to the person who reads its log."""

import sys


def log_line(what: str) -> None:
    """Write a line to the log of this worker, which is its standard error."""
    print(f"shoal: {what}", file=sys.stderr, flush=True)


def counted(n: int, what: str) -> str:
    """A number with a noun, whose plural ends with s."""
    return f"{n} {what}" if n == 1 else f"{n} {what}s"
