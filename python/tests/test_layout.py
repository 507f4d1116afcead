"""The numbers of docs/formats/arena.md, read from the page itself."""

import pathlib
import re
import struct

from shoal._runtime import protocol

PAGE = (pathlib.Path(__file__).resolve().parents[2] / "docs/formats/arena.md").read_text()


def test_kinds():
    """The kinds of calls have the codes of the page."""
    kinds = {name: int(code) for code, name in re.findall(r"^\| (\d+) \| ([a-z_]+) \|", PAGE, re.M)}
    assert len(kinds) == 13 and kinds == protocol.KINDS


def test_dtypes_and_reductions():
    """Element types and reductions have the codes of the page."""
    (line,) = re.findall(r"dtype: (1 f64.*) \|", PAGE)
    for code, name in re.findall(r"(\d) (\w+)", line):
        assert protocol.DTYPES[name].code == int(code)
    (line,) = re.findall(r"reduction: (0 none.*) \|", PAGE)
    assert {name: int(code) for code, name in re.findall(r"(\d) (\w+)", line)} == protocol.OPS


def test_header():
    """The words of the header lie where the page says."""
    (magic,) = re.findall(r"magic `0x([0-9A-F]+)`", PAGE)
    assert int(magic, 16) == protocol.MAGIC
    for word, index, size in (
        ("`tail`", protocol.TAIL_WORD, 8),
        ("`agent_parked`", protocol.AGENT_PARKED_WORD32, 4),
        ("`worker_parked`", protocol.WORKER_PARKED_WORD32, 4),
    ):
        (offset,) = re.findall(rf"^\| (\d+) \| u\d+ \| \w+ \| {word}", PAGE, re.M)
        assert int(offset) == index * size


def test_descriptor_fields_lie_where_the_page_says():
    """Each field of a packed descriptor is at the offset that docs/formats/arena.md has."""
    # Each row of the table but the shape, with a value that no other field has.
    rows = [
        (0, "Q"),
        (8, "B"),
        (9, "B"),
        (10, "B"),
        (11, "B"),
        (12, "I"),
        (16, "I"),
        (20, "I"),
        (24, "d"),
        (32, "I"),
        (36, "I"),
        (40, "Q"),
        (48, "Q"),
        (56, "Q"),
        (64, "Q"),
        (72, "I"),
        (76, "I"),
        (80, "Q"),
    ]
    table = [
        int(offset) for offset in re.findall(r"^\| (\d+) \| (?:u8|u32|u64|f64) \| ", PAGE, re.M)
    ]
    assert [offset for offset, _ in rows] == table[table.index(192) + 1 :][: len(rows)]
    values = list(range(101, 101 + len(rows)))
    shape = protocol.pack_shape((7, 8), 56)[1]
    packed = protocol.DESCRIPTOR.pack(*values, shape, 9, 10, bytes(range(16)))
    for (offset, form), value in zip(rows, values):
        assert struct.unpack_from("<" + form, packed, offset) == (value,), offset
    assert struct.unpack_from("<8Q", packed, 88) == (7, 8, 0, 0, 0, 0, 0, 0)
    assert packed[152:] == struct.pack("<II", 9, 10) + bytes(16) + bytes(range(16))


def test_more_than_eight_dimensions_travel_as_one():
    """A shape of nine dimensions is packed as its number of elements."""
    ndim, packed = protocol.pack_shape((2,) * 9, 512)
    assert ndim == 1 and struct.unpack_from("<Q", packed) == (512,)
    assert protocol.pack_shape((), 1) == (0, bytes(64))
