"""What `import torch` calls in a worker, so that the backend "shoal" is there without another
import.

An installed shoal has an entry point in the group torch.backends, which PyTorch 2.5 and later load.
"""

from __future__ import annotations

import os


def autoload() -> None:
    """Register the backend "shoal" in a worker of shoal; elsewhere do nothing, so that a program
    that only imports torch does not load shoal.
    """
    if os.environ.get("SHOAL_SOCKET"):
        from . import torch  # noqa: F401
