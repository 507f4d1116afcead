"""What can go wrong. Every message says what happened, why, and what to do."""

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
    """Who is needed is gone: another worker that was lost or has left, without which a call cannot
    finish; or the agent, and then no call of this job can. The message says who.
    """


class ForkError(ShoalError):
    """A forked child used the job of its parent. Arrays of the arena can be read there, nothing
    else.
    """


class ArenaError(ShoalError):
    """The agent could not give shared memory, or a buffer does not lie where it should."""
