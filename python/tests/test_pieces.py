"""Foreign memory that passes through a window of the arena, piece by piece."""

VALUES = """
import numpy, shoal
job = shoal.join()
piece, rng = 1 << 20, numpy.random.default_rng(3 + job.rank)
for n in (piece - 8, piece, piece + 8, 2 * piece, 2 * piece + 8, 5 * piece + 24):
    for kind, op in (("f4", "sum"), ("f8", "mean"), ("i4", "max"), ("f2", "sum"), ("i8", "prod")):
        x = rng.integers(-9, 9, n // numpy.dtype(kind).itemsize).astype(kind)
        weight = {"weight": job.rank + 0.5} if op == "mean" else {}
        want = job.empty(x.shape, x.dtype)
        want[:] = x
        job.allreduce(want, op, **weight)  # in the arena
        given, out = x.copy(), numpy.empty_like(x)
        assert job.allreduce(x, op, out=out, **weight) is out, (n, kind)
        assert (out == want).all() and (x == given).all(), (n, kind)
        mixed = job.empty(x.shape, x.dtype) if job.rank else numpy.empty_like(x)
        mixed[:] = x
        assert (job.allreduce(mixed, op, **weight) == want).all(), (n, kind)
        assert job.allreduce(x, op, **weight) is x and (x == want).all(), (n, kind)
both = numpy.arange(3 * piece, dtype="f4")
x, out = both[:2 * piece], both[piece:]  # the output begins where the input is not yet read
assert (job.allreduce(x, out=out) == job.size * numpy.arange(2 * piece, dtype="f4")).all()
with job.grouped():
    assert (job.allreduce(numpy.ones(3 * piece, "f4")) == job.size).all()
strided = numpy.ones((piece, 2), "f4")[:, 0]
assert (job.allreduce(strided) == job.size).all()
"""


def test_values(launch):
    """Results are those of arena memory, at every length around whole pieces."""
    launch(3, VALUES)
    launch(1, VALUES)


MEMORY = """
import numpy, shoal
job = shoal.join()
def held():
    return sum(s.size for s in job._backend.arena._table[1])
x = numpy.ones(8 << 20, "f8")
for _ in range(3):
    job.allreduce(x)
print("held", held() >> 20)
job.allreduce_async(x).wait()  # may be waited for late, so all of it is copied before
print("held", held() >> 20)
"""


def test_the_arena_holds_a_window_and_not_the_tensor(launch):
    """A large foreign tensor takes no arena memory of its size."""
    output = launch(2, MEMORY)
    assert output.count("held 16") == 2 and output.count("held 80") == 2, output


STEPS = """
import numpy, shoal
job = shoal.join()
x = numpy.ones(1 << 20, "f4")
for step in job.steps(8, 4):
    step.allreduce(x)
place = job._backend
x_there = place.describe(x)
assert not place._submitter._can_move_in_pieces(x_there, x_there, None)
assert (job.allreduce(x) == 2).all(), x
"""


def test_what_may_be_repeated_is_copied_before(launch):
    """In a job with steps nothing moves in pieces."""
    launch(2, STEPS)


GIVES_UP = """
import numpy, shoal
from shoal._runtime.tensor import Tensor
job = shoal.join()
x = numpy.ones(4 << 20, "f4")
take = Tensor.copy_from
def interrupted(self, address, start, nbytes):
    if start >= 2 << 20:
        raise KeyboardInterrupt
    take(self, address, start, nbytes)
if job.rank == 1:
    Tensor.copy_from = interrupted
try:
    job.allreduce(x)
except KeyboardInterrupt:
    print("interrupted")
except shoal.MismatchError as err:
    print("said:", err)
Tensor.copy_from = take
assert (job.allreduce(numpy.ones(4 << 20, "f4")) == 2).all()
"""


def test_who_gives_up_in_the_middle_lets_the_others_know(launch):
    """The others get an error where a rank is interrupted in the middle of a call, and the next
    call works.
    """
    output = launch(2, GIVES_UP)
    assert (
        output.count("interrupted") == 1
        and output.count("said: a rank has given up a call in the middle") == 1
    ), output


DIES = """
import numpy, os, shoal
from shoal._runtime.tensor import Tensor
job = shoal.join()
if job.rank == 1:
    Tensor.copy_from = lambda self, address, start, nbytes: os._exit(3)
job.allreduce(numpy.ones(4 << 20, "f4"))
"""


def test_who_dies_in_the_middle_is_named(launch):
    """Where a rank dies in the middle of a call, the job fails and names it."""
    output = launch(2, DIES, code=1)
    assert "failed: rank 1 of 2 exited with code 3" in output, output
