"""The files of a checkpoint: a shard of the state for each worker, as safetensors.
docs/formats/job-checkpoints.md, section 2.

Any thread may call the functions. They take no lock, and only those with a path or a file block
for it. Memory that they get stays the caller's.
"""

from __future__ import annotations

import hashlib
import itertools
import json
import os
import struct
from typing import Any, Dict, Iterator, List, NamedTuple, Optional, Sequence, Tuple

from .._runtime.tensor import is_torch, numpy_name
from .._runtime.tree import Item, allocate_touched
from .fingerprint import PRIME, Key

HASHED = 4 << 20  # bytes of a file that each hash covers
_THREADS = min(os.cpu_count() or 1, 4)  # threads that read one file
_LENGTH = struct.Struct("<Q")
_MAX_HEADER = 100_000_000
_METADATA = "__metadata__"  # which is no tensor in a header
_OFFSETS = "DCP_SHARDING_INFO"
_ORIGIN = "shoal"
# What safetensors calls the element types of NumPy and of torch; all others are stored as bytes.
_TYPES = {
    "<f8": "F64",
    "<f4": "F32",
    "<f2": "F16",
    "<i8": "I64",
    "<i4": "I32",
    "<i2": "I16",
    "|i1": "I8",
    "<u8": "U64",
    "<u4": "U32",
    "<u2": "U16",
    "|u1": "U8",
    "|b1": "BOOL",
    "<c8": "C64",
    "float64": "F64",
    "float32": "F32",
    "float16": "F16",
    "bfloat16": "BF16",
    "int64": "I64",
    "int32": "I32",
    "int16": "I16",
    "int8": "I8",
    "uint64": "U64",
    "uint32": "U32",
    "uint16": "U16",
    "uint8": "U8",
    "bool": "BOOL",
    "complex64": "C64",
    "float8_e4m3fn": "F8_E4M3",
    "float8_e5m2": "F8_E5M2",
    "float8_e4m3fnuz": "F8_E4M3FNUZ",
    "float8_e5m2fnuz": "F8_E5M2FNUZ",
}


class Damaged(ValueError):
    """The bytes of a checkpoint are proved to be others than those that were sealed, or fewer."""


class TensorInfo(NamedTuple):
    """A tensor of the checkpoint."""

    name: str
    dtype: str  # name of the element type in safetensors
    shape: List[int]
    nbytes: int
    # Rank r writes the bytes from cuts[r] to cuts[r+1]; None = every rank has all bytes.
    cuts: Optional[List[int]] = None

    def cut_axis(self) -> int:
        """The dimension along which the tensor is cut, the first one longer than 1, so that every
        part is one range of bytes.
        """
        return next((i for i, n in enumerate(self.shape) if n > 1), 0)

    def row_bytes(self) -> int:
        """The bytes of one index of dimension `cut_axis()`; cuts lie between such rows."""
        rows = self.shape[self.cut_axis()] if self.shape else 1
        return max(self.nbytes // rows, 1) if rows else 1


def catalogue(items: Sequence[Item]) -> List[TensorInfo]:
    """The tensors that a checkpoint has for the items of a state, in their order, each with a name
    of its own.
    """
    tensors: List[TensorInfo] = []
    taken = {_METADATA}
    for item in items:
        array = item.array
        dtype = str(array.dtype).rpartition(".")[2] if is_torch(array) else numpy_name(array.dtype)
        shape = [int(n) for n in array.shape]
        if dtype not in _TYPES:
            dtype, shape = "uint8", [item.nbytes]
        plain = "".join(c if " " <= c <= "~" and c not in '"\\' else "_" for c in item.name)
        name = next(
            n
            for n in itertools.chain([plain], (f"{plain} {i}" for i in itertools.count(2)))
            if n not in taken
        )
        taken.add(name)
        tensors.append(TensorInfo(name, _TYPES[dtype], shape, item.nbytes, item.cuts))
    return tensors


class ByteRange(NamedTuple):
    """A range of bytes of a tensor, in one shard."""

    tensor: int  # index of the tensor in the catalogue
    start: int  # its first byte
    stop: int  # the byte after its last one


def shard_ranges(tensors: Sequence[TensorInfo], rank: int, size: int) -> List[ByteRange]:
    """The ranges that a rank writes: the bytes that only it has, and of all other bytes, in the
    order of the tensors, a share that is as equal as whole rows allow.
    """
    total = sum(k.nbytes for k in tensors if k.cuts is None)
    first, last, at, ranges = total * rank // size, total * (rank + 1) // size, 0, []
    for index, k in enumerate(tensors):
        if k.cuts is not None:
            if k.cuts[rank] < k.cuts[rank + 1]:
                ranges.append(ByteRange(index, k.cuts[rank], k.cuts[rank + 1]))
            continue
        start, stop = (
            min(max(cut - at, 0), k.nbytes) // k.row_bytes() * k.row_bytes()
            for cut in (first, last)
        )
        if start < stop or not k.nbytes and not rank:
            ranges.append(ByteRange(index, start, stop))
        at += k.nbytes
    return ranges


def shard_header(
    tensors: Sequence[TensorInfo], ranges: Sequence[ByteRange], rank: int, size: int, own: Any
) -> bytes:
    """The start of the file of a rank's shard. `own` has the values of this worker alone."""
    offsets, shapes = {}, {}
    entries: Dict[str, Any] = {}
    at = 0
    for run in ranges:
        k = tensors[run.tensor]
        shape, starts, axis = list(k.shape), [0] * len(k.shape), k.cut_axis()
        if shape and k.nbytes:
            shape[axis], starts[axis] = (
                (run.stop - run.start) // k.row_bytes(),
                run.start // k.row_bytes(),
            )
        entries[k.name] = {
            "dtype": k.dtype,
            "shape": shape,
            "data_offsets": [at, at + run.stop - run.start],
        }
        offsets[k.name], shapes[k.name] = {"saved_offsets": starts}, k.shape
        at += run.stop - run.start
    origin = {
        "rank": rank,
        "ranks": size,
        "file": 1,
        "files": 1,
        "shapes": dict(sorted(shapes.items())),
        "own": own,
    }
    return safetensors_head(
        {
            _METADATA: {_OFFSETS: _compact_json(offsets), _ORIGIN: _compact_json(origin)},
            **entries,
        }
    )


def safetensors_head(entries: Dict[str, Any]) -> bytes:
    """The start of a safetensors file: the length of the header, and the header, padded so that the
    data is aligned.
    """
    text = _compact_json(entries).encode()
    text += b" " * (-len(text) % 8)
    return _LENGTH.pack(len(text)) + text


def write_hashed(path: str, head: bytes, body: memoryview) -> List[str]:
    """Write a file of a head and a body, durably. Returns the SHA-256 of each block of it."""
    hashes = []
    with open(path, "wb", buffering=0) as file:
        for parts in _hash_blocks(head, body):
            hashed = hashlib.sha256()
            for part in parts:
                hashed.update(part)
                while part:
                    part = part[file.write(part) :]
            hashes.append(hashed.hexdigest())
        os.fsync(file.fileno())
    return hashes


def _hash_blocks(head: bytes, body: memoryview) -> Iterator[List[memoryview]]:
    """The blocks of a file that are hashed, each as its parts of the head and of the body."""
    whole = len(head) + body.nbytes
    for at in range(0, whole, HASHED):
        stop, cut = min(at + HASHED, whole), len(head)
        yield [memoryview(head)[at:stop], body[max(at - cut, 0) : max(stop - cut, 0)]]


def fingerprints(key: Key, ranges: Sequence[ByteRange], body: memoryview) -> Dict[int, int]:
    """The fingerprints of the runs, by the index of their tensor. The body has the bytes of the
    runs, one after the other.
    """
    import numpy

    found, at = {}, 0
    for run in ranges:
        total, size = 0, run.stop - run.start
        for start in range(0, size, HASHED):
            piece = numpy.frombuffer(body[at + start : at + min(start + HASHED, size)], numpy.uint8)
            total = (total + key.weighted_sum(run.start + start, piece)) % PRIME
        found[run.tensor] = total
        at += size
    return found


class ShardReader:
    """The state of a checkpoint while it is read from its shards. One thread at a time uses it; the
    memory in `parts` is the caller's.
    """

    def __init__(self, tensors: Sequence[TensorInfo]) -> None:
        """Allocate memory for all of the tensors, in `parts`."""
        self._tensors = tensors
        self._index = {k.name: i for i, k in enumerate(tensors)}
        self.parts = [allocate_touched(k.nbytes) for k in tensors]
        self.own: Dict[int, Any] = {}  # what each rank had for itself, by rank
        self.hashed = 0  # number of blocks that were compared with their hashes

    def read(self, path: str, size: int, hashes: Sequence[str], rank: int, workers: int) -> None:
        """Read a file of `size` bytes into `parts`, on several threads, and wait for them. Each
        `workers`-th block, from block `rank` on, is compared with its hash. Raises Damaged when
        the bytes are wrong, ValueError when the header makes no sense, and OSError when the file
        cannot be read.
        """
        from concurrent.futures import ThreadPoolExecutor

        if os.path.getsize(path) != size:
            raise Damaged(f"{path} has {os.path.getsize(path)} bytes, {size} when it was sealed")
        if len(hashes) != -(-size // HASHED):
            raise Damaged(f"{path}: {len(hashes)} hashes for {size} bytes")
        with open(path, "rb", buffering=0) as file:
            ranges = (
                sorted(self._read_header(file, path, size), key=lambda run: run[0])
                if path.endswith(".safetensors")
                else []
            )

        def read_block(i: int) -> bool:
            """Read block i, on a thread of the pool, into memory that no other block has. Returns
            whether it was compared with its hash.
            """
            at = i * HASHED
            stop, hashed = min(at + HASHED, size), hashlib.sha256()
            with open(path, "rb", buffering=0) as file:  # a place of its own for each thread
                for piece in _memory_for(ranges, at, stop):
                    _read_fully(file, piece, at, path)
                    at += piece.nbytes
                    if i % workers == rank:
                        hashed.update(piece)
            if i % workers == rank and hashed.hexdigest() != hashes[i]:
                raise Damaged(f"{path}, bytes {i * HASHED} to {stop}: not as it was sealed")
            return i % workers == rank

        # Reading and hashing let other threads run.
        with ThreadPoolExecutor(_THREADS) as pool:
            self.hashed += sum(pool.map(read_block, range(len(hashes))))

    def _read_header(self, file: Any, path: str, size: int) -> List[Tuple[int, memoryview]]:
        """Read the header of a file, and keep the values of its rank in `own`. Returns the ranges
        of the file, each as its offset and the memory that it is read into.
        """
        length = memoryview(bytearray(_LENGTH.size))
        _read_fully(file, length, 0, path)
        (nbytes,) = _LENGTH.unpack(length)
        if nbytes > min(_MAX_HEADER, size - _LENGTH.size):
            raise ValueError(f"{path}: a header of {nbytes} bytes")
        text = memoryview(bytearray(nbytes))
        _read_fully(file, text, _LENGTH.size, path)
        try:
            entries = json.loads(bytes(text))
            metadata = entries.pop(_METADATA)
            offsets, origin = json.loads(metadata[_OFFSETS]), json.loads(metadata[_ORIGIN])
            self.own[int(origin["rank"])] = origin["own"]
            ranges = []
            for name, entry in entries.items():
                k = self._tensors[self._index[name]]
                start = (
                    offsets[name]["saved_offsets"][k.cut_axis()] * k.row_bytes() if k.shape else 0
                )
                first, last = entry["data_offsets"]
                part = self.parts[self._index[name]][start : start + last - first]
                if not 0 <= first <= last or part.nbytes != last - first:
                    raise ValueError(f"tensor {name} does not fit")
                ranges.append((_LENGTH.size + nbytes + first, part))
            return ranges
        except (ValueError, KeyError, TypeError, IndexError, AttributeError) as err:
            raise ValueError(f"{path}: the header cannot be read ({err!r})") from None


def _memory_for(
    ranges: Sequence[Tuple[int, memoryview]], at: int, stop: int
) -> Iterator[memoryview]:
    """The memory for the bytes of a file from `at` to `stop`: that of the runs, and spare memory
    for the bytes between them.
    """
    for begin, part in ranges:
        first, last = max(at, begin), min(stop, begin + part.nbytes)
        if first < last:
            if at < first:
                yield memoryview(bytearray(first - at))
            yield part[first - begin : last - begin]
            at = last
    if at < stop:
        yield memoryview(bytearray(stop - at))


def _read_fully(file: Any, room: memoryview, at: int, path: str) -> None:
    """Fill memory from byte `at` of a file on. Raises Damaged where the file ends before."""
    file.seek(at)
    while room:
        n = file.readinto(room)
        if not n:
            raise Damaged(f"{path} ends early")
        room = room[n:]


def _compact_json(value: Any) -> str:
    """A value as JSON without spaces."""
    return json.dumps(value, separators=(",", ":"), allow_nan=False)
