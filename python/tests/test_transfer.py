"""How the state is cut into pieces for those who join."""

import ctypes
import itertools
import random

import pytest

from shoal._live import transfer
from shoal._runtime.protocol import HUGE_PAGE


@pytest.mark.parametrize("seed", range(50))
def test_a_piece_is_the_parts_of_items_that_it_names(seed):
    """The ranges of items between two places are the bytes between them."""
    choice = random.Random(seed)
    sizes = [choice.choice([0, 0, 1, 3, 10]) for _ in range(choice.randrange(8))]
    ends = list(itertools.accumulate(sizes))
    whole = [(item, byte) for item, size in enumerate(sizes) for byte in range(size)]
    start, stop = sorted(choice.randrange(len(whole) + 1) for _ in range(2))
    assert [
        (i, byte)
        for i, first, last in transfer._item_ranges(ends, start, stop)
        for byte in range(first, last)
    ] == whole[start:stop]


@pytest.mark.parametrize("whole", [0, 1, transfer.PIECE, transfer.PIECE + 1, 5 * transfer.PIECE])
def test_pieces_cover_the_state(whole):
    """The pieces follow each other without a gap, and none is too large."""
    cuts = transfer._piece_bounds([0, whole // 3, whole])
    assert [at for cut in cuts for at in range(cut[0], cut[1], transfer.PIECE)] == list(
        range(0, whole, transfer.PIECE)
    )
    assert (cuts[-1][1] if cuts else 0) == whole


def test_there_is_room_for_a_state_like_ones_own():
    """Buffers are allocated for all items, or are the arrays themselves where these are received in
    place.
    """
    np = pytest.importorskip("numpy")
    mine, copied, large = np.arange(6.0), np.arange(3), np.zeros(HUGE_PAGE, "uint8")
    state = transfer.State()
    state.register("own", lambda: [mine, mine[1:3], np.zeros(0)], lambda _: None, in_place=True)
    state.register("given", lambda: {"x": copied, "large": large, "n": 3}, lambda _: None)
    state.allocate_buffers()
    buffers = state._buffers
    assert {name: part.nbytes for name, part in buffers.items()} == {
        "own/0": 48,
        "own/1": 16,
        "own/2": 0,
        "given/x": 24,
        "given/large": large.nbytes,
    }
    buffers["own/0"][8:16] = b"\0" * 8
    assert mine.tolist() == [0, 0, 2, 3, 4, 5], "an own array is received into"
    for name in ("own/1", "given/x", "given/large"):
        buffers[name][:] = b"\1" * buffers[name].nbytes
    assert (
        mine.tolist() == [0, 0, 2, 3, 4, 5] and copied.tolist() == [0, 1, 2] and not large.any()
    ), "what is shared, or not own, is not"


def test_names_that_are_the_same_share_no_room():
    """Two names of one array get memory of their own."""
    np = pytest.importorskip("numpy")
    arrays = {1: np.zeros(2), "1": np.ones(2)}
    state = transfer.State()
    state.register("own", lambda: arrays, lambda _: None, in_place=True)
    state.allocate_buffers()
    ((name, part),) = state._buffers.items()
    assert name == "own/1" and ctypes.addressof(ctypes.c_ubyte.from_buffer(part)) not in [
        a.ctypes.data for a in arrays.values()
    ]
