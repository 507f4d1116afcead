"""Describes a user's array for a call: where its bytes lie, what type the elements are, and how to
copy them when they are not in the arena.

An array is taken for the first of these that it is: a torch CPU tensor, a NumPy array or whatever
has `__array_interface__`, an object with the buffer protocol, or through NumPy with `__dlpack__`.

Any thread may call the functions, which take no lock and wait for nobody. Arrays and memory stay
the caller's.
"""

from __future__ import annotations

import ctypes
import operator
import sys
from typing import Any, Dict, Iterable, Optional, Sequence, Tuple, Union

from .arguments import wrong_type
from .protocol import BF16, DTYPES, DType, pack_shape
from .shared import SharedPlace, SharedResults

Shape = Tuple[int, ...]

_FORMATS: Dict[str, str] = {
    "d": "float64",
    "f": "float32",
    "e": "float16",
    "i": "int32",
    "q": "int64",
    "l": "int64",
    "n": "int64",
    "B": "uint8",
    "?": "bool",
}
_TYPESTRS: Dict[str, str] = {
    "<f8": "float64",
    "<f4": "float32",
    "<f2": "float16",
    "<i8": "int64",
    "<i4": "int32",
    "|u1": "uint8",
    "|b1": "bool",
}
_ADVICE = (
    "shoal computes on float64, float32, float16, bfloat16, int64, int32 and uint8 (bool for min"
    " and max). Convert it, for example with x.astype('float32'), or send its bytes with"
    " x.view('uint8')"
)


class Tensor:
    """A described array. `address` is 0 where the memory cannot be pointed at and must be copied by
    `array`'s own means. Once the backend has described it, it is not changed, and any thread may
    use it; `copy_from` changes the elements of the array.
    """

    __slots__ = (
        "array",
        "dtype",
        "shape",
        "count",
        "nbytes",
        "address",
        "contiguous",
        "writable",
        "ndim",
        "shape_bytes",
        "place",
        "shared",
        "__weakref__",
    )

    def __init__(
        self, array: Any, dtype: DType, shape: Shape, address: int, contiguous: bool, writable: bool
    ) -> None:
        """A description of an array, which it keeps alive. Its place in the arena is not looked
        for.
        """
        count = element_count(shape)
        self.array = array
        self.dtype = dtype
        self.shape = shape
        self.count = count
        self.nbytes = count * dtype.itemsize
        self.address = address
        self.contiguous = contiguous
        self.writable = writable
        self.ndim, self.shape_bytes = pack_shape(shape, count)
        # Segment id and offset in bytes in the arena; None = the array lies elsewhere.
        self.place: Optional[Tuple[int, int]] = None
        # The shared result that the array lies in, and where; None = in none.
        self.shared: Optional[SharedPlace] = None

    def copy_to(self, address: int, start: int = 0, nbytes: int = -1) -> None:
        """Copy the elements, in C order, to memory at an address. Of contiguous ones it can be the
        part that begins with byte `start`, of at most nbytes (-1: all elements, from the first).
        """
        if self.contiguous:
            ctypes.memmove(
                address,
                self.address + start,
                min(nbytes, self.nbytes - start) if nbytes >= 0 else self.nbytes,
            )
        else:
            self._copy_strided(address, into=True)

    def copy_from(self, address: int, start: int = 0, nbytes: int = -1) -> None:
        """Set the elements from memory at an address, or a part of them, as in `copy_to`."""
        if self.contiguous:
            ctypes.memmove(
                self.address + start,
                address,
                min(nbytes, self.nbytes - start) if nbytes >= 0 else self.nbytes,
            )
        else:
            self._copy_strided(address, into=False)

    def _copy_strided(self, address: int, into: bool) -> None:
        """Copy all elements, which are not contiguous, to memory at an address, or with into=False
        from there.
        """
        memory = (ctypes.c_ubyte * self.nbytes).from_address(address)
        if isinstance(self.array, memoryview):
            flat = memoryview(memory).cast("B")
            if into:
                flat[:] = self.array.tobytes()
            elif self.array.ndim == 1:
                form: Any = self.array.format
                self.array[:] = flat.cast(form)
            else:
                raise TypeError(
                    "a strided memoryview of several dimensions cannot be written to: give a"
                    " contiguous one"
                )
            return
        other = array_like(self.array, self.dtype, self.shape, memory)
        target, source = (other, self.array) if into else (self.array, other)
        if is_torch(self.array):
            target.detach().copy_(source.detach())
        else:
            target[...] = source


def mark_shared(tensor: Tensor, results: SharedResults) -> None:
    """Set the `shared` and `writable` of a tensor that lies in a shared result: only the agent
    writes it.
    """
    found = results.locate(tensor.address, tensor.nbytes if tensor.contiguous else 1)
    if found is not None:
        tensor.writable = False
        if tensor.contiguous and found[1] % tensor.dtype.itemsize == 0:
            tensor.shared = found


def is_torch(x: Any) -> bool:
    """Whether x is a torch tensor. Where nobody has imported torch this is False, and does not
    import it.
    """
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(x, getattr(torch, "Tensor", ()))


def describe(x: Any, dtype: Optional[str] = None) -> Tensor:
    """Describe an array, which stays the caller's. `dtype` names what the elements are where the
    array's own type cannot (bf16 in int16 memory).

    Raises TypeError for what is no array, is not on the CPU, or has elements that shoal does not
    compute on.
    """
    if is_torch(x):
        t = _describe_torch(x, dtype is not None)
    else:
        interface = getattr(x, "__array_interface__", None)
        if interface is not None:
            t = _describe_interface(x, interface, dtype is not None)
        else:
            t = _describe_buffer(x, dtype is not None)
    return t if dtype is None else _reinterpret(t, find_dtype(dtype))


def find_dtype(dtype: Any) -> DType:
    """The element type of a name ("float32", "bf16"), a NumPy dtype or a torch dtype. Raises
    TypeError where there is none.
    """
    if isinstance(dtype, str):
        name = dtype
    elif isinstance(dtype, type):
        name = dtype.__name__
    else:
        name = str(getattr(dtype, "name", dtype))
    found = DTYPES.get(name.rpartition(".")[2])
    if found is None:
        raise TypeError(f"no dtype {name!r}: {_ADVICE}")
    return found


def array_like(x: Any, dtype: DType, shape: Shape, memory: Any) -> Any:
    """An array of x's kind over writable memory (of at least the size), which it keeps alive: torch
    for torch, NumPy for NumPy, else a memoryview.
    """
    if is_torch(x):
        torch = sys.modules["torch"]
        if not element_count(shape):
            return torch.empty(shape, dtype=getattr(torch, dtype.name))
        return torch.frombuffer(
            memory, dtype=getattr(torch, dtype.name), count=element_count(shape)
        ).view(shape)
    if hasattr(x, "__array_interface__"):
        return numpy_view(x.dtype if hasattr(x, "dtype") else dtype.name, shape, memory)
    form: Any = next((f for f, name in _FORMATS.items() if name == dtype.name), dtype.name)
    flat = memoryview(memory).cast("B")[: element_count(shape) * dtype.itemsize]
    try:
        return flat.cast(form)
    except ValueError:  # many Pythons make none of float16
        raise TypeError(
            f"this Python makes no memoryview of {dtype.name} for the result: give `out`, or the"
            " array itself, as numpy.asarray(x) is one"
        ) from None


def numpy_view(dtype: Any, shape: Shape, memory: Any) -> Any:
    """A NumPy array over memory, which it keeps alive."""
    import numpy

    return numpy.ndarray(shape, dtype, buffer=memory)


def read_only_view(dtype: Any, shape: Shape, memory: memoryview) -> Any:
    """A NumPy array over memory that is read-only, for good."""
    import numpy

    # numpy.ndarray would look through the memoryview, and find that one may write
    return numpy.asarray(memory).view(dtype).reshape(shape)


def numpy_dtype(dtype: Any) -> Any:
    """NumPy's type for a name, one of shoal's names included; bfloat16 comes from ml_dtypes."""
    try:
        import numpy
    except ImportError:
        raise ImportError(
            "shoal.empty makes NumPy arrays: `pip install numpy`, or use torch tensors or"
            " array.array"
        ) from None
    if isinstance(dtype, str) and dtype in DTYPES:
        dtype = DTYPES[dtype].name
        if dtype == BF16.name:
            try:
                from ml_dtypes import bfloat16
            except ImportError:
                raise TypeError(
                    "NumPy has no bfloat16 of its own: `pip install ml_dtypes`, or use torch, or"
                    " float32"
                ) from None
            return numpy.dtype(bfloat16)
    return numpy.dtype(dtype)


def numpy_name(dtype: Any) -> str:
    """The name by which `numpy_dtype` finds a type of NumPy's. Those of ml_dtypes are to NumPy so
    many bytes, and have another name of their own.
    """
    return str(dtype.name if dtype.type.__module__ == "ml_dtypes" else dtype.str)


def check_dtype_and_shape(shape: Union[int, Sequence[int]], dtype: Any) -> Tuple[Any, Shape]:
    """The NumPy type and the dimensions of an array to be made. Raises TypeError or ValueError for
    what shared memory cannot hold.
    """
    kind = numpy_dtype(dtype)
    if kind.hasobject:
        raise TypeError(
            f"an array of {kind} holds pointers into this process, which shared memory cannot keep:"
            " use a number type"
        )
    try:
        dims: Shape = tuple(map(operator.index, shape if isinstance(shape, Iterable) else (shape,)))
    except TypeError:
        raise wrong_type(
            "shape",
            shape,
            "the length of an array, an integer, or a list of one for each dimension",
        ) from None
    if min(dims, default=0) < 0:
        raise ValueError(f"shape {dims} has a negative dimension")
    return kind, dims


def element_count(shape: Shape) -> int:
    """The product of the dimensions; 1 for a scalar."""
    count = 1
    for n in shape:
        count *= n
    return count


# The element types by torch's own; empty until a torch tensor is described. Filled at once, by
# whichever thread is first.
_torch_dtypes: Dict[Any, DType] = {}


def _describe_torch(x: Any, opaque: bool) -> Tensor:
    """Describe a torch tensor. `opaque`: a type that shoal does not know is taken as bytes."""
    torch = sys.modules["torch"]
    if not _torch_dtypes:
        _torch_dtypes.update({getattr(torch, t.name): t for t in DTYPES.values()})
    if x.device.type != "cpu" or x.layout is not torch.strided:
        where = (
            f"a tensor on {x.device}"
            if x.layout is torch.strided
            else f"a tensor of layout {x.layout}"
        )
        raise TypeError(
            f"{where} cannot lie in the arena: give a dense CPU tensor, x.cpu() for example"
        )
    dtype = _torch_dtypes.get(x.dtype)
    if dtype is None:
        if not opaque:
            raise TypeError(f"a tensor of {x.dtype}: {_ADVICE}")
        dtype = DType(str(x.dtype), 0, x.element_size())
    address = x.data_ptr()
    if not address and x.numel():
        raise TypeError(
            f"a {type(x).__name__} has no memory of its own: give the tensor inside, x.to_local()"
            " of a DTensor for example"
        )
    dense = x.is_contiguous() and not x.is_neg()  # z.conj().imag has the memory of z.imag
    return Tensor(x, dtype, tuple(x.shape), address, dense, True)


def _describe_interface(x: Any, interface: Dict[str, Any], opaque: bool) -> Tensor:
    """Describe an array by its `__array_interface__`. `opaque`: a type that shoal does not know is
    taken as bytes.
    """
    typestr = interface["typestr"]
    name = _TYPESTRS.get(typestr)
    if name is None and getattr(getattr(x, "dtype", None), "name", "") == "bfloat16":
        name = "bfloat16"
    if name is not None:
        dtype = DTYPES[name]
    elif opaque:
        # The number of a typestr is one of letters for texts, and has a unit after it for times.
        dtype = DType(typestr, 0, x.dtype.itemsize if hasattr(x, "dtype") else int(typestr[2:]))
    else:
        order = " of the other byte order" if typestr[0] == ">" else ""
        raise TypeError(f"an array of {getattr(x, 'dtype', typestr)}{order}: {_ADVICE}")
    shape = interface["shape"]
    contiguous = interface.get("strides") is None or _is_contiguous(
        shape, interface["strides"], dtype.itemsize
    )
    data = interface.get("data")
    if data is None:
        raise TypeError(
            f"a {type(x).__name__} does not say where its data lies: wrap it with numpy.asarray(x)"
        )
    if not isinstance(data, tuple) or not hasattr(x, "__setitem__"):
        # A scalar such as numpy.float32(1) lends a copy of itself, which is gone when its interface
        # is, and an image of PIL lends bytes. Nothing may write to either.
        import numpy

        copied = numpy.array(x)
        found = _describe_interface(copied, copied.__array_interface__, opaque)
        found.writable = False
        return found
    return Tensor(x, dtype, shape, data[0], contiguous, not data[1])


def _is_contiguous(shape: Shape, strides: Shape, itemsize: int) -> bool:
    """Whether elements with these strides in bytes lie in C order without gaps."""
    if 0 in shape:
        return True
    expected = itemsize
    for n, stride in zip(reversed(shape), reversed(strides)):
        if n != 1 and stride != expected:
            return False
        expected *= n
    return True


def _describe_buffer(x: Any, opaque: bool) -> Tensor:
    """Describe an object with the buffer protocol or `__dlpack__`. Of read-only memory it describes
    a copy. `opaque`: a type that shoal does not know is taken as bytes.
    """
    try:
        view = memoryview(x)
    except TypeError:
        if hasattr(x, "__dlpack__"):
            return _describe_dlpack(x, opaque)
        raise TypeError(
            "a collective works on an array (NumPy, torch CPU tensor, array.array, memoryview),"
            f" not on {type(x).__name__}: wrap it, for example with numpy.array(x)"
        ) from None
    form = view.format.lstrip("@=<")
    name = _FORMATS.get(form)
    if name is not None and DTYPES[name].itemsize == view.itemsize:
        dtype = DTYPES[name]
    elif opaque:
        dtype = DType(form, 0, view.itemsize)
    else:
        raise TypeError(f"a {type(x).__name__} of format {view.format!r}: {_ADVICE}")
    shape = tuple(view.shape or ())
    if not view.c_contiguous:
        return Tensor(view, dtype, shape, 0, False, not view.readonly)
    writable = not view.readonly
    # Only a writable buffer tells ctypes its address.
    held = view.cast("B") if writable else memoryview(bytearray(view.tobytes()))
    address = ctypes.addressof(ctypes.c_ubyte.from_buffer(held)) if held.nbytes else 0
    return Tensor(held, dtype, shape, address, True, writable)


def _describe_dlpack(x: Any, opaque: bool) -> Tensor:
    """Describe an array of another library as NumPy sees it through DLPack. Raises TypeError where
    NumPy cannot. `opaque`: a type that shoal does not know is taken as bytes.
    """
    import numpy

    try:
        array = numpy.from_dlpack(x)
    except (RuntimeError, BufferError, TypeError, ValueError) as err:
        raise TypeError(
            f"a {type(x).__name__} that NumPy cannot take through DLPack ({err}): move it to the"
            " CPU first"
        ) from None
    return _describe_interface(array, array.__array_interface__, opaque)


def _reinterpret(t: Tensor, dtype: DType) -> Tensor:
    """The description of the same memory with elements of another type. Raises TypeError where they
    do not fit.
    """
    if t.dtype is dtype:
        return t
    shape = t.shape
    if t.dtype.itemsize != dtype.itemsize:
        if t.nbytes % dtype.itemsize:
            raise TypeError(
                f"{t.nbytes} bytes are no whole number of {dtype.name} elements: give a multiple of"
                f" {dtype.itemsize} bytes"
            )
        shape = (t.nbytes // dtype.itemsize,)
    seen = Tensor(t.array, dtype, shape, t.address, t.contiguous, t.writable)
    if not t.contiguous:
        raise TypeError(f"strided memory cannot be read as {dtype.name}: give a contiguous array")
    return seen
