"""Times all-reduce: the worker of ``shoal bench allreduce --python``, and the method that
bench/peers shares.

A call takes as long as on its slowest rank, and the median over the calls counts. Before each call
every buffer is filled anew, after each call every element is checked; neither is timed, and a
barrier before and after the call keeps it from taking the processors of a rank that is still in
it.
"""

from __future__ import annotations

import argparse
import functools
import sys
import time
from typing import Any, Callable, Dict, Iterator, List, Tuple

# Numbers of the pool; a prime: a block of the result that lies in the wrong place does not pass.
POOL = 262139
FEWEST, MOST = 8, 500  # calls that are measured
DTYPES = {"f32": "float32", "f64": "float64", "i32": "int32", "i64": "int64"}


class Payload:
    """What the buffers hold: random whole numbers in [-512, 511] whose sums are exact in every
    dtype and order. One thread at a time uses it, and it does no I/O.

    A buffer repeats one pool; each rank starts at a place of its own, drawn anew for each call, by
    the same seeded generator on all ranks.
    """

    def __init__(self, dtype: str, ranks: int) -> None:
        """Draw the pool, the same on all ranks, for `ranks` ranks and NumPy's type `dtype`."""
        import numpy as np

        self._np = np
        self._ranks = ranks
        self._draw = np.random.default_rng(1)
        once = self._draw.integers(-512, 512, POOL).astype(dtype)
        self._pool = np.concatenate([once, once])

    def fill(self, x: Any, rank: int) -> None:
        """Fill the 1-d array x of this rank for the next call. Draws the starts of all ranks, so
        every rank calls it once before each call.
        """
        self._starts = [int(s) for s in self._draw.integers(0, POOL, self._ranks)]
        self._for_each_block(x, self._pool[self._starts[rank] :][:POOL], self._np.copyto)

    def holds_sum(self, x: Any) -> bool:
        """Whether every element of x is the sum over what the ranks were filled with last."""
        want = sum(self._pool[s : s + min(POOL, x.size)] for s in self._starts)
        good = []
        self._for_each_block(x, want, lambda part, w: good.append(self._np.array_equal(part, w)))
        return all(good)

    @staticmethod
    def _for_each_block(x: Any, period: Any, do: Callable[[Any, Any], None]) -> None:
        """Call do(block, period) for each block of x as long as the period; the last may be
        shorter.
        """
        for at in range(0, x.size, POOL):
            part = x[at : at + POOL]
            do(part, period[: part.size])


def plan_iterations(nbytes: int, seconds: float) -> Tuple[int, int]:
    """Return how many calls warm up and how many are measured, for a size in bytes and the time of
    one call in seconds.

    As many calls as 512 MiB hold buffers and two seconds of calls allow, from FEWEST to MOST.
    """
    most = min(MOST, max(FEWEST, (512 << 20) // (nbytes + 1)))
    return 3 + most // 10, int(min(most, max(FEWEST, 2 / seconds)))


def measure(
    x: Any,
    array: Any,
    rank: int,
    ranks: int,
    allreduce: Callable[[Any], Any],
    barrier: Callable[[], Any],
    slowest: Callable[[List[float]], List[float]],
    result: Any = None,
) -> Dict[str, float]:
    """Measure the sum all-reduce of x with the other ranks, and return bytes, iterations,
    median_us, p99_us and verified (0 or 1), the same on all ranks. All ranks call it, and wait for
    each other.

    ``array`` is a 1-d NumPy view of x, and ``result`` one of where the result comes, if that is not
    x. ``slowest`` returns, for a list of numbers of this rank, the largest over the ranks place by
    place.
    """
    payload = Payload(array.dtype.name, ranks)
    good = True

    def call() -> float:
        """Make one call between two barriers, check its result, and return the seconds that it
        took.
        """
        nonlocal good
        payload.fill(array, rank)
        barrier()
        start = time.perf_counter_ns()
        allreduce(x)
        took = time.perf_counter_ns() - start
        barrier()
        good = payload.holds_sum(array if result is None else result) and good
        return took / 1e9

    warm_up, _ = plan_iterations(array.nbytes, 1.0)
    last = [call() for _ in range(warm_up)][-1]
    _, count = plan_iterations(array.nbytes, slowest([last])[0])
    *times, wrong = slowest([call() for _ in range(count)] + [0.0 if good else 1.0])
    times.sort()
    return {
        "bytes": array.nbytes,
        "iterations": count,
        "median_us": 1e6 * (times[(count - 1) // 2] + times[count // 2]) / 2,
        "p99_us": 1e6 * times[(99 * count + 99) // 100 - 1],
        "verified": 0.0 if wrong else 1.0,
    }


def _measure_shoal(
    job: Any, sizes: List[int], dtype: str, foreign: bool, shared: bool
) -> Iterator[Dict[str, float]]:
    """Measure shoal's all-reduce for each size in bytes. `foreign`: x lies in ordinary memory;
    `shared`: the result goes into a shared result.
    """
    import numpy as np

    def slowest(values: List[float]) -> List[float]:
        """The largest of each number over the ranks."""
        largest = np.array(values, "float64")
        job.allreduce(largest, op="max")
        return [float(x) for x in largest]

    for nbytes in sizes:
        count = nbytes // np.dtype(dtype).itemsize
        x = np.empty(count, dtype) if foreign else job.empty(count, dtype)
        out = job.shared(f"result of {nbytes}", count, dtype) if shared else None
        yield measure(
            x,
            x,
            job.rank,
            job.size,
            functools.partial(job.allreduce, out=out),
            job.barrier,
            slowest,
            out,
        )


def main() -> int:
    """Measure every size given in bytes; rank 0 reports one set of metrics a size to the launcher.
    Returns the exit code.
    """
    parser = argparse.ArgumentParser(
        prog="python3 -m shoal.bench", description="worker of `shoal bench allreduce --python`"
    )
    parser.add_argument("bytes", nargs="+", type=int)
    parser.add_argument("--dtype", choices=sorted(DTYPES), default="f32")
    parser.add_argument(
        "--foreign", action="store_true", help="buffers in ordinary memory, not in the arena"
    )
    parser.add_argument(
        "--shared", action="store_true", help="the result in memory that all ranks see"
    )
    args = parser.parse_args()
    try:
        import numpy  # noqa: F401
    except ImportError:
        print(
            f"shoal bench: {sys.executable} has no NumPy; install it, or measure from Go without"
            " --python",
            file=sys.stderr,
        )
        return 1
    import shoal

    job = shoal.join()
    good = True
    for line in _measure_shoal(job, args.bytes, DTYPES[args.dtype], args.foreign, args.shared):
        if job.rank == 0:
            job.report(line)
        good = good and line["verified"] == 1.0
    job.leave()
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
