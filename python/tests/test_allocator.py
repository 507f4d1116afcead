"""The free lists of the arena: against a model that knows every byte, and at their edges."""

import random

import pytest

from shoal._runtime.allocator import ALIGN, FreeList, size_class

SIZE = 64 * 64


def test_random_allocations_never_overlap():
    """By a model that knows every byte, random allocations never overlap, and fail only where no
    gap is large enough.
    """
    seed = random.randrange(1 << 32)
    print("seed", seed)
    rng = random.Random(seed)
    free, owner, live = FreeList(SIZE), [None] * SIZE, {}
    for step in range(5000):
        if live and rng.random() < 0.5:
            at = rng.choice(sorted(live))
            n = live.pop(at)
            free.free(at, n)
            owner[at : at + n] = [None] * n
            continue
        n = rng.choice([0, 1, 63, 64, 65, 200, 1000])
        at = free.allocate(n)
        rounded = max(64, -(-n // 64) * 64)
        if at is None:
            gap = max(
                len(run) for run in "".join("x" if o is not None else " " for o in owner).split("x")
            )
            assert gap < rounded, f"step {step}: no room for {n} beside a gap of {gap}"
            continue
        assert at % ALIGN == 0 and at + rounded <= SIZE
        assert owner[at : at + rounded] == [None] * rounded, (
            f"step {step}: [{at}, {at + n}) is in use"
        )
        owner[at : at + rounded] = [step] * rounded
        live[at] = rounded
    for at, n in live.items():
        free.free(at, n)
    assert free.allocate(SIZE) == 0


def test_neighbours_merge():
    """What is freed in any order becomes one free range again."""
    free = FreeList(SIZE)
    parts = [free.allocate(64) for _ in range(4)]
    for i in (0, 2, 3, 1):
        free.free(parts[i], 64)
    assert free.allocate(SIZE) == 0


@pytest.mark.parametrize("start, n", [(0, 64), (64, 64), (64, 128), (SIZE, 64), (-64, 64)])
def test_a_wrong_free_is_refused(start, n):
    """Bytes that are free already, or outside of the segment, cannot be freed."""
    free = FreeList(SIZE)
    free.allocate(64)
    free.free(0, 64)
    with pytest.raises(ValueError, match="not allocated"):
        free.free(start, n)


def test_size_classes_waste_at_most_a_quarter():
    """A size class is at least the request, and at most a quarter larger."""
    classes = set()
    for n in list(range(0, 70000, 7)) + [(1 << 28) + 1]:
        size = size_class(n)
        assert max(n, 1) <= size <= max(4096, n * 1.25), n
        assert size_class(size) == size
        classes.add(size)
    assert len(classes) < 25, "a steady program must meet few classes"
