"""Forked children may read the arena of their parent. They may not write to it, call, hang, or hide
the parent's death.
"""

import os
import subprocess
import sys

import shoal
from conftest import ROOT

# On each rank: fork in the middle of things, look at the world as the child, and go on as the
# parent.
CHILD = """
import os, sys, threading, numpy, shoal
job = shoal.join()
x, big = job.zeros(1000), job.zeros(20 << 20, "uint8")
x[:], big[:] = 7, 3
def reduce(): [job.allreduce(numpy.ones(10)) for _ in range(50)]
busy = threading.Thread(target=reduce, daemon=True)
group = job.group(range(job.size))
stop = threading.Event()
def allocate(): [job.empty(100) for _ in iter(stop.is_set, True)]
allocating = threading.Thread(target=allocate, daemon=True)
busy.start(), allocating.start()
for attempt in range(4):
    pid = os.fork()
    if pid == 0:
        try:
            assert (x == 7).all() and (big == 3).all()
            x[:], big[:] = 8, 9
            assert (x == 8).all() and (big == 9).all()
            calls = [lambda: job.allreduce(x), lambda: job.allreduce(numpy.ones(3)), job.barrier,
                     lambda: job.empty(3), lambda: job.report(a=1), job.leave, shoal.join,
                     lambda: shoal.zeros(3), lambda: group.barrier_async(),
                     lambda: job.group([0]), lambda: job.grouped().__enter__(),
                     lambda: job.empty(64 << 20)]
            for call in calls:
                try:
                    call()
                except shoal.ForkError as err:
                    assert "spawn" in str(err)
                else:
                    raise AssertionError("a call in the child went through")
            paths = [f"/proc/self/fd/{fd}" for fd in os.listdir("/proc/self/fd")]
            links = {os.readlink(path) for path in paths if os.path.lexists(path)}
            assert not any("eventfd" in link for link in links), links
        except BaseException as err:
            print("child:", repr(err))
            os._exit(1)
        sys.exit(0) if attempt % 2 else os._exit(0)   # with and without the exit handlers
    assert os.waitpid(pid, 0)[1] == 0
    assert (x == 7).all() and (big == 3).all(), "the child wrote into its parent's arena"
stop.set()
busy.join(), allocating.join()
job.allreduce(x)
assert (x == 14).all()
"""


def test_a_child_reads_and_nothing_else(launch):
    """A forked child sees the arrays, its writes stay its own, and every call of the job raises
    ForkError.
    """
    launch(2, CHILD)


def test_a_pending_handle_raises_in_the_child(launch):
    """`wait` and `done` of a handle from before the fork raise ForkError in the child, and go on in
    the parent.
    """
    launch(
        2,
        """
import os, shoal
job = shoal.join()
job.barrier()
peer = 1 - job.rank
x = job.zeros(3)
if job.rank == 0:
    handle = job.recv_async(x, source=1)
    pid = os.fork()
    if pid == 0:
        wrong = 0
        for method in (handle.wait, handle.done):
            try:
                method()
                wrong += 1
            except shoal.ForkError:
                pass
        os._exit(wrong)
    assert os.waitpid(pid, 0)[1] == 0
    job.barrier()
    assert (handle.wait() == 5).all()
else:
    x[:] = 5
    job.barrier()
    job.send(x, to=0)
""",
    )


def test_multiprocessing_pool_by_fork(launch):
    """What a pool's processes write to arena arrays does not reach the parent."""
    output = launch(
        2,
        """
import multiprocessing, shoal
job = shoal.join()
x = job.zeros(100)
x[:] = range(100)
def part(i):
    x[:] += 1
    return float(x[i])
with multiprocessing.get_context("fork").Pool(2) as pool:
    assert sorted(pool.map(part, [10] * 4))[0] >= 11
job.allreduce(x)
assert x[10] == 20
print("sum", x.sum())
""",
    )
    assert output.count("sum 9900") == 2


def test_the_death_of_the_parent_shows_although_a_child_lives(agent):
    """The agent sees the end of a worker whose child lives on: that does not hold the socket."""
    code = """
import os, sys, shoal
job = shoal.join()
x = job.zeros(10)
pid = os.fork()
if pid == 0:
    print(os.getpid(), flush=True)
    sys.stdin.read()            # lives until the test ends it
    os._exit(0)
os.waitpid(pid, 0)
"""
    env = {
        **os.environ,
        "PYTHONPATH": str(ROOT / "python"),
        "SHOAL_SOCKET": agent.path,
        "SHOAL_JOB": "double",
        "SHOAL_RANK": "0",
        "SHOAL_TOKEN": "t",
    }
    parent = subprocess.Popen(
        [sys.executable, "-c", code],
        env=env,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    child = int(parent.stdout.readline())
    assert not agent.lost.is_set()
    parent.kill()
    parent.wait()
    agent.lost.wait()  # for ever, if the child holds the socket
    os.kill(child, 0)
    parent.stdin.close()
    parent.stdout.close()


def test_a_job_of_one_survives_a_fork():
    """Both the child and the parent can make calls of a job without an agent."""
    with shoal.join() as job:
        pid = os.fork()
        if pid == 0:
            try:
                job.barrier()
                os._exit(0)
            finally:
                os._exit(1)
        assert os.waitpid(pid, 0)[1] == 0
