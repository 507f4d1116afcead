"""A job of one: what `python train.py` gets without the launcher."""

import subprocess
import sys
from array import array
from datetime import timedelta

import numpy
import pytest

import shoal
from shoal._live.epochs import End
from shoal.job import Job
from shoal._runtime.solo import Solo


@pytest.fixture
def job():
    """A job of one, left at the end of the test."""
    with shoal.join() as job:
        yield job


def test_join_is_the_same_job_until_it_is_left(job):
    """Joining again gives the same job; after leave() another one."""
    assert shoal.join() is job and (job.rank, job.size, job.generation) == (0, 1, 1)
    job.leave()
    with pytest.raises(shoal.ShoalError, match="was left"):
        job.barrier()
    with shoal.join() as another:
        assert another is not job


@pytest.mark.parametrize("op", ["sum", "mean", "min", "max", "prod"])
def test_reductions_are_identities(job, op):
    """In a job of one every reduction returns x, or fills `out` with it."""
    x = numpy.arange(6.0).reshape(2, 3)
    assert job.allreduce(x, op) is x
    out = numpy.zeros((2, 3))
    assert job.allreduce(x, op, out=out) is out and (out == x).all()
    assert job.reduce(x, op) is x
    assert (job.reduce_scatter(x, op) == x).all()
    assert (x == numpy.arange(6.0).reshape(2, 3)).all()


def test_moves_are_copies(job):
    """Collectives that only move elements return copies of x."""
    x = numpy.arange(6).reshape(2, 3)
    for y in (
        job.allgather(x),
        job.allgatherv(x),
        job.gather(x),
        job.scatter(x),
        job.alltoall(x),
        job.alltoall(x, splits=[2]),
    ):
        assert y is not x and y.dtype == x.dtype and y.shape == x.shape and (y == x).all()
    assert job.broadcast(x) is x
    assert (job.allgather(x.T) == x.T).all()
    assert list(job.allgather(array("d", [1, 2]))) == [1, 2]
    job.barrier()


def test_nobody_to_send_to(job):
    """Send and receive are refused."""
    with pytest.raises(ValueError, match="to=1 is not a rank"):
        job.send(numpy.zeros(1), to=1)
    with pytest.raises(ValueError, match="job of one"):
        job.recv(numpy.zeros(1), source=0)


def test_handles_groups_and_the_rest(job):
    """Handles, groups and allocation work as with an agent."""
    x = job.zeros((2, 2), "float64")
    with job.grouped():
        handle = job.allreduce_async(x)
    assert handle.done() and handle.wait() is x and handle.wait() is x
    group = job.group([0])
    assert (group.rank, group.size, group.ranks) == (0, 1, (0,)) and group.allreduce(x) is x
    job.report(step=1, loss=numpy.float32(0.5))
    assert shoal.empty(3).dtype == "float32" and shoal.zeros(3, "int64").sum() == 0
    assert job.submit("all_reduce", x, x, op="sum").wait() is x


def test_outputs_that_begin_where_the_input_does(job):
    """A call that is submitted fills the output that it names, also where that has the address and
    the length of the input, and other elements.
    """
    x = numpy.arange(8.0)
    assert job.submit("all_reduce", x[::2], x[:4], op="sum").wait().tolist() == [0, 2, 4, 6]
    views = [memoryview(array("d", numbers))[::2] for numbers in ([1, 0, 2, 0], [0, 0, 0, 0])]
    assert job.submit("all_reduce", *views, op="sum").wait().tolist() == [1, 2]


def test_a_memoryview_of_float16():
    """Where Python cannot make another one for the result, the error says to give `out`."""
    x, out = numpy.ones(2, "float16"), numpy.zeros(2, "float16")
    with shoal.join() as job:
        try:
            found = job.allgather(memoryview(x)).tolist()
        except TypeError as err:
            assert "no memoryview of float16 for the result: give `out`" in str(err)
            found = job.allgather(memoryview(x), out).tolist()
    assert found == [1.0, 1.0]


@pytest.mark.parametrize(
    "call, error, message",
    [
        (lambda j, x: j.allreduce(x, "avg"), ValueError, "op='avg' is no reduction"),
        (lambda j, x: j.allreduce(x, "none"), ValueError, "no reduction"),
        (lambda j, x: j.allreduce(x, weight=2), ValueError, "counts only for op='mean'"),
        (lambda j, x: j.allreduce(x, "mean", weight=-1), ValueError, "from 0 to 1e300"),
        (lambda j, x: j.allreduce(x, "mean", weight=float("nan")), ValueError, "from 0 to 1e300"),
        (lambda j, x: j.allreduce(x, "mean", weight=1e301), ValueError, "from 0 to 1e300"),
        (lambda j, x: j.allreduce(x.astype("int32"), "mean"), TypeError, "astype"),
        (lambda j, x: j.allreduce(x > 0), TypeError, "sum of bool"),
        (lambda j, x: j.allreduce(x, out=x.astype("float32")), TypeError, "an output of float32"),
        (lambda j, x: j.allreduce(x, out=x[1:].copy()), ValueError, "an output of shape"),
        (lambda j, x: j.allreduce(bytes(8)), ValueError, "read-only bytes"),
        (lambda j, x: j.broadcast(x, root=1), ValueError, "root=1"),
        (lambda j, x: j.broadcast(x, root=-1), ValueError, "root=-1"),
        (lambda j, x: j.alltoall(x, splits=[3]), ValueError, "splits"),
        (lambda j, x: j.alltoall(x, splits=[2.5]), TypeError, "splits"),
        (lambda j, x: j.scatter(), ValueError, "needs `x`"),
        (lambda j, x: j.group([0, 0]), ValueError, "twice"),
        (lambda j, x: j.group([]), ValueError, "not in group"),
        (lambda j, x: j.group([1]), ValueError, "not a rank"),
        (lambda j, x: j.empty((2, -1)), ValueError, "negative"),
        (lambda j, x: j.broadcast(x, root=0.5), TypeError, "integer"),
        (lambda j, x: j.empty(3.0), TypeError, ""),
        (lambda j, x: j.empty(1 << 45), shoal.ArenaError, "check the shape"),
        (lambda j, x: j.buffer(1 << 70), shoal.ArenaError, "check the shape"),
        (lambda j, x: j.empty(3, "object"), TypeError, "pointers"),
        (lambda j, x: j.report(loss="low"), TypeError, "a metric is a number"),
        (lambda j, x: j.report(step=10**400), TypeError, "a metric is a number"),
        (lambda j, x: j.report([0.5]), TypeError, r"metrics=\[0.5\]: numbers by name"),
        (lambda j, x: j.submit("all_sum", x, x), ValueError, "kinds are all_reduce"),
        (
            lambda j, x: j.submit("all_gather", x, x.view("int64")),
            TypeError,
            "an output of int64 for an input of float64",
        ),
        (
            lambda j, x: j.allreduce(x, "mean", weight="3 samples"),
            TypeError,
            "weight='3 samples': a weight is",
        ),
        (lambda j, x: j.allreduce(x, "mean", weight="2"), TypeError, "weight='2': a weight is"),
        (lambda j, x: j.send(x, "x"), TypeError, "to='x': a rank, an integer from 0 to 0"),
        (lambda j, x: j.send(x, 0, tag="x"), TypeError, "tag='x': a tag is a number"),
        (lambda j, x: j.group(0), TypeError, "ranks=0: a list of ranks"),
        (lambda j, x: j.group("0"), TypeError, "ranks='0': a list of ranks"),
        (lambda j, x: j.mesh({"dp": 1}), TypeError, "mesh={'dp': 1}: a text .* 'dp=2,tp=4'"),
        (lambda j, x: j.empty("x"), TypeError, "shape='x': the length of an array"),
        (lambda j, x: j.buffer(1.5), TypeError, "nbytes=1.5"),
        (
            lambda j, x: j.register("b", 3, 4),
            TypeError,
            r"get=3: a function; .* set\(value\) takes it over",
        ),
        (
            lambda j, x: j.register("b", dict, 4),
            TypeError,
            r"set=4: a function; get\(\) returns the value to give",
        ),
        (
            lambda j, x: j.register(3, dict, dict),
            TypeError,
            "name=3: the name of a part of the state",
        ),
        (
            lambda j, x: j.checkpoint("there", every="x"),
            TypeError,
            "every='x': after how many steps .* timedelta",
        ),
        (
            lambda j, x: j.checkpoint("there", every=1.5),
            TypeError,
            "every=1.5: after how many steps",
        ),
        (
            lambda j, x: j.checkpoint("there", every=True),
            TypeError,
            "every=True: after how many steps",
        ),
        (lambda j, x: j.checkpoint("there", every=0), ValueError, "every=0: after how many steps"),
        (
            lambda j, x: j.checkpoint("there", every=timedelta(0)),
            ValueError,
            "timedelta.*0.*: after how many steps",
        ),
        (
            lambda j, x: j.checkpoint("there", keep="x"),
            TypeError,
            "keep='x': how many checkpoints stay",
        ),
        (
            lambda j, x: j.checkpoint("there", keep=0),
            ValueError,
            "keep=0: how many checkpoints stay",
        ),
        (lambda j, x: j.checkpoint(3), TypeError, "folder=3: a path, or s3://"),
        (lambda j, x: j.steps("x", 2), TypeError, "samples='x': how many samples the data set has"),
        (lambda j, x: j.steps(10, 2.5), TypeError, "batch=2.5: how many samples a step takes"),
        (lambda j, x: j.steps(10, 0), ValueError, "batch=0: how many samples a step takes"),
        (lambda j, x: j.steps(10, 2, seed="x"), TypeError, "seed='x': what the order"),
        (lambda j, x: j.steps(10, 2, epochs=1.5), TypeError, "epochs=1.5: how many epochs"),
        (lambda j, x: j.steps(10, 2, steps="x"), TypeError, "steps='x': how many steps"),
        (lambda j, x: j.steps(10, 2, steps=-1), ValueError, "steps=-1: .*from 0 on, or"),
        (
            lambda j, x: shoal.train(
                3, layout={}, catalogue=[], mesh="dp=1", samples=1, batch=1
            ).__next__(),
            TypeError,
            "build=3: a function",
        ),
    ],
)
def test_bad_arguments(job, call, error, message):
    """A wrong argument raises an error that names it."""
    with pytest.raises(error, match=message):
        call(job, numpy.zeros(4))


def test_integers_of_numpy_are_integers(job, tmp_path):
    """NumPy's integers are taken wherever integers are."""
    two = numpy.int64(2)
    job.checkpoint(tmp_path, every=two, keep=two)
    assert [
        len(step.indices)
        for step in job.steps(two + two, two, seed=two, epochs=two, steps=two)
        if step.allreduce(numpy.zeros(1)) is not None
    ] == [2, 2]
    assert job.group([two - 2]).size == 1


def test_bool_has_and_and_or(job):
    """The minimum of bool is and, the maximum or."""
    x = numpy.array([True, False])
    assert job.allreduce(x, "min") is x and x.dtype == bool
    assert job.allgather(x).dtype == bool


@pytest.mark.parametrize(
    "end, steps, committed",
    [
        ({}, 3, 10),
        ({"epochs": 2}, 6, 20),
        ({"steps": 5}, 5, 18),
        ({"epochs": 1, "steps": 5}, 3, 10),
        ({"epochs": 9, "steps": 1}, 1, 4),
        ({"steps": 0}, 0, 0),
    ],
    ids=str,
)
def test_a_loop_ends_after_epochs_or_steps(job, end, steps, committed):
    """Whichever of `epochs` and `steps` comes first ends the loop."""
    made = []
    for step in job.steps(10, 4, **end):
        counted = step.share(numpy.ones(1), last=False, op="sum")
        step.allreduce(numpy.zeros(1))
        assert counted.wait() == 1
        made.append(step.number)
    assert made == list(range(steps)) and job.committed == steps
    assert job.place(10, 4).place.committed() == committed


def test_no_numbers_go_into_bools(job):
    """A bool is one of two bytes, so a uint8 is no output for it, nor it one for a uint8."""
    numbers, bools = numpy.array([2], "uint8"), numpy.array([True])
    with pytest.raises(TypeError, match="an output of bool for an input of uint8"):
        job.allreduce(numbers, out=bools)
    with pytest.raises(TypeError, match="an output of uint8 for an input of bool"):
        job.allgather(bools, out=numbers)
    assert job.allreduce(~bools, op="max", out=bools) is bools and not bools[0]


def test_arrays_that_are_refused_commit_nothing(job):
    """A step whose average was refused is open as before: it can be made, and does not count."""
    for step in job.steps(8, 4, epochs=1):
        with pytest.raises(TypeError, match="the mean of int64 is not a whole number"):
            step.allreduce(numpy.zeros(1), numpy.arange(3))
        assert not step.committed
        step.allreduce(numpy.zeros(1))
    assert job.committed == 2
    with pytest.raises(shoal.ShoalError, match="step 2 ended without an average"):
        for step in job.steps(8, 4, epochs=2):
            with pytest.raises(ValueError, match="read-only"):
                step.allreduce(numpy.broadcast_to(numpy.float32(1), 2))


def train(job, stop=None, **end):
    """Loop over the steps of 10 samples in batches of 4, with a `break` after `stop` of them, None
    = without one; return (epoch, number) of those made. `end` are the arguments that end the loop.
    """
    made = []
    for step in job.steps(10, 4, **end):
        step.allreduce(numpy.zeros(1))
        made.append((step.epoch, step.number))
        if len(made) == stop:
            break
    return made


def test_a_loop_for_each_epoch(job):
    """Each loop without an end is one epoch."""
    assert [train(job) for _ in range(3)] == [[(e, 3 * e + i) for i in range(3)] for e in range(3)]
    assert train(job, epochs=5) == [(3 + i // 3, 9 + i) for i in range(6)]  # goes on
    assert train(job) == [(5, 15), (5, 16), (5, 17)]


def test_a_second_loop_over_all_epochs_is_refused(job):
    """A second loop with the same end would make no step, so it raises an error."""
    train(job, epochs=1)
    with pytest.raises(
        shoal.ShoalError,
        match="all 3 steps of this loop are over, and the job has made 3 steps: .* loop once",
    ):
        train(job, epochs=1)
    train(job, epochs=2)  # goes on
    train(job, steps=7)
    with pytest.raises(
        shoal.ShoalError, match="all 7 steps of this loop are over, and the job has made 7"
    ):
        train(job, steps=7)
    assert job.committed == 7


def test_a_loop_that_is_left_by_break_is_gone_on_with(job):
    """After a loop that was left by break the next one goes on after the last committed step."""
    assert train(job, stop=2) == [(0, 0), (0, 1)]
    assert train(job, stop=2) == [(0, 2), (1, 3)]
    assert train(job) == [
        (1, 4),
        (1, 5),
        (2, 6),
        (2, 7),
        (2, 8),
    ], "the third loop ends with the third epoch"
    assert len(train(job)) == 3


def test_a_look_at_the_first_batch_is_no_loop(job):
    """A loop that is left before its first step does not count."""
    for _ in range(2):
        next(job.steps(10, 4))
    assert train(job) == [(0, 0), (0, 1), (0, 2)] and job.committed == 3


def test_a_program_with_a_loop_for_each_epoch_goes_on_from_a_checkpoint(tmp_path):
    """Loops over the epochs that the checkpoint has done make no step, and what is done after
    them is forgotten.
    """

    def run(stop):
        """Train until the step `stop`, None = to the end, as a program would that starts now;
        return (epoch, number) of each step, and the rate that it had.
        """
        job, trained, rates, found = Job(Solo()), [], [1.0], []
        job.register("rate", lambda: rates[0], lambda value: rates.__setitem__(0, value))
        job.checkpoint(tmp_path, every=2)
        for epoch in range(4):
            for step in job.steps(10, 4):
                if step.number == stop:
                    return trained, found
                step.allreduce(numpy.zeros(1))
                job._checkpoints.wait()  # a step with one still being written makes none
                trained.append((epoch, step.number))
                found.append(rates[0])
            rates[0] /= 2
        return trained, found

    whole = [(e, 3 * e + i) for e in range(4) for i in range(3)]
    assert run(7) == (whole[:7], [0.5**e for e, _ in whole[:7]])
    assert run(9) == (whole[6:9], [0.25] * 3)  # from step 6, which an epoch ends
    assert run(None) == (whole[8:], [0.25] + [0.125] * 3)


def test_a_name_is_registered_once(job):
    """A second registration of a name is refused."""
    job.register("weights", lambda: 1, lambda value: None)
    with pytest.raises(
        ValueError,
        match=(
            "'weights' is registered already: give each part of the state a name of its own, .*"
            "without `shoal run`, job.leave"
        ),
    ):
        job.register("weights", lambda: 2, lambda value: None)
    job.register(job.unused("weights"), lambda: 2, lambda value: None)
    job.leave()
    shoal.join().register("weights", lambda: 1, lambda value: None)


def test_epochs_begin_where_the_job_is_and_end_with_a_checkpoint(tmp_path):
    """epoch_loops begins with the epoch of the checkpoint, and the last epoch ends with one."""

    def run(stop):
        """Train until the epoch `stop`, with `stop` steps in each, or whole ones if `stop` is
        above 3, as a program would that starts now; return each epoch with what its loop made.
        """
        job, seen = Job(Solo()), []
        job.checkpoint(tmp_path, every=5)
        for epoch in job.place(10, 4).epoch_loops(4, End(None, None)):  # loader.epochs
            seen.append((epoch, train(job, None if stop > 3 else stop)))
            job._checkpoints.wait()
            if epoch == stop:
                break
        return seen

    assert run(1) == [(0, [(0, 0)]), (1, [(0, 1)])]
    assert [epoch for epoch, _ in run(9)] == [0, 1, 2, 3]
    assert run(9) == [(3, [])], (
        "all steps are made, and what comes after the last epoch is done again"
    )


def test_nothing_but_the_standard_library_is_imported():
    """A job of one joins and makes a call without NumPy and torch, and without a warning."""
    code = (
        "import sys, shoal; shoal.join().barrier(); sys.exit(bool({'numpy', 'torch'} &"
        " set(sys.modules)))"
    )
    subprocess.run(
        [sys.executable, "-W", "error", "-c", code],
        check=True,
        env={"PYTHONPATH": ":".join(p for p in sys.path if p)},
    )
