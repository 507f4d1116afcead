"""shoal: collectives for the workers of a job, over memory that the host's agent owns.

    import shoal
    job = shoal.join()             # rank and size from the launcher; a job of one without it
    grads = shoal.empty(1 << 20)   # a NumPy array in the arena
    job.allreduce(grads, op="mean")

Start the workers with `shoal run -n 4 -- python3 train.py`. Only the standard library is imported
until a program asks for an array.
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
