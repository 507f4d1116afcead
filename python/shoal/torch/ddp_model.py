"""The DistributedDataParallel that `shoal.torch.ddp` returns, and what a copy of it is."""

from __future__ import annotations

from typing import Any

import torch
from torch.nn import parallel


class DistributedDataParallel(parallel.DistributedDataParallel):
    """torch's own, but for its copies: torch refuses them where the group is not the default one,
    and a copy that averages would do so in no place of a step that the other workers know.
    """

    def __reduce_ex__(self, _: Any) -> Any:
        """How copy and pickle make an ordinary model of this one: it has the same names, a `module`
        and a forward pass, averages nothing, and needs neither shoal nor a process group.
        """
        # Of torch's modules the one that has a `module`. Without devices it does nothing else than
        # to call that.
        ordinary = parallel.DataParallel.__new__(parallel.DataParallel)
        torch.nn.Module.__init__(ordinary)
        ordinary.module, ordinary.dim, ordinary.device_ids = self.module, 0, []
        ordinary.training = self.training
        # Protocol 1 is the one in which an object may be of another class than it will be.
        return ordinary.__reduce_ex__(1)
