"""How large buckets of gradients should be: what is tried, what stays, and when it is asked."""

import types

import pytest

torch = pytest.importorskip("torch")
from shoal.torch import bucket_sizes as module


class Steps:
    """A job whose steps take `seconds[size]`, on the slowest worker, which is another one, and
    whose agent proposes `proposals`, sizes of buckets in bytes, one after another. It is a job, a
    step and a backend in one, as far as shoal.torch.bucket_sizes asks them, on the thread of the
    test.
    """

    def __init__(self, monkeypatch, size, seconds, proposals):
        """A job at step 100, with buckets of `size` bytes, whose clock tells half of the
        seconds.
        """
        self.asked, self.rank, self.generation, self.number = [], 0, 1, 100
        self._proposals, self._seconds = list(proposals), seconds
        self._backend = types.SimpleNamespace(best_bucket_bytes=self._best_bucket_bytes)
        self.sizes = module.BucketSizes(self, 64 << 20, size)
        monkeypatch.setattr(
            self.sizes.clock, "take_medians", lambda: (0.25, 0.5 * seconds[self.sizes.size])
        )

    def _best_bucket_bytes(self, nbytes, now, backward):
        """Keep what the agent is asked in `asked`, and answer with the next proposal; 0 = none."""
        self.asked.append((self.number, nbytes, now, backward))
        return self._proposals.pop(0) if self._proposals else 0

    def submit_aside(self, known, op):
        """Stand in for Step.aside: the largest number of all workers, where the slowest one's step
        takes as many microseconds as it does.
        """
        assert op == "max"
        known[1] = max(known[1], round(1e6 * self._seconds[self.sizes.size]))
        return types.SimpleNamespace(wait=lambda: None)

    def run(self, steps):
        """Make so many steps; return the size of buckets, in bytes, of each."""
        found = []
        for _ in range(steps):
            found.append(self.sizes.size_for_step(self))
            self.number += 1
        return found


def test_a_size_that_is_better_stays(monkeypatch):
    """A proposal that makes steps shorter is kept."""
    job = Steps(monkeypatch, 4, {4: 1.0, 2: 0.9, 1: 0.8}, [2, 1, 4])
    assert job.run(16) == [4] * 16 and not job.asked
    assert job.run(8 + 16) == [2] * 24
    assert job.asked[0] == (116, 64 << 20, 4, 0.25)
    assert set(job.run(8)) == {1}
    assert set(job.run(2000)) == {1}, "what took longer is not tried again"


def test_a_size_that_is_no_better_goes_and_does_not_come_back(monkeypatch):
    """A proposal that does not make steps shorter is undone, and not tried again."""
    job = Steps(monkeypatch, 4, {4: 1.0, 2: 0.98}, [2] * 9)
    assert job.run(16 + 8) == [4] * 16 + [2] * 8
    assert set(job.run(1000)) == {4}


def test_who_knows_nothing_is_asked_ever_more_rarely(monkeypatch):
    """An agent without a proposal is asked after ever more steps."""
    job = Steps(monkeypatch, 4, {4: 1.0}, [])
    assert set(job.run(5000)) == {4}
    times = [number for number, *_ in job.asked]
    assert [after - before for before, after in zip(times, times[1:])] == [
        32,
        64,
        128,
        256,
        512,
        1024,
        1024,
        1024,
    ]


def test_other_members_begin_anew(monkeypatch):
    """After a change of the members sizes are tried anew."""
    job = Steps(monkeypatch, 4, {4: 1.0, 2: 1.5}, [2] * 9)
    job.run(16 + 8 + 100)
    job.generation += 1
    assert job.run(16) == [4] * 16
    assert job.run(8) == [2] * 8, "among others it may be better"
    job.generation += 1
    assert job.run(16) == [2] * 16, "what is tried stays until it is known what it takes"


def test_only_rank_0_asks(monkeypatch):
    """Another rank never asks its agent, and keeps the size where rank 0 proposes none."""
    job = Steps(monkeypatch, 4, {4: 1.0}, [2])
    job.rank = 1
    assert set(job.run(100)) == {4} and not job.asked


def test_the_clock(monkeypatch):
    """The clock gives the medians of backward passes and steps, once."""
    now = iter([0.0, 1.0, 3.0, 10.0, 14.0, 18.0])
    monkeypatch.setattr(module.time, "perf_counter", lambda: next(now))
    clock = module.StepClock()
    assert clock.take_medians() == (0.0, 0.0)
    for _ in range(2):
        clock.record_full(True, False)
        clock.record_full(False, True)
        clock.record_end()
    assert clock.take_medians() == (2.5, 5.5)
    assert clock.take_medians() == (0.0, 0.0)
