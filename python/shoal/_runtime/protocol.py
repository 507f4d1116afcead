"""Offsets, codes and the descriptor of docs/formats/arena.md, protocol 3. No behaviour, only
numbers.
"""

from __future__ import annotations

import struct
from typing import Dict, NamedTuple, Tuple

PROTOCOL = 3
MAGIC = int.from_bytes(b"SHOALCB1", "little")  # the first word of a control block
MESSAGE_BYTES = 64 << 10  # bytes of a message on the control socket, at most
PAGE = 4096  # bytes
HUGE_PAGE = 2 << 20  # bytes

# The control block: a header of one page, then the slots. Words are indices into a view of u64 or
# u32.
HEADER_BYTES = 4096
HEADER = struct.Struct("<QIIII")  # magic, protocol, slots, bytes of a slot, rank
TAIL_WORD = 64 // 8
AGENT_PARKED_WORD32 = 128 // 4
WORKER_PARKED_WORD32 = 192 // 4
# generation, rank, size, committed steps, new members, flags, bytes of the cursor; the cursor lies
# after them.
VIEW = struct.Struct("<QIIQIII")
VIEW_AT = 320
CURSOR_AT = 384
# Flags of a view: this worker is no member any more; it has just become one; the job was stopped;
# its setting was changed since it began; its members are to make a checkpoint now, and to end.
RELEASED, NEW, STOPPED, SETTING, PARK = 1, 2, 4, 8, 16

# A slot: the descriptor, then what the agent answers.
DESCRIPTOR_BYTES = 192
# For a call that moves in pieces: how many are in the window, or GIVEN_UP = no more will come; and
# how many have their result there.
FED_WORD, THROUGH_WORD = 160 // 8, 168 // 8
GIVEN_UP = (1 << 64) - 1
COMPLETION = 192  # byte of the completion word: the ticket times 256, plus how the call has ended
ERROR_LENGTH = struct.Struct("<I")
ERROR_LENGTH_AT = 200
ERROR_TEXT_AT = 204
# How a call has ended: done; failed; done, and the view has changed; failed, for a member is lost.
DONE, FAILED, CHANGED, LOST = 1, 2, 3, 4

# ticket, kind, dtype, reduction, ndim, group, root or peer, tag, weight, input segment, output
# segment, input offset, input elements, output offset, output elements, counts segment, counts,
# counts offset; the shape, packed once for each array by `pack_shape`; flags; the generation of the
# view in which the worker makes the call, 0 = not told; what it tells of a step that ends.
DESCRIPTOR = struct.Struct("<QBBBBIIIdIIQQQQIIQ64sII16x16s")
MAX_NDIM = 8
_SHAPE = struct.Struct("<8Q")
# Flags of a call: the step under way goes on after it; it ends the step, and commits it; it is no
# part of the step; partial sums of 16-bit floats are rounded to that type between hosts; members
# are released one at a time from this step on; its memory is a window that pieces pass through.
MORE, STEP, ASIDE, NARROW, SPARING, PIECES = 1, 2, 4, 8, 16, 32

# Tags of an all-reduce that is a part of a step: it is not of the step's gradient; it is of a
# sample of the gradient, which goes to the other workers in another way.
NO_GRADIENT, SAMPLE = 1, 2

KINDS: Dict[str, int] = {
    "all_reduce": 1,
    "reduce_scatter": 2,
    "all_gather": 3,
    "broadcast": 4,
    "reduce": 5,
    "gather": 6,
    "scatter": 7,
    "all_to_all": 8,
    "send": 9,
    "recv": 10,
    "barrier": 11,
    "enter": 12,
    "reshape": 13,
}

OPS: Dict[str, int] = {"none": 0, "sum": 1, "mean": 2, "min": 3, "max": 4, "prod": 5}


class DType(NamedTuple):
    """An element type: its name in NumPy, its code in a descriptor, its size in bytes."""

    name: str
    code: int
    itemsize: int


F64 = DType("float64", 1, 8)
F32 = DType("float32", 2, 4)
F16 = DType("float16", 3, 2)
BF16 = DType("bfloat16", 4, 2)
I64 = DType("int64", 5, 8)
I32 = DType("int32", 6, 4)
U8 = DType("uint8", 7, 1)
# A bool travels as a byte. It is not a number: only min (and) and max (or) reduce it.
BOOL = DType("bool", 7, 1)

DTYPES: Dict[str, DType] = {t.name: t for t in (F64, F32, F16, BF16, I64, I32, U8, BOOL)}
DTYPES.update(f64=F64, f32=F32, f16=F16, bf16=BF16, i64=I64, i32=I32, u8=U8)


def pack_shape(shape: Tuple[int, ...], count: int) -> Tuple[int, bytes]:
    """The ndim and the shape bytes of a descriptor, for a shape of `count` elements; more than 8
    dimensions travel as one.
    """
    if len(shape) > MAX_NDIM:
        shape = (count,)
    return len(shape), _SHAPE.pack(*shape, *(0,) * (MAX_NDIM - len(shape)))


assert DESCRIPTOR.size == DESCRIPTOR_BYTES
