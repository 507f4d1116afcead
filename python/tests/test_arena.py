"""Arena arrays: where they lie, when they are freed, and what stands in for foreign memory."""

import ctypes
import gc
import os
import sys

import numpy
import pytest

import shoal
from shoal._runtime.arena import POOL_BYTES
from shoal._runtime.protocol import HUGE_PAGE
from shoal._runtime.tensor import describe


def test_arrays_are_aligned_and_apart(agent):
    """Arrays begin at multiples of 64 bytes and do not overlap."""
    job = agent.join()
    arrays = [
        job.zeros(n, dtype)
        for n in (0, 1, 15, 16, 17, 1000)
        for dtype in ("uint8", "float32", "float64", ">i2")
    ]
    for i, x in enumerate(arrays):
        assert x.ctypes.data % 64 == 0 and x.flags.c_contiguous and x.flags.writeable
        x.fill(i)
    assert all((x == i).all() for i, x in enumerate(arrays))
    assert len(agent.sessions[0].segments) == 1


def test_shapes(agent):
    """A shape may be an integer or integers of any kind; one that no memory can hold is refused."""
    job = agent.join()
    for shape, want in (
        (3, (3,)),
        (numpy.int64(3), (3,)),
        ((2, numpy.int32(3)), (2, 3)),
        (numpy.array([2, 3]), (2, 3)),
        ((), ()),
    ):
        assert job.empty(shape).shape == want
    with pytest.raises(shoal.ArenaError, match="larger than any memory"):
        job.empty(1 << 62)


def test_zeros_of_any_type(agent):
    """All bytes are 0, also of texts, of bytes and of memory that was used before."""
    job = agent.join()
    for dtype in ("U3", "S2", "V4", "M8[s]", "i4,f8", "float16", "bool"):
        job.empty(5, "int64").fill(-1)
        x = job.zeros(5, dtype)
        assert x.dtype == dtype and x.tobytes() == bytes(x.nbytes), dtype
    assert job.zeros((), "int32") == 0 and job.zeros((0, 3)).shape == (0, 3)


def test_an_array_that_became_read_only_gets_no_result(agent):
    """The description that is kept of an array does not outlive a change of its flags."""
    job = agent.join()
    x = job.zeros(3)
    job.allreduce(x)
    x.setflags(write=False)
    with pytest.raises(ValueError, match="read-only"):
        job.allreduce(x)
    x.setflags(write=True)
    job.allreduce(x)


def test_bfloat16_needs_ml_dtypes(agent):
    """An array of bfloat16 is one of ml_dtypes' type; without that package the error says what to
    install.
    """
    job = agent.join()
    try:
        from ml_dtypes import bfloat16
    except ImportError:
        with pytest.raises(TypeError, match="pip install ml_dtypes"):
            job.empty(3, "bf16")
        return
    x = job.zeros((2, 3), "bfloat16")
    assert x.dtype == bfloat16
    job.broadcast(x)
    assert agent.calls[-1]["dtype"] == 4 and agent.calls[-1]["shape"] == (2, 3)


def test_memory_comes_back_when_the_last_view_dies(agent):
    """Memory is used again once no view of it is left, and not before."""
    job = agent.join()
    x = job.empty(1000)
    address = x.ctypes.data
    view = memoryview(x[10:20].reshape(2, 5)[1:])
    del x
    y = job.empty(1000)
    assert y.ctypes.data != address, "a view still needs it"
    del view, y
    gc.collect()
    assert job.empty(1000).ctypes.data == address


def test_the_pool_grows_in_steps_and_is_reused(agent):
    """Arrays of 40 MB get three segments of the pool, and those after them get no more."""
    job = agent.join()
    arrays = [job.empty(1 << 20, "uint8") for _ in range(40)]
    sizes = [len(s) for s in agent.sessions[0].segments.values()]
    assert sizes == [POOL_BYTES] * 3
    for _ in range(3):
        del arrays
        arrays = [job.empty(1 << 20, "uint8") for _ in range(48)]
    assert len(agent.sessions[0].segments) == 3 and not agent.sessions[0].freed


def test_only_memory_of_its_own_may_come_later(agent):
    """`later` is asked for only for a lazy buffer that has a segment of its own."""
    job = agent.join()
    blocks = [
        job._backend.buffer(nbytes, lazy)
        for nbytes, lazy in ((POOL_BYTES - 1, True), (POOL_BYTES, True), (POOL_BYTES, False))
    ]
    assert [r.get("later") for r in agent.requests if r["type"] == "segment"] == [None, True, None]
    made = [os.fstat(s.mapping._fd).st_blocks * 512 for s in job._backend.arena._table[1]]
    assert sorted(made) == [0, POOL_BYTES, POOL_BYTES]
    del blocks


def test_a_big_array_has_a_segment_of_its_own_and_gives_it_back(agent):
    """The segment of an array that is larger than the pool's goes back to the agent with the
    array.
    """
    job = agent.join()
    small, big = job.zeros(10), job.zeros(POOL_BYTES + 1, "uint8")
    assert [len(s) for s in agent.sessions[0].segments.values()] == [POOL_BYTES, POOL_BYTES + 4096]
    job.broadcast(big)
    assert agent.calls[-1]["seg_in"] == 2 and agent.calls[-1]["n_in"] == POOL_BYTES + 1
    del big
    more = job.zeros(10)
    assert agent.sessions[0].freed == [2]
    for x in (small, more):
        assert job.allreduce(x) is x and agent.calls[-1]["seg_in"] == 1


@pytest.mark.parametrize("nbytes", [POOL_BYTES, POOL_BYTES + 5000])
def test_segments_start_where_huge_pages_do(agent, nbytes):
    """An array is aligned to a huge page, and the agent sees what is written into it at both
    ends.
    """
    x = agent.join().empty(nbytes, "uint8")
    assert x.ctypes.data % HUGE_PAGE == 0
    x[:], x[-1] = 7, 8
    seen = agent.sessions[0].segments[1]
    assert (seen[0], seen[nbytes - 1]) == (7, 8)


def test_an_array_of_a_call_under_way_is_kept(agent):
    """The arrays of a call are not freed before the agent is done with them."""
    job = agent.join()
    agent.going.clear()
    x = job.zeros(1000)
    address = x.ctypes.data
    handle = job.allreduce_async(x)
    del x, handle
    assert job.empty(1000).ctypes.data != address
    agent.going.set()
    job.barrier()
    job._backend.calls.settle_completed()
    assert job.empty(1000).ctypes.data == address


def test_views_are_found_in_the_arena(agent):
    """Views of an arena array are used where they lie."""
    job = agent.join()
    x = job.zeros((4, 100), "float64")
    job.allreduce(x)
    job.allreduce(x[2])
    job.allreduce(x.view("int64")[1:3])
    whole, row, part = agent.calls
    assert row["off_in"] == whole["off_in"] + 1600 and row["seg_in"] == 1 and row["n_in"] == 100
    assert (
        part["off_in"] == whole["off_in"] + 800 and part["dtype"] == 5 and part["shape"] == (2, 100)
    )
    x.shape = (400,)  # in place: a remembered description must not survive it
    job.allreduce(x)
    assert agent.calls[-1]["shape"] == (400,)
    x.dtype = "int64"
    job.allreduce(x)
    assert agent.calls[-1]["dtype"] == 5


def test_what_the_agent_cannot_address_goes_through_a_stand_in(agent):
    """Arena memory that is not aligned or not contiguous is copied as foreign memory is."""
    job = agent.join()
    raw = job.zeros(100, "uint8")
    odd = raw[1:41].view("float32")
    odd[:] = 5
    assert job.allreduce(odd) is odd and (odd == 5).all()
    assert agent.calls[-1]["off_in"] % 64 == 0
    strided = job.zeros((4, 6))
    strided[:, ::2] = 3
    job.allgather(strided[:, ::2])
    assert agent.calls[-1]["shape"] == (4, 3) and agent.calls[-1]["off_in"] % 64 == 0


@pytest.mark.parametrize("kind", ["numpy", "strided", "bytearray", "torch"])
def test_foreign_memory_costs_no_new_memory_in_steady_state(agent, kind):
    """The same few buffers stage foreign memory again and again."""
    job = agent.join()
    if kind == "torch":
        x = pytest.importorskip("torch").ones(1000)
    else:
        x = {
            "numpy": numpy.ones(1000),
            "strided": numpy.ones((1000, 2))[:, 1],
            "bytearray": bytearray(b"\1" * 1000),
        }[kind]
    for _ in range(20):
        assert job.allreduce(x) is x and sum(x) == 1000
    places = {(c["seg_in"], c["off_in"]) for c in agent.calls}
    assert len(places) == 1 and len(agent.sessions[0].segments) == 1
    handles = [job.allreduce_async(numpy.ones(1000)) for _ in range(3)]
    for handle in handles:
        handle.wait()
    assert len({c["off_in"] for c in agent.calls[-3:]}) == 3, (
        "calls under way do not share a stand-in"
    )


def test_a_handle_that_nobody_waits_for_gives_its_stand_in_back(agent):
    """The staging of a call is given back when its handle is garbage."""
    job = agent.join()
    for _ in range(3 * agent.slots):
        job.allreduce_async(numpy.ones(1000))
        job.barrier()
    assert len({c["off_in"] for c in agent.calls if c["kind"] == 1}) <= agent.slots + 1


def test_what_lends_a_copy_is_copied(agent):
    """A scalar keeps its value though its interface is gone, and what lends bytes has theirs."""
    job = agent.join()

    class Image:
        """What says in bytes which data it has, as an image of PIL does."""

        __array_interface__ = {"version": 3, "typestr": "|u1", "shape": (3,), "data": b"abc"}

    tensors = [describe(numpy.float64(i)) for i in range(8)]
    values = [ctypes.c_double.from_address(t.address).value for t in tensors]
    assert values == list(range(8)) and not any(t.writable for t in tensors)
    assert bytes(job.allgather(Image())) == b"abc"
    for x in (numpy.float64(1), Image()):
        with pytest.raises(ValueError, match="the result cannot be written to this read-only"):
            job.allreduce(x)


def test_a_torch_tensor_without_memory_is_refused(agent):
    """A tensor around others, as a DTensor is, has no address that could be read or written."""
    torch = pytest.importorskip("torch")

    class Wrapper(torch.Tensor):
        """A tensor that only has a shape and a type."""

        __torch_dispatch__ = None

    job = agent.join()
    x = torch.Tensor._make_wrapper_subclass(Wrapper, (3,), dtype=torch.float32)
    with pytest.raises(TypeError, match=r"a Wrapper has no memory of its own: .*x.to_local\(\)"):
        job.allreduce(x)
    assert not agent.calls


def test_no_memory(agent):
    """Where the agent refuses memory, ArenaError has its reason."""
    job = agent.join()
    agent.answer = lambda request: (
        b'{"type":"error","error":"arena: 1 TiB asked for, 8 GiB free: use fewer workers"}'
    )
    with pytest.raises(shoal.ArenaError, match="use fewer workers"):
        job.empty(1 << 40, "uint8")


def test_memory_that_cannot_be_mapped_is_given_back(agent, monkeypatch):
    """The agent frees a segment for which the worker has no addresses, which it may ask again."""
    job = agent.join()
    monkeypatch.setattr("shoal._runtime.fork._mmap", lambda *_: -1)
    for _ in range(2):
        with pytest.raises(shoal.ArenaError, match="cannot map .* of shared memory"):
            job.empty(5)
    assert agent.sessions[0].freed == [1, 2] and not agent.sessions[0].segments


NO_DESCRIPTORS = """
import os, resource, numpy, shoal
job = shoal.join()
before = resource.getrlimit(resource.RLIMIT_NOFILE)
first_free = os.open("/dev/null", os.O_RDONLY)
os.close(first_free)
resource.setrlimit(resource.RLIMIT_NOFILE, (first_free, before[1]))
for call in (lambda: job.empty(1 << 23), lambda: job.shared("x", 1)):
    try:
        call()
    except shoal.ArenaError as err:
        assert "as many files open as it may" in str(err) and "ulimit -n" in str(err), err
    else:
        raise AssertionError("there is memory")
resource.setrlimit(resource.RLIMIT_NOFILE, before)
x = job.zeros(1 << 23)
job.allreduce(x, out=job.shared("y", 1 << 23))
"""


def test_no_descriptors(launch):
    """A process that has too many files open is told so, and has memory when it has closed some."""
    launch(1, NO_DESCRIPTORS)


def test_arrays_stay_readable_after_leaving(agent):
    """Arrays of the arena keep their elements, and can be written to, after the job was left."""
    job = agent.join()
    x = job.zeros(5) + 0
    y = job.zeros(5)
    y[:] = 3
    job.leave()
    assert (y == 3).all() and (x == 0).all()
    del y
    gc.collect()


def test_a_ctrl_c_where_an_array_dies_is_heard(agent):
    """No line of Python runs where an array dies, in which a Ctrl-C would be lost with the memory
    of the array.
    """
    job = agent.join()
    small, big = job.zeros(10), job.zeros(POOL_BYTES, "uint8")
    view = small[2:]
    job.allreduce(view)
    assert id(view) in job._backend._described
    seen = []
    sys.setprofile(lambda frame, event, _: seen.append(frame.f_code) if event == "call" else None)
    del big, view
    sys.setprofile(None)
    assert not seen and not job._backend._described
    more = job.zeros(10)
    assert agent.sessions[0].freed == [2] and small.ctypes.data != more.ctypes.data
