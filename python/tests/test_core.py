"""A thread moves to a core of its rank's own. Times are nanoseconds, as of perf_counter_ns()."""

import os

import pytest

from shoal._runtime.core import Core


@pytest.fixture
def moves(monkeypatch):
    """The cores that sched_setaffinity is asked for, on a host of which this process may use cores
    2, 5 and 7.
    """
    asked = []
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: {7, 2, 5})
    monkeypatch.setattr(os, "sched_setaffinity", lambda pid, cores: asked.append(set(cores)))
    return asked


@pytest.mark.parametrize("rank, core", [(0, 2), (1, 5), (2, 7), (3, 2)])
def test_moves_and_stays_free(moves, rank, core):
    """A thread goes to its own core, and may leave it."""
    Core(rank).move_thread_here(1_000_000_000)
    assert moves == [{core}, {2, 5, 7}]


def test_moves_once_in_a_while(moves):
    """A thread does not move again within 20 ms."""
    core = Core(0)
    for now in (1_000_000_000, 1_000_001_000, 1_019_000_000, 1_021_000_000):
        core.move_thread_here(now)
    assert len(moves) == 4  # two calls a move


def test_a_refused_move_is_none(moves, monkeypatch):
    """Where the system refuses a core, the thread stays free."""

    def refuse(pid, cores):
        """Refuse a set of one core."""
        moves.append(set(cores))
        if len(cores) == 1:
            raise OSError(22, "Invalid argument")

    monkeypatch.setattr(os, "sched_setaffinity", refuse)
    Core(0).move_thread_here(1_000_000_000)
    assert moves == [{2}, {2, 5, 7}]


def test_a_sandbox_may_forbid_every_move(moves, monkeypatch):
    """A wait does not fail where no call is allowed, but goes on where the thread is."""

    def forbid(pid, cores):
        """Refuse every set of cores."""
        moves.append(set(cores))
        raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr(os, "sched_setaffinity", forbid)
    Core(0).move_thread_here(1_000_000_000)
    assert moves == [{2}, {2, 5, 7}]
