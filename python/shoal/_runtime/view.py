"""What the agent tells a worker when the members of the job change, and about the mesh."""

from __future__ import annotations

from typing import NamedTuple

from .protocol import CURSOR_AT, NEW, PARK, RELEASED, SETTING, STOPPED, VIEW, VIEW_AT


class View(NamedTuple):
    """Who this worker is among the members of one generation; docs/formats/arena.md, section 5. It
    is a value, for any thread.
    """

    generation: int = 0
    rank: int = 0
    size: int = 1
    steps: int = 0  # steps that the job has committed
    joined: int = 0  # number of newcomers of this generation, which have the highest ranks
    flags: int = 0  # RELEASED, NEW, STOPPED, SETTING and PARK, which the properties tell
    # The place in the data, as Cursor.pack has it; b"" = the agent gave none.
    cursor: bytes = b""

    @classmethod
    def read(cls, block: memoryview) -> "View":
        """The view that a control block has now. The agent writes it before it completes the call
        that tells of the change, so the caller has seen that call complete.
        """
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
        """Whether this worker is no longer a member: it is `gone`, or the job was `stopped`."""
        return bool(self.flags & RELEASED)

    @property
    def stopped(self) -> bool:
        """Whether all members were released, because the job was asked to end. `rank` and `size`
        are those of the last step then.
        """
        return bool(self.flags & STOPPED)

    @property
    def gone(self) -> bool:
        """Whether the job goes on without this worker."""
        return self.released and not self.stopped

    @property
    def new(self) -> bool:
        """Whether this worker has just become a member."""
        return bool(self.flags & NEW)

    @property
    def parks(self) -> bool:
        """Whether the members are to make a checkpoint now, and to end."""
        return bool(self.flags & PARK)

    @property
    def has_setting(self) -> bool:
        """Whether the setting of the job has been changed since it began: the agent tells how."""
        return bool(self.flags & SETTING)


class MeshStatus(NamedTuple):
    """How the state of a job with a mesh lies on its workers; docs/formats/reshape.md."""

    mesh: str = ""  # the mesh of the job; "" = the one that the program names
    next_mesh: str = ""  # the mesh to go to, by a reshape that all members call; "" = none
    mesh_error: str = ""  # why the job cannot go on; "" = it can
    rollback_reason: str = ""  # why the state must come from a checkpoint; "" = it need not
    nbytes: int = 0  # size of this worker's part of the state on `mesh`
    next_nbytes: int = 0  # size of its part on `next_mesh`
    unreplicated: str = ""  # on rank 0, the state that only one host or worker has; "" = none
    writes: bytes = b""  # a bit for each tensor that it has: whether it writes it into checkpoints
