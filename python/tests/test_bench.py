"""The measurement of ``shoal bench allreduce --python``: it must see wrong results, and count
as it says.
"""

import pytest

np = pytest.importorskip("numpy")

from shoal import bench  # noqa: E402


def summed(dtype: str, n: int, ranks: int):
    """The payload of the last of so many ranks, as it is after one call for n elements, and the
    right result of that call.
    """
    total = np.zeros(n, dtype)
    for rank in range(ranks):
        payload = bench.Payload(dtype, ranks)
        x = np.empty(n, dtype)
        payload.fill(x, rank)
        total += x
    return payload, total


@pytest.mark.parametrize("dtype", sorted(bench.DTYPES.values()))
@pytest.mark.parametrize("n", [1, 1000, bench.POOL, 2 * bench.POOL + 3])
def test_payload_sees_wrong_results(dtype: str, n: int) -> None:
    """One wrong element, a result that is shifted, and the result of the call before are seen."""
    payload, total = summed(dtype, n, ranks=3)
    assert payload.holds_sum(total)
    for at in (0, n // 2, n - 1):
        total[at] += 1
        assert not payload.holds_sum(total), f"a wrong element at {at} passes"
        total[at] -= 1
    if n > bench.POOL:
        assert not payload.holds_sum(np.roll(total, 4096)), "blocks in the wrong place pass"
    payload.fill(np.empty(n, dtype), 0)
    assert not payload.holds_sum(total), "the result of the call before passes"


def test_plan() -> None:
    """The number of calls follows from the size and the time of a call, within its limits."""
    assert bench.plan_iterations(4, 1e-6) == (53, 500)
    assert bench.plan_iterations(1 << 20, 0.01) == (53, 200)
    assert bench.plan_iterations(16 << 20, 1e-6) == (6, 31)
    assert bench.plan_iterations(1 << 30, 1.0) == (3, 8)


@pytest.mark.parametrize("right", [True, False])
def test_measure(right: bool) -> None:
    """A measurement has its size, its number of calls and times in order, and says whether the
    all-reduce was right.
    """
    x = np.empty(1024, "float32")

    def allreduce(array) -> None:
        """A reduction that leaves the array as it is, or spoils an element."""
        if not right:
            array[7] += 1

    line = bench.measure(x, x, 0, 1, allreduce, lambda: None, lambda values: values)
    assert line["bytes"] == 4096 and line["iterations"] == 500 and line["verified"] == float(right)
    assert 0 < line["median_us"] <= line["p99_us"]
