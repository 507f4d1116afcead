"""What counts as an array, what it is taken for, and what the errors advise."""

from array import array

import numpy
import pytest

from shoal._runtime.tensor import describe


@pytest.mark.parametrize(
    "name", ["float64", "float32", "float16", "int64", "int32", "uint8", "bool"]
)
def test_numpy(name):
    """A NumPy array of each type is described as it is."""
    x = numpy.ones((3, 4), name)
    t = describe(x)
    assert (t.dtype.name, t.shape, t.count, t.nbytes, t.address) == (
        name,
        (3, 4),
        12,
        x.nbytes,
        x.ctypes.data,
    )
    assert t.contiguous and t.writable


@pytest.mark.parametrize(
    "code, name",
    [
        ("d", "float64"),
        ("f", "float32"),
        ("q", "int64"),
        ("l", "int64"),
        ("i", "int32"),
        ("B", "uint8"),
    ],
)
def test_array_and_memoryview(code, name):
    """An array.array, and a memoryview of one, is described as it is."""
    x = array(code, [1, 2, 3])
    for y in (x, memoryview(x)):
        t = describe(y)
        assert (t.dtype.name, t.shape, t.address) == (name, (3,), x.buffer_info()[0])


def test_bytes_are_an_input_only():
    """bytes can be read, and not written to."""
    t = describe(b"abc")
    assert t.dtype.name == "uint8" and not t.writable
    target = bytearray(3)
    t.copy_to(describe(target).address)
    assert target == b"abc"


def test_torch():
    """A torch tensor on the CPU is described as it is; others are refused."""
    torch = pytest.importorskip("torch")
    for name in ("float64", "float32", "float16", "bfloat16", "int64", "int32", "uint8", "bool"):
        x = torch.ones((2, 3), dtype=getattr(torch, name))
        t = describe(x)
        assert (t.dtype.name, t.shape, t.address) == (name, (2, 3), x.data_ptr())
    assert not describe(torch.ones((2, 3)).t()).contiguous
    for wrong in (torch.ones(2, device="meta"), torch.ones(2, 2).to_sparse()):
        with pytest.raises(TypeError, match="CPU tensor"):
            describe(wrong)


class OnlyDlpack:
    """An array of another library, which knows DLPack only."""

    def __init__(self, x):
        """An array around a NumPy one."""
        self.x = x

    def __dlpack__(self, **options):
        """What NumPy's array returns."""
        return self.x.__dlpack__(**options)

    def __dlpack_device__(self):
        """What NumPy's array returns."""
        return self.x.__dlpack_device__()


@pytest.mark.skipif(not hasattr(numpy.ndarray, "__dlpack__"), reason="needs NumPy 1.22")
def test_dlpack():
    """An array of another library is found through DLPack."""
    x = numpy.arange(5.0)
    assert describe(OnlyDlpack(x)).address == x.ctypes.data


def test_another_name_for_the_elements():
    """The same bytes can be described as elements of another type, where their number fits."""
    x = numpy.zeros(6, "int16")
    t = describe(x, "bf16")
    assert (t.dtype.name, t.shape, t.address) == ("bfloat16", (6,), x.ctypes.data)
    t = describe(x, "f32")
    assert (t.dtype.name, t.shape) == ("float32", (3,))
    t = describe(numpy.zeros(2, "datetime64[s]"), "i64")
    assert (t.dtype.name, t.shape) == ("int64", (2,))
    assert describe(numpy.array(["abc", "de"]), "u8").shape == (24,), "four bytes a letter"
    with pytest.raises(TypeError, match="multiple of 8"):
        describe(x, "f64")
    with pytest.raises(TypeError, match="no dtype 'int7'"):
        describe(x, "int7")


@pytest.mark.parametrize(
    "x, advice",
    [
        (numpy.zeros(2, "int16"), "astype"),
        (numpy.zeros(2, "complex128"), "astype"),
        (numpy.zeros(2, ">f4"), "other byte order"),
        (array("h", [1]), "astype"),
        (1.5, "numpy.array"),
        ([1.0, 2.0], "not on list"),
        (None, "not on NoneType"),
        ("text", "not on str"),
    ],
)
def test_what_is_no_array_of_ours(x, advice):
    """The error for what cannot be described says what to do."""
    with pytest.raises(TypeError, match=advice):
        describe(x)


@pytest.mark.parametrize(
    "view",
    [lambda x: x[::2], lambda x: x[:, 1:], lambda x: x.T, lambda x: x[::-1], lambda x: x[:, 0]],
)
def test_strided_copies_are_in_c_order(view):
    """A strided view is copied out as NumPy flattens it, and copied into without a change of what
    lies between.
    """
    x = numpy.arange(24, dtype="int64").reshape(4, 6)
    strided = view(x)
    t = describe(strided)
    assert not t.contiguous
    flat = numpy.empty(strided.size, "int64")
    t.copy_to(flat.ctypes.data)
    assert (flat == strided.ravel()).all()
    numpy.negative(flat, out=flat)
    t.copy_from(flat.ctypes.data)
    assert (strided.ravel() == flat).all() and (x < 0).sum() == (flat < 0).sum()


def test_strided_memoryview():
    """The elements of a strided memoryview are copied out and back."""
    x = array("d", range(6))
    t = describe(memoryview(x)[::2])
    flat = array("d", [0] * 3)
    t.copy_to(flat.buffer_info()[0])
    assert list(flat) == [0, 2, 4]
    flat[1] = 9
    t.copy_from(flat.buffer_info()[0])
    assert list(x) == [0, 1, 9, 3, 4, 5]


def test_a_dimension_of_one_may_have_any_stride():
    """Strides that no element is reached by do not make an array strided."""
    x = numpy.zeros((4, 5))[1:2]
    assert describe(x).contiguous and describe(numpy.zeros((3, 0)).T).contiguous
