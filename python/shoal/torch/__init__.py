"""Training with PyTorch under shoal: the torch.distributed backend "shoal", `ddp`, `optimizer`, `empty`.

Importing this module registers the backend, so a script that does its own set-up needs two lines::

    import shoal.torch
    torch.distributed.init_process_group("shoal")

Tensors live on the CPU.
"""

from . import backend  # noqa: F401  registers the backend
from .arena import empty
from .ddp import ddp
from .optimizer import optimizer

__all__ = ["ddp", "empty", "optimizer"]
