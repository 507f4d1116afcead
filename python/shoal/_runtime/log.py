"""What a worker tells the person who reads its log."""

import sys


def say(what: str) -> None:
    """Tell the user something, in the log of this worker."""
    print(f"shoal: {what}", file=sys.stderr, flush=True)


def counted(n: int, what: str) -> str:
    """So many things of a name whose plural has an s more."""
    return f"{n} {what}" if n == 1 else f"{n} {what}s"
