"""The errors that shoal raises. Each message says what happened, why, and what to do."""

from __future__ import annotations


class ShoalError(RuntimeError):
    """The root of all errors that shoal raises on its own."""


class JoinError(ShoalError):
    """The worker could not join its job: no agent, a wrong token, another version, a broken
    answer.
    """


class MismatchError(ShoalError):
    """The agent refused a call: the ranks called different things, or the call itself is not valid.

    The message is the agent's, and names both calls on both ranks where two disagree.
    """


class LostError(ShoalError):
    """A worker or an agent that a call needs is gone. Without another worker this call cannot
    finish; without the agent no call of this job can. The message says which of them is gone.
    """


class ForkError(ShoalError):
    """A forked child used the job of its parent. A child can read arrays of the arena, and do
    nothing else with the job.
    """


class ArenaError(ShoalError):
    """The agent could not give shared memory, or a buffer does not lie where it should."""


class PoolError(ShoalError):
    """A pool of jobs does not answer, refuses what it was asked, or a job of it has failed."""
