"""Parts of whole tensors in memory and in files. The `shoal` binary says where they lie, by `shoal
state layout` and `shoal state ls`.

Any thread may call the functions; those that run the binary or write a file block for that.
"""

from __future__ import annotations

import json
import math
import os
import shutil
from typing import Any, Dict, Iterator, List, NamedTuple, Sequence, Tuple

from .._runtime.tree import Item
from ..errors import ShoalError
from .shards import TensorInfo, safetensors_head


class Piece(NamedTuple):
    """A box of a whole tensor, and its place in other memory: the first element and the strides, in
    elements.
    """

    start: List[int]  # the first index of the box in each dimension of the whole tensor
    shape: List[int]
    at: int  # the element of the other memory that the first one of the box is
    strides: List[int]

    def intersect(self, other: "Piece") -> "Tuple[List[int], List[int]]":
        """The start and the shape of the intersection of two boxes, with a length of 0 or less
        where it is empty.
        """
        start = [max(a, b) for a, b in zip(self.start, other.start)]
        return start, [
            min(a + n, b + m) - s
            for a, n, b, m, s in zip(self.start, self.shape, other.start, other.shape, start)
        ]

    def view(
        self, memory: Any, itemsize: int, begin: int, start: Sequence[int], shape: Sequence[int]
    ) -> Any:
        """The elements of a box inside this one as an array, in memory whose elements begin at byte
        `begin`.
        """
        import numpy

        first = self.at + sum(
            (s - mine) * stride for s, mine, stride in zip(start, self.start, self.strides)
        )
        strides = [stride * itemsize for stride in self.strides]
        return numpy.ndarray(
            tuple(shape), f"V{itemsize}", memory, begin + first * itemsize, strides
        )


class Part(NamedTuple):
    """A tensor in the memory of a rank, as a layout describes it."""

    name: str
    dtype: str  # name of the element type in layouts, such as f32
    shape: List[int]  # of the part
    file: str  # name of the file that holds the part in a checkpoint
    pieces: List[Tuple[str, Piece]]  # boxes of whole tensors, with the names of these


def run_shoal(*arguments: str, stdin: bytes = b"") -> bytes:
    """Run a command of the binary, and return its output when it has ended. Raises ShoalError with
    its message when it fails.
    """
    import subprocess  # not at the top, because most workers start faster without it

    from ..cli import find_binary

    own = find_binary()
    path = str(own) if own else shutil.which("shoal")
    if path is None:
        raise ShoalError(
            "there is no `shoal` binary: install the wheel of your platform, or run `make build` in"
            " the checkout"
        )
    done = subprocess.run(
        [path, *arguments], input=stdin, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    if done.returncode:
        said = (done.stdout[-2000:] + done.stderr).decode(errors="replace").strip()
        raise ShoalError(f"shoal {' '.join(arguments[:2])}: {said}")
    return done.stdout


def parts_of_rank(description: bytes, rank: int) -> List[Part]:
    """The tensors that a description, the content of shoal-layout.json, puts on a rank. The binary
    says it.
    """
    found = []
    for line in run_shoal(
        "state", "layout", "--json", "--rank", str(rank), "-", stdin=description
    ).splitlines():
        part = json.loads(line)
        pieces = [
            (str(p["tensor"]), Piece(p["from"], p["shape"], p["at"], p["strides"]))
            for p in part["pieces"]
        ]
        found.append(Part(part["tensor"], part["type"], part["shape"], part["file"], pieces))
    return found


def write_rank_file(
    path: str, own: Sequence[Tuple[TensorInfo, Item]], rank: int, ranks: int
) -> None:
    """Write the tensors of a rank to a safetensors file, durably. The file names the rank, among
    `ranks`. Raises OSError.
    """
    entries: Dict[str, Any] = {
        "__metadata__": {"shoal": json.dumps({"rank": rank, "ranks": ranks}, separators=(",", ":"))}
    }
    at = 0
    # The widest elements first, so that all are aligned.
    own = sorted(own, key=lambda pair: (-_element_bytes(pair[0]), pair[0].name))
    for k, _ in own:
        entries[k.name] = {"dtype": k.dtype, "shape": k.shape, "data_offsets": [at, at + k.nbytes]}
        at += k.nbytes
    with open(path, "wb") as file:
        file.write(safetensors_head(entries))
        for _, item in own:
            file.write(item.memory())
        file.flush()
        os.fsync(file.fileno())


def _element_bytes(k: TensorInfo) -> int:
    """The bytes of an element of a tensor."""
    return k.nbytes // (math.prod(k.shape) or 1) or 1


class TensorReader:
    """Reads the tensors of a checkpoint of any format, which the binary lists. For one thread at a
    time; all methods block for the binary or the files.
    """

    def __init__(self, path: str) -> None:
        """List the tensors of a checkpoint by the binary. The files are opened when they are
        read.
        """
        self._folder = path if os.path.isdir(path) else os.path.dirname(path)
        # By name, what `shoal state ls --json` says of a whole tensor.
        self._tensors: Dict[str, Dict[str, Any]] = {}
        for line in run_shoal("state", "ls", "--json", path).splitlines():
            tensor = json.loads(line)
            if not tensor.get("place"):  # else it is a rank's part of one
                self._tensors[str(tensor["tensor"])] = tensor
        self._files: Dict[str, Any] = {}  # by name, the files that were mapped

    def read_part(self, part: Part, whole: Dict[str, Tuple[str, List[int]]], memory: Any) -> None:
        """Read a part into memory of its size, without gaps. `whole` has the types and shapes of
        the whole tensors. Raises ShoalError for a missing tensor, or one of another type or shape.
        """
        for name, piece in part.pieces:
            tensor = self._tensors.get(name)
            if tensor is None:
                raise ShoalError(
                    f"tensor {name} is not in {self._folder}; `shoal state ls` lists what is"
                )
            if (tensor["type"], tensor["shape"]) != whole[name]:
                raise ShoalError(
                    f"tensor {name} is {tensor['type']} {tensor['shape']} in {self._folder}, and"
                    f" {whole[name][0]} {whole[name][1]} in this program"
                )
            self._copy_piece(tensor, piece, memory)

    def _copy_piece(self, tensor: Dict[str, Any], piece: Piece, memory: Any) -> None:
        """Copy the elements of a piece from the files of a tensor to memory."""
        count = math.prod(tensor["shape"])
        if not count:
            return
        itemsize = tensor["bytes"] // count
        for file, offset, source in _stored_pieces(tensor):
            start, shape = piece.intersect(source)
            if min(shape, default=1) > 0:
                piece.view(memory, itemsize, 0, start, shape)[...] = source.view(
                    self._map_file(file), itemsize, offset, start, shape
                )

    def _map_file(self, file: str) -> Any:
        """The bytes of a file of the checkpoint, mapped for reading, once; the reader owns them."""
        import numpy

        if file not in self._files:
            self._files[file] = numpy.memmap(os.path.join(self._folder, file), numpy.uint8, "r")
        return self._files[file]


def _stored_pieces(tensor: Dict[str, Any]) -> Iterator[Tuple[str, int, Piece]]:
    """The pieces of a tensor in the files of a checkpoint: for each the file, the byte at which it
    begins, and its box.
    """
    for p in tensor["pieces"]:
        strides = p.get("strides")
        if strides is None:
            strides = [math.prod(p["shape"][i + 1 :]) for i in range(len(p["shape"]))]
        yield p["file"], p["offset"], Piece(p["from"], p["shape"], 0, strides)
