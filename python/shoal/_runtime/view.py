"""What the agent tells a worker when the members of the job change, and about the mesh."""

from __future__ import annotations

from typing import NamedTuple

from .protocol import CURSOR_AT, NEW, RELEASED, VIEW, VIEW_AT


class View(NamedTuple):
    """Who this worker is among the members of one generation; docs/formats/arena.md, section 5."""

    generation: int = 0
    rank: int = 0
    size: int = 1
    steps: int = 0  # steps that the job has committed
    joined: int = 0  # number of newcomers of this generation, which have the highest ranks
    flags: int = 0
    cursor: bytes = b""

    @classmethod
    def read(cls, block: memoryview) -> "View":
        """The view in a control block."""
        generation, rank, size, steps, joined, flags, nbytes = VIEW.unpack_from(block, VIEW_AT)
        return cls(
            generation,
            rank,
            size,
            steps,
            joined,
            flags,
            bytes(block[CURSOR_AT : CURSOR_AT + nbytes]),
        )

    @property
    def released(self) -> bool:
        """Whether this worker is no longer a member."""
        return bool(self.flags & RELEASED)

    @property
    def new(self) -> bool:
        """Whether this worker has just become a member."""
        return bool(self.flags & NEW)


class Shaped(NamedTuple):
    """How the state of a job with a mesh lies on its workers; docs/formats/reshape.md."""

    mesh: str = ""
    next: str = ""  # the mesh to go to, with a reshape that all members call; "" = none
    broken: str = ""  # why the job cannot go on
    lost: str = ""  # why the workers do not have all of the state any more
    inp: int = 0  # bytes that this worker has on `mesh`
    out: int = 0  # bytes that this worker has on `next`
    alone: str = ""  # the part of the state that only one host or worker has; told to rank 0
    writes: bytes = b""  # a bit for each tensor that it has: whether it writes it into checkpoints
