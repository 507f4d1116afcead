"""Shared results: one memory for all workers of a host, which only the agent writes."""

import subprocess
import sys

import numpy
import pytest
from running_job import HANG

import shoal

VALUES = """
import numpy, shoal
job = shoal.join()
total, every = job.shared("total", (3, 1000)), job.shared("every", 2 * job.size, "int64")
for round in range(50):
    for x in (job.empty((3, 1000)), numpy.empty((3, 1000), "float32"),
              numpy.empty((3, 2000), "float32")[:, ::2]):
        x[:] = round + job.rank
        assert job.allreduce(x, out=total) is total and (x == round + job.rank).all()
        assert (total == job.size * round + job.size * (job.size - 1) / 2).all(), total
        mean = job.allreduce_async(x[0], "mean", weight=job.rank, out=total[2]).wait()
        want = round + sum(r * r for r in range(job.size)) / sum(range(job.size))
        assert numpy.allclose(mean, want), mean
        assert (total[1] == job.size * round + job.size * (job.size - 1) / 2).all(), \
            "a part that is no output has changed"
        gathered = job.allgather(numpy.array([job.rank, round]), out=every).reshape(-1, 2)
        assert gathered.tolist() == [[r, round] for r in range(job.size)]
        assert (job.allreduce(total[2], "max", out=x[0]) == mean).all()  # as an input it is copied
pair = job.group([job.rank, (job.rank + 2) % 4] if job.rank < 2 else [(job.rank + 2) % 4, job.rank])
ours = pair.shared("total", 1)
assert pair.allreduce(numpy.full(1, job.rank, "float32"), out=ours) == 2 * (job.rank % 2) + 2
again = job.shared("total", (3, 1000))
assert again.__array_interface__["data"][0] == total.__array_interface__["data"][0]
pair.free()
"""


def test_values(launch):
    """Shared results of all ranks and of groups have the right values on every rank."""
    launch(4, VALUES)


REFUSED = """
import numpy, shoal
job = shoal.join()
total, x = job.shared("total", 100), numpy.zeros(100, "float32")
shorter = job.shared(f"of {job.rank}", 10)

def refused(kind, text, call):
    try:
        call()
    except kind as err:
        assert text in str(err), err
    else:
        raise AssertionError(f"not refused: {text}")

def write():
    total[3] = 1

refused(ValueError, "read-only", write)
refused(ValueError, "WRITEABLE", lambda: setattr(total.flags, "writeable", True))
refused(ValueError, "WRITEABLE", lambda: setattr(total[3:5].flags, "writeable", True))
for call in (job.allreduce, lambda y: job.broadcast(y, root=1 - job.rank),
             lambda x: job.allreduce(x, out=x), lambda y: job.reduce_scatter(x, out=y),
             lambda y: job.recv(y, 0)):
    refused(ValueError, "read-only", lambda: call(total))
refused(ValueError, "has 400 bytes on this rank already, not 404", lambda: job.shared("total", 101))
refused(ValueError, "1 to 255 bytes", lambda: job.shared("", 1))
refused(ValueError, "an output of shape (100,)", lambda: job.allreduce(x[:50], out=total))
refused(TypeError, "an output of float32", lambda: job.allreduce(x.astype("float64"), out=total))
refused(shoal.MismatchError, "into ", lambda: job.allreduce(x[:10], out=shorter))
refused(shoal.MismatchError, 'into "total"',
        lambda: job.allreduce(x, out=total) if job.rank else job.allreduce(x))
refused(shoal.MismatchError, 'is not in group',
        lambda: job.group([job.rank]).allreduce(x, out=total))
job.barrier()
if job.rank:
    longer = job.shared("longer", 101)
job.barrier()
if not job.rank:
    refused(shoal.ArenaError, "has 404 bytes on other ranks, and 400 here",
            lambda: job.shared("longer", 100))
job.barrier()
x[:] = 1
assert (job.allreduce(x, out=total) == 2).all()
"""


def test_what_cannot_be_is_refused(launch):
    """Writes to shared results, and results of different sizes, are refused."""
    launch(2, REFUSED)


LIFE = """
import gc, os, numpy, shoal
job = shoal.join()
def mapped():
    return [line for line in open("/proc/self/maps") if "shoal-result-" in line]
total = job.shared("total", 1 << 20, "uint8")
job.allreduce(numpy.full(1 << 20, 2, "uint8"), out=total)
assert len(mapped()) == 1 and " r--s " in mapped()[0], mapped()
pid = os.fork()
if pid == 0:
    private = all(" rw-p " in line for line in mapped())
    os._exit(0 if (total == 2 * job.size).all() and private else 1)
assert os.waitpid(pid, 0)[1] == 0
part = total[5:]
del total
gc.collect()
job.shared("another", 1)
assert len(mapped()) == 2 and (part == 2 * job.size).all()
del part
gc.collect()
job.shared("a third", 1)  # memory is given back when the next is asked for
assert len(mapped()) == 1, mapped()
job.barrier()
again = job.shared("total", 3)  # nobody has what had that name
job.allreduce(numpy.ones(3, "float32"), out=again)
assert again.tolist() == [job.size] * 3
"""


def test_life(launch):
    """A shared result is mapped once, stays while something refers to it, and is gone then."""
    launch(2, LIFE)


def test_a_worker_that_writes_is_ended(launch):
    """The memory of a shared result is read-only for workers."""
    output = launch(
        2,
        """
import ctypes, numpy, shoal
job = shoal.join()
total = job.shared("total", 10)
job.barrier()
if job.rank == 1:
    ctypes.memset(total.__array_interface__["data"][0], 1, 4)
job.barrier()
""",
        code=1,
    )
    assert "rank 1 of 2 was killed by SIGSEGV" in output, output


def test_torch(launch):
    """Tensors over a shared result can be outputs, and nothing else."""
    pytest.importorskip("torch")
    launch(
        2,
        """
import warnings, torch, shoal
job = shoal.join()
array = job.shared("total", (2, 5))
with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    total = torch.from_numpy(array)
x = torch.full((2, 5), float(job.rank + 1))
assert job.allreduce(x, out=total) is total and (total == 3).all()
assert (array == 3).all() and (x == job.rank + 1).all()
for call in (job.allreduce, lambda y: job.broadcast(y, root=1 - job.rank),
             lambda t: job.allreduce(x.t(), out=t.t())):
    try:
        call(total)
    except ValueError as err:
        assert "read-only" in str(err), err
    else:
        raise AssertionError("a shared result is written to")
""",
    )


def test_a_job_of_one():
    """Without an agent a shared result is memory of this process."""
    with shoal.join() as job:
        x, total = numpy.arange(6.0).reshape(2, 3), job.shared("total", (2, 3), "float64")
        assert (
            job.allreduce(x, out=total) is total
            and (total == x).all()
            and not total.flags.writeable
        )
        assert (job.allgather(x + 1, out=total) == x + 1).all()
        assert job.alone().allreduce(x, out=total).tolist() == x.tolist()
        with pytest.raises(ValueError, match="read-only"):
            job.allreduce(total)
        with pytest.raises(TypeError, match="name=3: the name of a shared result, a text"):
            job.shared(3, 1)
        for length in (1 << 60, 1 << 70):
            with pytest.raises(shoal.ArenaError, match=f"cannot map {4 * length} bytes"):
                job.shared("large", length)


def test_bench(binary):
    """The bench measures shared results, and finds them right."""
    command = [
        str(binary),
        "bench",
        "allreduce",
        f"--python={sys.executable}",
        "--shared",
        "--bytes",
        "4096",
        "--json",
    ]
    output = subprocess.run(
        command, stdout=subprocess.PIPE, universal_newlines=True, check=True, timeout=HANG
    ).stdout
    assert '"shared":true' in output and '"verified":true' in output
