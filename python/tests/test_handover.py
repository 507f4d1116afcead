"""How the state is cut into pieces for those who join."""

import itertools
import random

import pytest

from shoal import _handover


@pytest.mark.parametrize("seed", range(50))
def test_a_piece_is_the_parts_of_items_that_it_names(seed):
    choice = random.Random(seed)
    sizes = [choice.choice([0, 0, 1, 3, 10]) for _ in range(choice.randrange(8))]
    ends = list(itertools.accumulate(sizes))
    whole = [(item, byte) for item, size in enumerate(sizes) for byte in range(size)]
    start, stop = sorted(choice.randrange(len(whole) + 1) for _ in range(2))
    assert [(i, byte) for i, first, last in _handover._within(ends, start, stop) for byte in range(first, last)] == whole[start:stop]


@pytest.mark.parametrize("whole", [0, 1, _handover.PIECE, _handover.PIECE + 1, 5 * _handover.PIECE])
def test_pieces_cover_the_state(whole):
    cuts = _handover._cut([0, whole // 3, whole])
    assert [at for cut in cuts for at in range(cut[0], cut[1], _handover.PIECE)] == list(range(0, whole, _handover.PIECE))
    assert (cuts[-1][1] if cuts else 0) == whole
