"""The console script `shoal`: runs the Go binary, which is the launcher, the agent and all other
commands.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import NoReturn, Optional


def find_binary() -> Optional[Path]:
    """The path of the `shoal` binary of this installation (inside the wheel), or of the checkout
    that holds this file; None without either.
    """
    here = Path(__file__).resolve().parent
    for path in (here / "_bin" / "shoal", here.parent.parent / "bin" / "shoal"):
        if path.is_file() and os.access(path, os.X_OK):
            return path
    return None


def main() -> NoReturn:
    """Replace this process by the binary, with the same arguments. Exits with a message where there
    is none.
    """
    path = find_binary()
    if path is None:
        sys.exit(
            "shoal: this installation has no `shoal` binary: it is a wheel for any platform, or a"
            " checkout without a build. Run `make build` in the checkout, or install the wheel of"
            " your platform"
        )
    os.execv(path, ["shoal", *sys.argv[1:]])
