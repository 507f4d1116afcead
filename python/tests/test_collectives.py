"""Every collective against NumPy, through a real agent, on 1 to 8 ranks; and what happens when
ranks disagree.
"""

import pathlib
import random
import re

import pytest

GRID = pathlib.Path(__file__).with_name("collectives_grid.py")
KINDS = [
    "allreduce",
    "mean",
    "bfloat16",
    "logic",
    "reduce_scatter",
    "allgather",
    "rooted",
    "alltoall",
    "pairs",
    "groups",
    "overlapped",
    "buffers",
]


@pytest.mark.parametrize("n", [1, 2, 3, 4])
@pytest.mark.parametrize("kind", KINDS)
def test_against_numpy(launch, kind, n):
    """Every collective of a kind gives what NumPy computes."""
    seed = random.randrange(1 << 32)
    print("seed", seed)
    output = launch(n, GRID, kind, seed)
    counts = [int(c) for c in re.findall(r"(\d+) cases, 0 wrong", output)]
    assert (
        len(counts) == n and len(set(counts)) == 1 and (counts[0] > 3 or (kind, n) == ("pairs", 1))
    ), output


@pytest.mark.parametrize("kind", ["overlapped", "groups"])
def test_more_ranks_than_processors(launch, kind):
    """Collectives give what NumPy computes also on more ranks than the machine has processors."""
    launch(8, GRID, kind, 1)


DISAGREE = """
import numpy, shoal
job = shoal.join()
x = numpy.zeros({shape}, {dtype})
try:
    job.{call}
except shoal.MismatchError as err:
    print("said:", err)
job.barrier()
"""


@pytest.mark.parametrize(
    "call, shape, dtype, names",
    [
        (
            "allreduce(x)",
            "(3, 4) if job.rank else (4, 3)",
            "'float32'",
            ["all_reduce(f32[4,3], sum)", "all_reduce(f32[3,4], sum)"],
        ),
        (
            "allreduce(x)",
            "3",
            "'float32' if job.rank else 'float64'",
            ["all_reduce(f64[3], sum)", "all_reduce(f32[3], sum)"],
        ),
        (
            "allreduce(x, 'max' if job.rank else 'min')",
            "3",
            "'int32'",
            ["all_reduce(i32[3], min)", "all_reduce(i32[3], max)"],
        ),
        (
            "allreduce(x) if job.rank else job.broadcast(x)",
            "3",
            "'uint8'",
            ["broadcast(u8[3], root 0)", "all_reduce(u8[3], sum)"],
        ),
        ("broadcast(x, root=job.rank)", "3", "'uint8'", ["root 0", "root 1"]),
    ],
)
def test_ranks_that_disagree_are_told_about_both_calls(launch, call, shape, dtype, names):
    """Where two ranks make different calls, the errors of both name the two calls."""
    output = launch(2, DISAGREE.format(call=call, shape=shape, dtype=dtype))
    said = [line for line in output.splitlines() if "said:" in line]
    assert len(said) == 2 and all(name in line for name in names for line in said), output


KNOWS_THREE = """
import numpy, shoal
job = shoal.join()
size, job.size = job.size, 3  # as before it hears that a member is gone
try:
    job.alltoall(numpy.zeros(12, "float32"))
except shoal.MismatchError as err:
    print("said:", err)
job.size = size
job.barrier()
"""


def test_alltoall_of_the_members_before(launch):
    """Blocks that were cut for more ranks than there are go to nobody, and all are told."""
    output = launch(2, KNOWS_THREE)
    assert output.count("even blocks for 3 ranks in a group of 2") == 2, output


HAS_NOT_HEARD = """
import os, signal
import numpy, shoal
from shoal._runtime.protocol import STEP
job = shoal.join()
me, x = job.rank, numpy.empty(1)
job.allreduce_async(numpy.ones(1), flags=STEP).wait()
if me == 0:
    os.kill(os.getpid(), signal.SIGKILL)
step = job.allreduce_async(numpy.ones(1), flags=STEP)
if me != 1:
    step.wait()
    print("GOT", me, *job.recv(x, 0))
if me == 1:
    calls = job._backend.calls
    while calls._words[step.word] <= step.floor:  # it looks, and takes over no view
        os.sched_yield()
    assert (job.rank, job.size) == (1, 4)
    sent = [job.send_async(numpy.full(1, 10.0 * to), to) for to in (2, 3)]
    asked = job.submit("recv", None, x, peer=-1, tag=1)
    asked.wait()
    job.send(x + 1, asked.source, tag=2)
    for handle in sent:
        handle.wait()
elif me == 2:
    job.send(numpy.full(1, 5.0), 0, tag=1)
    print("ANSWER", *job.recv(x, 0, tag=2))
"""


def test_messages_of_a_worker_that_has_not_heard_of_a_loss(launch):
    """Messages that a worker sends before it hears that ranks have changed come to whom they are
    for, and the rank of who has sent one that it receives is of the view that it knows then.
    """
    output = launch(4, HAS_NOT_HEARD)
    lines = sorted(re.findall(r"(?:GOT|ANSWER).*", output))
    assert lines == ["ANSWER 6.0", "GOT 2 20.0", "GOT 3 30.0"], output


GROUP_BEFORE = """
import os, signal
import numpy, shoal
from shoal._runtime.protocol import STEP
job = shoal.join()
me = job.rank
job.allreduce_async(numpy.ones(1), flags=STEP).wait()
if me == 0:
    os.kill(os.getpid(), signal.SIGKILL)
step = job.allreduce_async(numpy.ones(1), flags=STEP)
if me == 1:
    calls = job._backend.calls
    while calls._words[step.word] <= step.floor:  # it looks, and takes over no view
        os.sched_yield()
    assert (job.rank, job.size) == (1, 4)
    pair = job.group([1, 2])
else:
    step.wait()
    if me == 2:
        assert (job.rank, job.size) == (1, 3)
        pair = job.group([0, 1])
if me < 3:
    print("PAIR", me, pair.rank, *pair.allreduce(numpy.full(1, float(me))))
step.wait()
"""


def test_a_group_of_a_worker_that_has_not_heard_of_a_loss(launch):
    """A group that a worker makes before it hears that ranks have changed has the workers that it
    means, as the others make it.
    """
    output = launch(4, GROUP_BEFORE)
    assert sorted(re.findall(r"PAIR.*", output)) == ["PAIR 1 0 3.0", "PAIR 2 1 3.0"], output


THREE_ROWS = """
import numpy, shoal
job = shoal.join()
x = numpy.zeros((3, 2), "float32")
for out in None, x.copy():
    try:
        job.alltoall(x, out)
    except ValueError as err:
        print("said:", err)
"""


def test_alltoall_cuts_no_row_in_two(launch):
    """Rows that are no multiple of the ranks are refused, with an output or without one."""
    output = launch(2, THREE_ROWS)
    assert output.count("said: shape (3, 2) does not split evenly over 2 ranks") == 4, output


LEAVES = """
import numpy, shoal
job = shoal.join()
if job.rank == 1:
    job.leave()
else:
    try:
        job.{call}
    except shoal.LostError as err:
        print("said:", err)
"""


@pytest.mark.parametrize("call", ["allreduce(numpy.ones(3))", "recv(numpy.ones(3), source=1)"])
def test_a_rank_that_is_gone_is_lost(launch, call):
    """A call that needs a rank that has left raises LostError, which names it."""
    output = launch(2, LEAVES.format(call=call))
    assert output.count("said: rank 1 ") == 1, output


def test_a_transfer_of_different_lengths(launch):
    """A send and a receive of different lengths fail on both sides."""
    output = launch(
        2,
        DISAGREE.format(
            call="send(x, to=1) if job.rank == 0 else job.recv(x, source=0)",
            shape="job.rank + 2",
            dtype="'int64'",
        ),
    )
    assert output.count("said:") == 2 and "send(i64[2]" in output and "recv(i64[3]" in output
