"""How the state is cut into pieces for those who join."""

import ctypes
import itertools
import json
import random

import pytest

from shoal._checkpoint.shards import catalogue
from shoal._live import transfer
from shoal._runtime.protocol import HUGE_PAGE
from shoal._runtime.tree import flatten, unflatten
from shoal.errors import ShoalError


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
@pytest.mark.parametrize("common", [None, 0, 1])
def test_pieces_cover_the_state(whole, common):
    """The pieces follow each other without a gap, and none is too large. Members take turns in
    sending what all have, and rank 0 sends what differs between them.
    """
    ends = [whole // 3, whole]
    pieces = transfer._pieces(ends, common, 3)
    at = 0
    for start, stop, _ in pieces:
        assert start == at
        at = stop
    assert all(0 < stop - start <= transfer.PIECE for start, stop, _ in pieces)
    assert at == whole
    middle = {None: whole, 0: 0, 1: whole // 3}[common]
    turns = [sender for start, _, sender in pieces if start < middle]
    assert turns == [k % 3 for k in range(len(turns))]
    assert all(stop <= middle or start >= middle for start, stop, _ in pieces)
    assert not any(sender for start, _, sender in pieces if start >= middle)


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


def _hand_on(value):
    """A value as a worker that joins gets it, and the tensors of a checkpoint with it."""
    items = []
    plan = json.loads(json.dumps(flatten("state", value, items)))
    return unflatten(plan, [item.memory() for item in items]), catalogue(items)


def test_scalars_of_numpy_stay_scalars():
    """What comes out is of the type of what went in, and an array without dimensions is one."""
    np = pytest.importorskip("numpy")
    given = [np.float32(3), np.float64(0.5), np.int64(7), np.bool_(True), np.array(3.0)]
    given.append(np.datetime64("2026-11-29"))
    found, _ = _hand_on(given)
    assert found == given and list(map(type, found)) == list(map(type, given))


def test_what_differs_between_workers_has_no_arrays():
    """An array in a value that need not be alike is refused, and so is a scalar of NumPy, each with
    what to return in its place.
    """
    np = pytest.importorskip("numpy")
    state = transfer.State()
    with pytest.raises(TypeError, match=r"own differs.* has an array: .*x\.tobytes\(\)"):
        state.register("own", lambda: np.zeros(2), print, alike=False)
    with pytest.raises(TypeError, match=r"a scalar of NumPy.* \(own/best\): .*x\.item\(\)"):
        state.register("own", lambda: {"best": np.float32(1)}, print, alike=False)


def test_a_tensor_around_others_is_refused():
    """A tensor of torch without memory of its own, as a DTensor is, is named when it is registered:
    its bytes would be read at address 0.
    """
    torch = pytest.importorskip("torch")

    class Wrapper(torch.Tensor):
        """A tensor that only has a shape and a type."""

        @classmethod
        def __torch_dispatch__(cls, function, types, arguments=(), options=None):
            return arguments[0]

    x = torch.Tensor._make_wrapper_subclass(Wrapper, (3,), dtype=torch.float32)
    with pytest.raises(TypeError, match=r"net/w is a Wrapper without memory .*x\.to_local\(\)"):
        transfer.State().register("net", lambda: {"w": x}, print)


def test_types_of_ml_dtypes_are_handed_on():
    """Arrays and scalars of bfloat16, also in a checkpoint. What has fields is refused."""
    np = pytest.importorskip("numpy")
    with pytest.raises(TypeError, match="state is an array of .*'a'"):
        flatten("state", np.zeros(2, [("a", "f4")]), [])
    bfloat16 = pytest.importorskip("ml_dtypes").bfloat16
    (array, scalar), tensors = _hand_on([np.arange(3).astype(bfloat16), bfloat16(0.5)])
    assert array.dtype == bfloat16 and array.tolist() == [0, 1, 2]
    assert type(scalar) is bfloat16 and scalar == 0.5
    assert [(t.dtype, t.shape) for t in tensors] == [("BF16", [3]), ("BF16", [])]


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


class _Handover:
    """A world of two ranks on one thread, as far as a handover needs it: all that rank 0 sends is
    kept, and what rank 1 receives is taken from there.
    """

    size, rank = 2, 0

    def __init__(self):
        """Nothing is sent yet."""
        self._backend = self
        self.kept = []  # what was broadcast or sent, in that order
        self.sent = 0  # bytes of the pieces of the state

    def buffer(self, nbytes):
        """Memory for a piece."""
        return (ctypes.c_ubyte * nbytes)()

    def broadcast(self, array):
        """Keep the array of rank 0, or fill that of rank 1."""
        if self.rank == 0:
            self.kept.append(array[:])
        else:
            array[:] = self.kept.pop(0)
        return array

    def send_async(self, piece, rank, tag):
        """Keep a piece; its handle is complete."""
        self.kept.append(bytes(piece))
        self.sent += len(piece)
        return self

    def recv_async(self, memory, rank, tag):
        """Fill the memory with the next piece; its handle is complete."""
        memory[:] = self.kept.pop(0)
        return self

    def wait(self):
        """Return at once."""


def _hand_over(given, taker, in_place, monkeypatch):
    """Hand over the arrays `given`, by name, to a worker that has the arrays `taker`. Returns the
    value that it takes, how many bytes were sent, and how many it has allocated for them.
    """
    giver, receiver, taken, made = transfer.State(), transfer.State(), [], []

    def counted(nbytes):
        """As allocate_touched, and note the bytes."""
        made.append(nbytes)
        return memoryview(bytearray(nbytes))

    monkeypatch.setattr(transfer, "allocate_touched", counted)
    giver.register("x", lambda: given, lambda _: None, in_place=in_place)
    receiver.register("x", lambda: taker, taken.append, in_place=in_place)
    world = _Handover()
    giver.send_to_newcomers(world, 1, 0)
    world.rank = 1
    receiver.allocate_buffers()
    assert receiver.receive_from_members(world, 1) and not world.kept
    return taken[0], world.sent, sum(made)


def test_memory_with_two_names_is_handed_over_once(monkeypatch):
    """A tied weight travels once, into the memory that the receiver has for it; where only one of
    the two has tied it, or the value is a copy, each name has its own.
    """
    np = pytest.importorskip("numpy")
    one, two = np.arange(4.0), np.arange(2.0)
    tied = {"in": one, "two": two, "out": one}
    own = np.zeros(4)
    value, sent, made = _hand_over(
        tied, {"in": own, "two": np.zeros(2), "out": own}, True, monkeypatch
    )
    assert (sent, made) == (48, 0)
    assert value["in"].ctypes.data == value["out"].ctypes.data == own.ctypes.data
    assert value["out"].tolist() == one.tolist() and value["two"].tolist() == two.tolist()

    apart = {"in": np.zeros(4), "two": np.zeros(2), "out": np.zeros(4)}
    value, sent, made = _hand_over(tied, apart, True, monkeypatch)
    assert sent == 48 and value["out"].tolist() == value["in"].tolist() == one.tolist()

    other = {"in": one, "two": two, "out": one + 1}
    value, sent, made = _hand_over(
        other, {"in": own, "two": np.zeros(2), "out": own}, True, monkeypatch
    )
    assert (sent, made) == (80, 32) and value["out"].tolist() == (one + 1).tolist()
    assert value["in"].ctypes.data != value["out"].ctypes.data

    value, sent, made = _hand_over(tied, tied, False, monkeypatch)
    assert (sent, made) == (80, 80)
    value["in"][0] = 7
    assert value["out"].tolist() == one.tolist()


class _Third(_Handover):
    """A world of three ranks, of which 0 and 1 are members, as `_Handover` has it."""

    size = 3


def test_a_member_with_another_state_gives_nothing():
    """A member whose items are not those of the header would read beyond its arrays, or give a
    piece of another tensor: it raises an error that names the first item that differs.
    """
    np = pytest.importorskip("numpy")
    small, large = np.zeros(2), np.zeros(1 << 20)
    for mine, named in (
        ({"a": small, "b": small}, "x/b with 16 bytes, another has x/b with 8388608 bytes"),
        ({"b": large, "a": small}, "x/b with 8388608 bytes, another has x/a with 16 bytes"),
        ({"a": small}, "no more, another has x/b"),
    ):
        world = _Third()
        for rank, arrays in enumerate(({"a": small, "b": large}, mine)):
            world.rank = rank
            state = transfer.State()
            state.register("x", lambda arrays=arrays: arrays, lambda _: None)
            if rank == 0:
                state.send_to_newcomers(world, 1, 0)
                continue
            with pytest.raises(ShoalError, match=named):
                state.send_to_newcomers(world, 1, 0)
