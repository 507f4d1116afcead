"""What a worker tells the person who reads its log."""

import sys


def say(what: str) -> None:
    """Tell the user something, in the log of this worker."""
    print(f"shoal: {what}", file=sys.stderr, flush=True)
