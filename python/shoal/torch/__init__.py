"""Training with PyTorch under shoal: `loader`, `ddp`, `optimizer`, `schedule`, `zero`, `chain`,
`empty`, and the torch.distributed backend "shoal".

`TopK` and `PowerSGD` are values for the `compress` of `ddp` and `optimizer`.

Importing this module registers the backend, so a script that makes its process group itself needs
two lines::

    import shoal.torch
    torch.distributed.init_process_group("shoal")

Tensors live on the CPU or on a CUDA device; docs/design/gpus.md says how gradients get from there.
"""

from . import backend, registry, untraced  # noqa: F401  importing `backend` registers it
from .arena import empty
from .chain.model import chain
from .compress.power import PowerSGD
from .compress.topk import TopK
from .ddp import ddp
from .loader import loader
from .optimizer import optimizer
from .schedule import schedule
from .zero.optimizer import zero

registry.patch_constructors()
untraced.skip_package(__name__)

__all__ = ["PowerSGD", "TopK", "chain", "ddp", "empty", "loader", "optimizer", "schedule", "zero"]
