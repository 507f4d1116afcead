"""shoal.Pool against a real keeper: jobs are submitted, wait, end, fail and are stopped."""

import os
import subprocess
import sys

import pytest

import shoal


@pytest.fixture
def pool(binary, tmp_path, monkeypatch):
    """A pool of two slots, which is ended after its jobs at the end of the test."""
    runtime = tmp_path / "r"
    runtime.mkdir(mode=0o700)
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(runtime))
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "s"))
    start = [str(binary), "pool", "start", "lab", "--slots", "2", "--background"]
    subprocess.run(start, check=True, capture_output=True)
    pool = shoal.Pool()
    yield pool
    for job in pool.jobs():
        job.stop(now=True)
    for job in pool.jobs(over=True):
        try:
            job.wait(60)
        except shoal.PoolError:
            pass  # it was meant to fail
    subprocess.run([str(binary), "pool", "stop", "lab"], check=True)


def test_jobs_through_their_lives(pool, tmp_path):
    """A job that waits, one that ends, one that fails, and one that is refused."""
    gate = tmp_path / "gate"
    os.mkfifo(gate)
    hold = pool.submit(["cat", str(gate)], workers=2, name="hold")
    late = pool.submit([sys.executable, "-c", "print(1)"], name="late", priority=-1)
    assert pool.name == "lab" and [job.name for job in pool.jobs()] == ["hold", "late"]
    while hold.state != "running":
        pass
    assert hold.workers == 2 and late.state == "waiting" and late.workers == 0
    with pytest.raises(TimeoutError, match="late is waiting"):
        late.wait(0)
    hold.stop(now=True)
    assert hold.wait(60) == "stopped" and hold.expected_end is None
    assert late.wait(60) == "ended"
    first = late.changes[0]
    assert (first.before, first.after) == (0, 1) and first.because and first.done >= first.at
    wrong = pool.submit([sys.executable, "-c", "raise SystemExit(3)"], name="late")
    assert wrong.name == "late-2"
    with pytest.raises(shoal.PoolError, match="late-2 has failed: .*code 3"):
        wrong.wait(60)
    with pytest.raises(shoal.PoolError, match="it needs 3 slots, and the pool has 2"):
        pool.submit(["true"], workers=3)
    with pytest.raises(shoal.PoolError, match="did you mean park"):
        pool.submit(["true"], preempt="parc")
    with pytest.raises(shoal.PoolError, match="no job called nobody"):
        shoal.pool.PoolJob(pool, "nobody").stop()


def test_without_a_pool(tmp_path, monkeypatch):
    """Without a pool, the error says how to start one."""
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    with pytest.raises(shoal.PoolError, match="no pool is kept on this host: .*shoal pool start"):
        shoal.Pool()
    with pytest.raises(shoal.PoolError, match="no pool called lab answers"):
        shoal.Pool("lab")
