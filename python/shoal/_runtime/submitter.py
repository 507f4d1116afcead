"""The way of a call from arrays to a descriptor: what lies in the arena is named by its place, and
what does not gets memory there that stands in for it.
"""

from __future__ import annotations

import ctypes
import struct
from typing import Any, List, Optional, Sequence, Tuple, TypeVar

from .arena import Arena, Place
from .backend import Call
from .calls import Calls
from .handle import AnySourceHandle, Handle, PiecewiseHandle, StagedHandle
from .protocol import KINDS, MORE, PIECES, STEP, U8, pack_shape
from .shared import SharedResults
from .step_timer import NO_STEP_TIMES, StepTimer
from .tensor import Tensor, element_count

T = TypeVar("T")
_NOWHERE = (0, 0)  # the place in a descriptor of an array that is not there
# The element type, number of dimensions and shape of a call without arrays.
_NOTHING = (U8.code, *pack_shape((0,), 0))
_BROADCAST = KINDS["broadcast"]


class Submitter:
    """Submits the calls of one worker to its agent. Any thread may call it. It has no lock: the
    fields that change are written whole, by a thread that commits a step or begins to train.
    """

    def __init__(
        self,
        calls: Calls,
        arena: Arena,
        results: SharedResults,
        step_timer: StepTimer,
        piece_bytes: int,
        pieces_open: int,
    ) -> None:
        """Submit by `calls`. Pieces have `piece_bytes` bytes, and a window holds `pieces_open`."""
        self._calls, self._arena, self._results = calls, arena, results
        self._step_timer = step_timer
        # Bytes of a piece of a call in pieces, and the number of pieces that a window holds.
        self._piece_bytes, self._pieces_open = piece_bytes, pieces_open
        self.elastic = False  # the job trains in steps, so a call may have to be made again
        self._commit = 0  # the ticket of the last call that commits a step; 0 = none

    def wait_for_commit(self, out: Optional[Tensor]) -> None:
        """Wait for the commit under way before a call writes `out`, if that is a shared result: the
        members may change with the commit, and with them the memory.
        """
        if out is not None and out.shared is not None:
            self._calls.wait_for_ticket(self._commit)

    def submit(self, call: Call, group: int, held: Any, result: T, generation: int) -> Handle[T]:
        """Submit a call of a group; foreign arrays are copied to the arena first. `held` is kept
        alive until the agent is done, and the handle's `wait` returns `result`. `generation` is
        that of the view in which the call is made. Blocks where the call moves in pieces, until it
        is complete; else only for arena memory, for that of a shared result, or for the slot.
        """
        inp, out, counts, flags = call.inp, call.out, call.counts, call.flags
        target = out.place if out is not None and out.count else None
        if out is not None and out.shared is not None:
            target = self._results.bind(out.shared, generation)
        in_arena = (inp is None or inp.place or not inp.count) and (
            out is None or target or not out.count
        )
        handle: Handle[T]
        carried: Optional[PiecewiseHandle[T]] = None
        if in_arena and counts is None and call.peer >= 0:
            handle = Handle(self._calls, result, held)
            in_place = inp.place if inp is not None and inp.count else None
            out_place, counts_place = target, None
        elif call.at_once and self._can_move_in_pieces(inp, out, target):
            assert inp is not None and out is not None
            handle = carried = PiecewiseHandle(
                self._calls,
                result,
                held,
                self._arena,
                inp,
                out,
                self._piece_bytes,
                self._pieces_open,
            )
            in_place = out_place = carried.window
            counts_place, flags = None, flags | PIECES
        else:
            handle = staged = (StagedHandle if call.peer >= 0 else AnySourceHandle)(
                self._calls, result, held, self._arena
            )
            in_place, out_place = _stage_arrays(staged, call, target)
            counts_place = _stage_counts(staged, counts)
        self._submit_placed(
            handle, call, group, flags, generation, in_place, out_place, counts_place, carried
        )
        if flags & (MORE | STEP):
            self.elastic = True
        if flags & STEP:
            self._commit = handle.ticket
        return handle

    def _submit_placed(
        self,
        handle: Handle[T],
        call: Call,
        group: int,
        flags: int,
        generation: int,
        in_place: Optional[Place],
        out_place: Optional[Place],
        counts_place: Optional[Place],
        carried: Optional[PiecewiseHandle[T]],
    ) -> None:
        """Submit a call whose memory is found: the places in the arena of input, output and counts,
        None where it has none. Where it passes in pieces, by `carried`, move them through the
        window, for as long as that takes.
        """
        inp, out, counts = call.inp, call.out, call.counts
        lead = inp if inp is not None else out
        dtype, ndim, shape_bytes = (
            (lead.dtype.code, lead.ndim, lead.shape_bytes) if lead is not None else _NOTHING
        )
        if call.shape is not None:
            ndim, shape_bytes = pack_shape(call.shape, element_count(call.shape))
        in_segment, in_offset = in_place or _NOWHERE
        out_segment, out_offset = out_place or _NOWHERE
        counts_segment, counts_offset = counts_place or _NOWHERE
        try:
            self._calls.submit(
                handle,
                call.kind,
                dtype,
                call.op,
                ndim,
                group,
                call.peer & 0xFFFFFFFF,
                call.tag,
                call.weight,
                in_segment,
                out_segment,
                in_offset,
                inp.count if inp is not None else 0,
                out_offset,
                out.count if out is not None else 0,
                counts_segment,
                len(counts) if counts is not None else 0,
                counts_offset,
                shape_bytes,
                flags,
                generation & 0xFFFFFFFF,
                self._step_timer.pack() if flags & STEP else NO_STEP_TIMES,
            )
            if carried is not None:
                carried.move_pieces()
        except BaseException:
            if carried is not None:
                carried.give_up()
            raise

    def _can_move_in_pieces(
        self, inp: Optional[Tensor], out: Optional[Tensor], target: Optional[Place]
    ) -> bool:
        """Whether foreign memory can pass through a window, piece by piece. Not in a job that
        trains in steps: a call may have to be made again there, from its input.
        """
        if (
            inp is None
            or out is None
            or target
            or not 0 < self._piece_bytes < inp.nbytes
            or self.elastic
            or inp.place is not None
            or not inp.contiguous
            or not out.contiguous
        ):
            return False
        return (
            out is inp
            or out.address >= inp.address + inp.nbytes
            or inp.address >= out.address + out.nbytes
        )


def _stage_arrays(
    handle: "StagedHandle[Any]", call: Call, target: Optional[Place]
) -> Tuple[Optional[Place], Optional[Place]]:
    """Borrow arena memory for the foreign arrays of a call, which the handle owns, and copy the
    input there. `target` is the place of the output, None where it is foreign. Returns the places
    of input and output, which are one where the arrays are the same; None = there is none.
    """
    places: List[Optional[Place]] = [None, None]
    for i, tensor in enumerate((call.inp, call.out)):
        if tensor is None or not tensor.count:
            continue
        place = target if i else tensor.place
        if place is not None:
            places[i] = place
            continue
        if i == 1 and tensor is call.inp:
            places[i] = places[0]
        else:
            staging = handle.borrow(tensor.nbytes)
            places[i] = staging.place
            # When the root of a broadcast is lost, a rank that has only an output takes its part.
            if i == 0 or call.kind == _BROADCAST:
                tensor.copy_to(staging.address)
        if i == 1:
            handle.copy_back_at_wait(tensor, staging)
    return places[0], places[1]


def _stage_counts(handle: "StagedHandle[Any]", counts: Optional[Sequence[int]]) -> Optional[Place]:
    """Borrow arena memory that holds the counts of an all-to-all; returns its place, None where
    there are no counts.
    """
    if counts is None:
        return None
    packed = struct.pack(f"<{len(counts)}q", *counts)
    staging = handle.borrow(len(packed))
    ctypes.memmove(staging.address, packed, len(packed))
    return staging.place
