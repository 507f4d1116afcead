"""shoal: training on workers that may be lost, join and change while it runs.

    import shoal
    job = shoal.join()                             # without the launcher: a job of one worker
    for step in job.steps(len(images), batch=64):  # this worker's samples: step.indices
        ...
        step.allreduce(gradient)                   # the mean over all workers; commits the step

Start the workers with `shoal run -n 4 -- python3 train.py`. `shoal.torch` has this for PyTorch;
`shoal.transformers`, `shoal.lightning` and `shoal.accelerate` for trainers of others. `Job` has the
collectives, `Pool` submits jobs, `state` reads and writes checkpoints, `log` feeds other tools.
Only the standard library is imported until a program asks for an array.

Guide: https://github.com/shoal-ml/shoal/blob/main/docs/guide/train.md
"""

from . import log, state
from ._live.step import Step
from ._runtime.handle import Handle
from ._version import __version__
from .errors import (
    ArenaError,
    ForkError,
    JoinError,
    LostError,
    MismatchError,
    PoolError,
    ShoalError,
)
from .group import Group
from .job import Job, empty, join, zeros
from .length import goal
from .live import train
from .mesh import Mesh
from .policies import change, policy
from .pool import Pool

__all__ = [
    "ArenaError",
    "ForkError",
    "Group",
    "Handle",
    "Job",
    "JoinError",
    "LostError",
    "Mesh",
    "MismatchError",
    "Pool",
    "PoolError",
    "ShoalError",
    "Step",
    "__version__",
    "change",
    "empty",
    "goal",
    "join",
    "log",
    "policy",
    "state",
    "train",
    "zeros",
]
