"""One rank's part of test_collectives: every collective of a kind against NumPy, printing what is
wrong.

    shoal run -n 4 -- python3 collectives_grid.py allreduce SEED

All ranks draw the inputs of all ranks from one seed, so each knows every result. Values are small
whole numbers, exact in every element type whatever the order; only a mean is rounded.

All ranks run one check_… function with a Grid, on their main threads: it makes the same calls and
draws on each, gives every result to `Grid.expect_equal`, and leaves failing to `main`.
"""

import hashlib
import random
import sys
from array import array

import numpy

import shoal

DTYPES = ["float64", "float32", "float16", "int64", "int32", "uint8"]
SHAPES = [
    (),
    (0,),
    (1,),
    (3,),
    (17,),
    (1000,),
    (5, 7),
    (2, 3, 4),
    (0, 4),
    (4097,),
    (100_003,),
    (1,) * 9,
]
REDUCE = {
    "sum": sum,
    "min": lambda xs: numpy.minimum.reduce(xs),
    "max": lambda xs: numpy.maximum.reduce(xs),
    "prod": lambda xs: numpy.multiply.reduce(xs),
}


class Grid:
    """Draws inputs, places them in arena and foreign memory in turns, and compares results. `cases`
    counts the comparisons, and must be the same on all ranks; `wrong` has a text for each result
    that differs.
    """

    def __init__(self, job):
        """Seed the random numbers alike on all ranks, from the command line."""
        self.job = job
        self.rng = numpy.random.default_rng(int(sys.argv[2]))
        self.cases = 0
        self.wrong = []

    def draw(self, shapes, dtype, op="sum"):
        """Draw the input of every rank, one array of each shape, small enough for a result by `op`
        to be exact.
        """
        top = 3 if op == "prod" else 25
        low = 1 if op == "prod" or dtype == "uint8" else -25
        return [self.rng.integers(low, top, s).astype(dtype) for s in shapes]

    def place(self, x):
        """A copy of x in arena memory, foreign memory or strided memory, by turns that are the same
        on every rank.
        """
        kind = self.cases % 3
        if kind == 0:
            y = self.job.empty(x.shape, x.dtype)
        elif kind == 1:
            y = numpy.empty(x.shape, x.dtype)
        else:
            y = numpy.empty((*x.shape, 2), x.dtype)[..., 0]
        y[...] = x
        return y

    def expect_equal(self, got, want, *what, rtol=0.0):
        """Count a case, and record it, with the words `what`, where a result is not what it must
        be: exactly, or within the relative tolerance `rtol`.
        """
        self.cases += 1
        want = numpy.asarray(want)
        ok = got.shape == want.shape and numpy.allclose(
            numpy.asarray(got, "float64"), want.astype("float64"), rtol=rtol, atol=0
        )
        if not ok:
            self.wrong.append(f"rank {self.job.rank}: {what}: got {got!r}, want {want!r}")

    def expect_same_bytes(self, x, *what):
        """Record, with the words `what`, where the ranks hold different bytes. All ranks call it,
        and wait for each other.
        """
        digest = numpy.frombuffer(
            hashlib.sha256(numpy.ascontiguousarray(x).tobytes()).digest(), "uint8"
        )
        every = self.job.allgather(digest).reshape(-1, 32)
        if not (every == digest).all():
            self.wrong.append(f"rank {self.job.rank}: {what}: ranks hold different bytes")


def check_allreduce(grid):
    """Check every reduction of every type and shape, in place and into `out`."""
    job = grid.job
    for dtype in DTYPES:
        for shape in SHAPES:
            for op, reference in REDUCE.items():
                inputs = grid.draw([shape] * job.size, dtype, op)
                want = reference(inputs)
                x = grid.place(inputs[job.rank])
                assert job.allreduce(x, op) is x
                grid.expect_equal(x, want, "allreduce", dtype, shape, op)
                x, out = grid.place(inputs[job.rank]), grid.place(numpy.zeros(shape, dtype))
                assert job.allreduce(x, op, out=out) is out
                grid.expect_equal(out, want, "allreduce out", dtype, shape, op)
                grid.expect_equal(x, inputs[job.rank], "allreduce out: input", dtype, shape, op)
            grid.expect_same_bytes(out, "allreduce", dtype, shape)


def check_mean(grid):
    """Check means with equal weights, different ones and zeros."""
    job = grid.job
    for dtype, rtol in (("float64", 1e-14), ("float32", 1e-6), ("float16", 2e-3)):
        for shape in SHAPES:
            for weights in (
                [1.0] * job.size,
                [1.0 + r for r in range(job.size)],
                [0.0] * (job.size - 1) + [2.0],
            ):
                inputs = [abs(x) + 1 for x in grid.draw([shape] * job.size, dtype)]
                x = grid.place(inputs[job.rank])
                job.allreduce(x, "mean", weight=weights[job.rank])
                want = sum(w * a.astype("float64") for w, a in zip(weights, inputs)) / sum(weights)
                grid.expect_equal(x, want, "mean", dtype, shape, weights, rtol=rtol)
                grid.expect_same_bytes(x, "mean", dtype, shape, weights)


def check_bfloat16(grid):
    """Check sums of bf16 as NumPy can hold it: the upper half of a float32."""
    job = grid.job

    def narrow(x):
        """bf16 as uint16: the upper halves of float32."""
        return (x.astype("float32").view("uint32") >> 16).astype("uint16")

    def widen(x):
        """float32 of their upper halves, which are bf16 as uint16."""
        return (x.astype("uint32") << 16).view("float32")

    for n in (0, 1, 33, 5000):
        inputs = grid.draw([(n,)] * job.size, "float32")
        x = grid.place(narrow(inputs[job.rank]))
        x = numpy.ascontiguousarray(x)
        job.submit("all_reduce", x, x, dtype="bf16", op="sum").wait()
        grid.expect_equal(widen(x), sum(inputs), "bf16", n)


def check_logic(grid):
    """Check the minimum and maximum of bool, which are and and or."""
    job = grid.job
    for shape in SHAPES:
        inputs = [grid.rng.integers(0, 2, shape).astype(bool) for _ in range(job.size)]
        for op, reference in (("min", numpy.logical_and), ("max", numpy.logical_or)):
            x = grid.place(numpy.asarray(inputs[job.rank]))
            grid.expect_equal(job.allreduce(x, op), reference.reduce(inputs), "bool", op, shape)
        grid.expect_equal(
            job.allgather(numpy.asarray(inputs[job.rank])).reshape(-1),
            numpy.concatenate([i.reshape(-1) for i in inputs]),
            "bool",
        )


def check_reduce_scatter(grid):
    """Check even blocks of every reduction, and uneven ones."""
    job = grid.job
    for dtype in DTYPES:
        for rows, rest in ((0, ()), (1, ()), (3, (2,)), (1000, ()), (100, (4, 5))):
            for op, reference in REDUCE.items():
                inputs = grid.draw([(job.size * rows, *rest)] * job.size, dtype, op)
                want = reference(inputs)[job.rank * rows : (job.rank + 1) * rows]
                grid.expect_equal(
                    job.reduce_scatter(grid.place(inputs[job.rank]), op),
                    want,
                    "reduce_scatter",
                    dtype,
                    rows,
                    rest,
                    op,
                )
        lengths = [2 * r + 1 for r in range(job.size)]
        inputs = grid.draw([(sum(lengths),)] * job.size, dtype)
        begin = sum(lengths[: job.rank])
        out = grid.place(numpy.zeros(lengths[job.rank], dtype))
        job.reduce_scatter(grid.place(inputs[job.rank]), out=out)
        grid.expect_equal(
            out, sum(inputs)[begin : begin + lengths[job.rank]], "reduce_scatter uneven", dtype
        )


def check_allgather(grid):
    """Check even blocks, and uneven ones with and without `out`."""
    job = grid.job
    for dtype in DTYPES + ["bool"]:
        for shape in SHAPES:
            inputs = grid.draw([shape] * job.size, dtype)
            got = job.allgather(grid.place(inputs[job.rank]))
            grid.expect_equal(
                got,
                numpy.concatenate([numpy.atleast_1d(x) for x in inputs]),
                "allgather",
                dtype,
                shape,
            )
        for rest in ((), (3,)):
            inputs = grid.draw([(r * 7 % 5, *rest) for r in range(job.size)], dtype)
            got = job.allgatherv(grid.place(inputs[job.rank]))
            grid.expect_equal(got, numpy.concatenate(inputs), "allgatherv", dtype, rest)
            out = grid.place(numpy.zeros(got.shape, dtype))
            assert job.allgather(grid.place(inputs[job.rank]), out=out) is out
            grid.expect_equal(out, numpy.concatenate(inputs), "allgather uneven", dtype, rest)


def check_rooted(grid):
    """Check broadcast, reduce, gather and scatter, with every root."""
    job = grid.job
    for dtype in DTYPES:
        for shape in SHAPES:
            for root in range(job.size):
                here = job.rank == root
                inputs = grid.draw([shape] * job.size, dtype)
                x = grid.place(inputs[job.rank])
                assert job.broadcast(x, root) is x
                grid.expect_equal(x, inputs[root], "broadcast", dtype, shape, root)
                x = grid.place(inputs[job.rank])
                result = job.reduce(x, "sum", root)
                assert result is (x if here else None)
                grid.expect_equal(
                    x, sum(inputs) if here else inputs[job.rank], "reduce", dtype, shape, root
                )
                got = job.gather(grid.place(inputs[job.rank]), root)
                if here:
                    grid.expect_equal(
                        got,
                        numpy.concatenate([numpy.atleast_1d(i) for i in inputs]),
                        "gather",
                        dtype,
                        shape,
                        root,
                    )
                else:
                    grid.cases += 1
                    assert got is None
                (whole,) = grid.draw([(job.size * 3, *shape)], dtype)
                out = grid.place(numpy.zeros((3, *shape), dtype))
                assert job.scatter(grid.place(whole) if here else None, root, out) is out
                grid.expect_equal(
                    out, whole[3 * job.rank : 3 * job.rank + 3], "scatter", dtype, shape, root
                )


def check_alltoall(grid):
    """Check even blocks, and uneven ones with and without `out`."""
    job = grid.job
    for dtype in DTYPES:
        for rest in ((), (3,), (2, 2)):
            for rows in (0, 1, 50):
                inputs = grid.draw([(job.size * rows, *rest)] * job.size, dtype)
                got = job.alltoall(grid.place(inputs[job.rank]))
                want = numpy.concatenate(
                    [i[job.rank * rows : (job.rank + 1) * rows] for i in inputs]
                )
                grid.expect_equal(got, want, "alltoall", dtype, rows, rest)
            splits = [[(a + 2 * b) % 4 for b in range(job.size)] for a in range(job.size)]
            inputs = grid.draw([(sum(s), *rest) for s in splits], dtype)
            parts = [numpy.split(i, numpy.cumsum(s)[:-1])[job.rank] for i, s in zip(inputs, splits)]
            got = job.alltoall(grid.place(inputs[job.rank]), splits=splits[job.rank])
            grid.expect_equal(got, numpy.concatenate(parts), "alltoall splits", dtype, rest)
            out = grid.place(numpy.zeros(got.shape, dtype))
            job.alltoall(grid.place(inputs[job.rank]), out, splits[job.rank])
            grid.expect_equal(out, numpy.concatenate(parts), "alltoall splits out", dtype, rest)


def check_pairs(grid):
    """Check sends and receives around a ring, with tags, and from any source."""
    job = grid.job
    after, before = (job.rank + 1) % job.size, (job.rank - 1) % job.size
    if job.size == 1:
        return
    for dtype in DTYPES:
        for shape in SHAPES:
            inputs = grid.draw([shape] * job.size, dtype)
            x = grid.place(numpy.zeros(shape, dtype))
            handles = [
                job.recv_async(x, before, tag=7),
                job.send_async(grid.place(inputs[job.rank]), after, tag=7),
            ]
            assert handles[0].wait() is x and handles[1].wait() is None
            grid.expect_equal(x, inputs[before], "send and recv", dtype, shape)
    a, b = numpy.zeros(2), numpy.zeros(2)
    first, second = job.recv_async(a, before, tag=1), job.recv_async(b, before, tag=2)
    job.send_async(numpy.full(2, 22.0), after, tag=2)
    job.send(numpy.full(2, 11.0), after, tag=1)
    first.wait(), second.wait()
    grid.expect_equal(a, [11, 11], "tag 1")
    grid.expect_equal(b, [22, 22], "tag 2")
    job.barrier()
    if job.rank:
        job.send(numpy.full(3, float(job.rank)), to=0, tag=3)
    seen = []
    for _ in range(job.size - 1):
        if job.rank == 0:
            x = grid.place(numpy.zeros(3))
            handle = job.submit("recv", None, x, peer=-1, tag=3)
            handle.wait()
            seen.append(handle.source)
            grid.expect_equal(x, [handle.source] * 3, "any source")
        else:
            grid.cases += 1
    assert sorted(seen) == (list(range(1, job.size)) if job.rank == 0 else [])


def check_groups(grid):
    """Check calls of groups beside calls of all ranks."""
    job = grid.job
    evens, odds = [list(range(job.size))[k::2] for k in (0, 1)]
    mine = evens if job.rank % 2 == 0 else odds
    backwards = job.group(range(job.size)[::-1])
    group = job.group(mine)
    assert (group.size, group.rank, list(group.ranks)) == (len(mine), mine.index(job.rank), mine)
    assert backwards.rank == job.size - 1 - job.rank
    for round in range(20):
        inputs = grid.draw([(100,)] * job.size, "float32")
        x, y = grid.place(inputs[job.rank]), grid.place(inputs[job.rank])
        with job.grouped():
            handles = [group.allreduce_async(x), job.allreduce_async(y)]
        grid.expect_equal(handles[1].wait(), sum(inputs), "all beside a group", round)
        grid.expect_equal(handles[0].wait(), sum(inputs[r] for r in mine), "group", round)
        whole = backwards.allgather(inputs[job.rank])
        grid.expect_equal(whole, numpy.concatenate(inputs[::-1]), "backwards", round)
        z = numpy.array([float(job.rank)])
        grid.expect_equal(
            group.broadcast(z, root=group.size - 1), [mine[-1]], "broadcast in a group", round
        )
        again = job.group(mine)
        assert again.id != group.id
        again.barrier()


def check_overlapped(grid):
    """Check many calls under way, waited for in any order, more than there are slots."""
    job = grid.job
    inputs = [grid.draw([(n,)] * job.size, "float64") for n in range(700)]
    arrays = []
    for i in inputs:
        grid.cases += 1
        arrays.append(grid.place(i[job.rank]))
    with job.grouped():
        handles = [job.allreduce_async(x) for x in arrays[:350]]
    handles += [job.allreduce_async(x) for x in arrays[350:]]
    order = list(range(700))
    random.Random(job.rank).shuffle(order)
    for n in order:
        handles[n].wait()
        assert handles[n].done()
    for n in range(700):
        grid.expect_equal(arrays[n], sum(inputs[n]), "overlapped", n)


def check_buffers(grid):
    """Check arrays that are not NumPy's: array.array, bytearray, memoryview, bytes as input."""
    job, n = grid.job, grid.job.size
    x = array("i", [job.rank, 1])
    assert job.allreduce(x) is x and list(x) == [n * (n - 1) // 2, n]
    y = bytearray(b"ab")
    assert job.broadcast(y) is y and y == b"ab"
    z = job.allgather(bytes([job.rank] * 2))
    assert isinstance(z, memoryview) and z.tobytes() == bytes(r for r in range(n) for _ in range(2))
    assert z.format == "B" and job.allgather(array("d", [1.5])).tolist() == [1.5] * n
    wide = memoryview(array("d", range(6)))
    job.allreduce(wide[::2], "max")
    assert wide.tolist() == [0, 1, 2, 3, 4, 5]
    grid.cases += 5


def main():
    """Run the kind of collectives that the command line names, and print what is wrong; exit with
    code 1 on all ranks where there is something on any.
    """
    name = sys.argv[1]
    with shoal.join() as job:
        grid = Grid(job)
        globals()["check_" + name](grid)
        for text in grid.wrong[:5]:
            print(text)
        print(f"{grid.cases} cases, {len(grid.wrong)} wrong")
        failed = numpy.array([len(grid.wrong)])
        job.allreduce(failed)
    sys.exit(bool(failed))


if __name__ == "__main__":
    main()
