"""The place in the data: every sample exactly once, and the same numbers as the Go package
data/cursor.
"""

import dataclasses
import json
import pathlib
import random
import sys

import pytest

from shoal.cursor import MAX_SAMPLES, Cursor, Order

VECTORS = json.loads(
    (pathlib.Path(__file__).parents[2] / "data/cursor/testdata/vectors.json").read_text()
)


@pytest.fixture(params=["numpy", "plain"])
def arrays(request, monkeypatch):
    """Whether there is NumPy: runs a test with it and without."""
    if request.param == "numpy":
        pytest.importorskip("numpy")
    else:
        monkeypatch.setitem(sys.modules, "numpy", None)
    return request.param


@pytest.mark.parametrize("vector", VECTORS["Orders"], ids=lambda v: str(v["Samples"]))
def test_order_is_that_of_go(vector, arrays):
    """The order of samples is that of the Go package, by its vectors."""
    order = Order(vector["Samples"], vector["Seed"], vector["Epoch"])
    start, want = vector["From"], vector["Sample"]
    assert [order.at(start + i) for i in range(len(want))] == want
    taken = order.take([(start, start + 1), (start + 1, start + len(want))])
    assert list(taken) == want
    assert isinstance(taken, list) == (arrays == "plain")
    if arrays == "numpy":
        assert taken.dtype == "int64"


@pytest.mark.parametrize("run", VECTORS["Runs"], ids=lambda r: str(r["Samples"]))
def test_steps_are_those_of_go(run, arrays):
    """Runs of steps with losses and other batches are those of the Go package, by its vectors."""
    start = (run["Samples"], run["Batch"], run["Seed"], run["Shuffle"], run["Apart"])
    cursor = dataclasses.replace(
        Cursor.start(*start), round=run["Round"], shares=tuple(run["Shares"] or ())
    )
    for step in run["Steps"]:
        cursor = dataclasses.replace(cursor, batch=step["Batch"], round=step["Round"])
        size = len(step["Done"])
        parts = cursor.parts(size)
        assert [[list(span) for span in part] for part in parts] == step["Parts"]
        pieces = cursor.pieces(size - 1, size) if cursor.local_steps() < 99 else None
        if pieces is not None:
            assert len(pieces) == cursor.local_steps()
            assert [[list(span) for span in piece] for piece in pieces[:9]] == step["Pieces"]
        first = [(start, min(stop, start + 100)) for start, stop in parts[0]]
        assert list(cursor.order().take(first)) == step["First"]
        cursor = cursor.commit(size, step["Done"])
        assert cursor.pack().hex() == step["After"]
        assert Cursor.unpack(bytes.fromhex(step["After"])) == cursor


@pytest.mark.parametrize("text", VECTORS["Broken"])
def test_broken_encodings_are_refused(text):
    """What the Go package takes for no cursor raises ValueError here too."""
    with pytest.raises(ValueError, match="no place in a data set"):
        Cursor.unpack(bytes.fromhex(text))


def test_random_bytes_are_refused_or_read():
    """Encodings with random changes raise ValueError, or pack to the same bytes again."""
    good = bytes.fromhex(VECTORS["Runs"][0]["Steps"][7]["After"])
    chance = random.Random(5)
    read = 0
    for _ in range(5000):
        data = bytearray(good)
        for _ in range(chance.randint(1, 3)):
            data[chance.randrange(len(data))] = chance.choice([0, 1, 2, 255, chance.randrange(256)])
        try:
            assert Cursor.unpack(data).pack() == bytes(data)
            read += 1
        except ValueError:
            pass
    assert 0 < read < 5000


def test_order_is_a_permutation(arrays):
    """An order of any number of samples has each of them once."""
    for samples in [*range(0, 70), 255, 256, 257, 1000, 2000]:
        taken = Order(samples, 42, samples % 5).take([(0, samples)])
        assert sorted(taken) == list(range(samples)), samples


def test_plain_order_and_nothing_to_take(arrays):
    """Without shuffle position i holds sample i; no spans hold no samples."""
    assert list(Order(10, shuffle=False).take([(2, 5), (9, 10)])) == [2, 3, 4, 9]
    assert len(Order(10).take([])) == 0


@pytest.mark.parametrize("span", [(0, 6), (-1, 2), (5, 6), (3, 2)])
def test_positions_outside_are_refused(span):
    """Positions beyond the samples, and spans that run backwards, raise IndexError."""
    with pytest.raises(IndexError):
        Order(5, 1).take([span])
    with pytest.raises(IndexError):
        Order(5, 1).at(5)


def positions_of(spans):
    """The positions of spans, in their order."""
    return [position for span in spans for position in range(*span)]


@pytest.mark.parametrize("seed", range(60))
def test_every_sample_exactly_once(seed):
    """Random numbers of workers, random batches and random losses: each epoch commits every sample
    once, and batches are as large as they may be.
    """
    chance = random.Random(seed)
    cursor = Cursor.start(chance.randint(1, 200), chance.randint(1, 64), chance.getrandbits(64))
    for epoch in range(3):
        times = [0] * cursor.samples
        while cursor.epoch == epoch:
            size = chance.randint(1, 12)
            if chance.random() < 0.3:
                batch, steps = chance.randint(1, 64), chance.randint(0, 4)
                cursor = dataclasses.replace(cursor, batch=batch, round=steps)
            done = [chance.random() < 0.8 for _ in range(size)]
            parts = cursor.parts(size)
            positions = positions_of(span for part in parts for span in part)
            assert (
                len(set(positions))
                == len(positions)
                == cursor.count()
                == min(cursor.batch * max(cursor.round, 1), times.count(0))
            )
            lengths = [sum(stop - start for start, stop in part) for part in parts]
            taking = [n for n in lengths if n]
            assert lengths == sorted(lengths, reverse=True) and taking[0] - taking[-1] <= 1
            if cursor.batch >= 2 * size:  # no part of one sample, and none is empty in vain
                assert taking[-1] > 1 or cursor.count() == 1
                assert len(taking) == size or cursor.count() < 2 * size
            else:
                assert lengths[0] - lengths[-1] <= 1
            for part, kept in zip(parts, done):
                for start, stop in part if kept else ():
                    for position in range(start, stop):
                        times[position] += 1
            for rank, part in enumerate(parts):
                pieces = cursor.pieces(rank, size)
                assert len(pieces) == cursor.local_steps()
                together = [span for piece in pieces for span in piece]
                assert positions_of(together) == positions_of(part)
            step = cursor.step + cursor.local_steps()
            cursor = Cursor.unpack(cursor.commit(size, done).pack())
            assert cursor.step == step
            assert cursor.committed() == epoch * cursor.samples + sum(times)
        assert times == [1] * cursor.samples


def test_too_many_losses_do_not_fit():
    """A cursor with too many left spans cannot be packed, and a step without a loss mends it."""
    cursor = Cursor.start(1 << 40, 100_000)
    lossy = cursor.commit(1000, [rank % 2 == 0 for rank in range(1000)])
    assert len(lossy.left) == 500 and not lossy.fits()
    with pytest.raises(ValueError, match="run the step again"):
        lossy.pack()
    assert cursor.commit(500, [True] * 500).fits()
    most = cursor.commit(360, [rank % 2 == 0 for rank in range(360)])
    assert len(most.left) == 180 and most.fits() and len(most.pack()) == 56 + 180 * 16
    assert not cursor.commit(362, [rank % 2 == 0 for rank in range(362)]).fits()
    assert lossy.commit(500, [True] * 500).left == ()


@pytest.mark.parametrize(
    "samples, batch, seed",
    [(0, 1, 0), (1, 0, 0), (MAX_SAMPLES + 1, 1, 0), (1, 1, -1), (1, 1, 1 << 64)],
)
def test_bad_starts_are_refused(samples, batch, seed):
    """A cursor of numbers beyond its limits is refused."""
    with pytest.raises(ValueError):
        Cursor.start(samples, batch, seed)


def test_bad_sizes_are_refused():
    """Numbers of workers, ranks and steps of a round that cannot be are refused."""
    cursor = Cursor.start(10, 2)
    for refused in (
        lambda: cursor.parts(0),
        lambda: cursor.part(2, 2),
        lambda: cursor.part(-1, 2),
        lambda: cursor.commit(0, []),
        lambda: cursor.commit(2, [True]),
        lambda: cursor.with_round(-1),
        lambda: cursor.with_round((1 << 16) + 1),
    ):
        with pytest.raises(ValueError):
            refused()


def test_a_cursor_is_a_value():
    """A commit leaves the cursor as it is, and nobody can set its fields."""
    cursor = Cursor.start(10, 4)
    assert cursor == Cursor(10, 4, seed=0, shuffle=True, apart=False)
    cursor.commit(2, [True, False])
    assert cursor == Cursor.start(10, 4)
    with pytest.raises(dataclasses.FrozenInstanceError):
        cursor.step = 1


def test_the_epoch_that_is_reached_is_that_of_the_last_step():
    """Right after the end of an epoch `epoch` is the next one and `reached` is still the one
    before.
    """
    place, reached = Cursor.start(3, 2), []
    for _ in range(5):
        reached.append((place.epoch, place.reached))
        place = place.commit(1, [True])
    assert reached == [(0, 0), (0, 0), (1, 0), (1, 1), (2, 1)]
