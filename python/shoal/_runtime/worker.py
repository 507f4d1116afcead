"""A joined worker: the handshake, and the way of a call from arrays to a descriptor."""

from __future__ import annotations

import base64
import contextlib
import ctypes
import math
import mmap
import os
import struct
import weakref
from typing import Any, Callable, Dict, Iterator, List, Optional, Sequence, Tuple, TypeVar, Union

from .._checkpoint.writer import AgentScribe
from .._version import __version__
from ..cursor import Cursor
from ..errors import ForkError, JoinError, ShoalError
from . import fork
from .arena import Arena, Place
from .calls import Calls, left
from .core import Core
from .handle import AnySourceHandle, Handle, PiecewiseHandle, StagedHandle
from .link import Link, Refused
from .protocol import (
    ERROR_TEXT_AT,
    HEADER,
    HEADER_BYTES,
    KINDS,
    MAGIC,
    MORE,
    PIECES,
    PROTOCOL,
    STEP,
    U8,
    DType,
    pack_shape,
)
from .shared import Results
from .solo import alone
from .tensor import Shape, Tensor, describe, elements, like
from .view import Shaped, View

T = TypeVar("T")
_NOWHERE = (0, 0)
# dtype, ndim and shape of a call without arrays.
_NOTHING = (U8.code, *pack_shape((0,), 0))
# The descriptor of a call that is no collective.
_ENTER = (KINDS["enter"], 0, 0, 0, 0, 0, 0, 1.0, 0, 0, 0, 0, 0, 0, 0, 0, 0, bytes(64), 0)
# Groups that a job of one makes are numbered from here, beyond those of the agent: they never have
# another member.
_OWN_GROUPS = 1 << 31
_BROADCAST = KINDS["broadcast"]


class Worker:
    """One rank of a job, connected to the agent of its host."""

    def __init__(self, path: str, job: str, rank: int, token: str) -> None:
        link = Link(path, job)
        try:
            self._handshake(link, rank, token)
        except BaseException:
            link.close(left(job))
            raise
        self._own_groups = 0
        self._elastic = self.late  # the job takes steps, as far as this worker has a part in that
        self._commit = 0  # the ticket of the call that commits the step last
        self._changed: Callable[[], None] = lambda: None
        self.calls.on_change = self._look
        # Descriptions of arena arrays by id(array): a steady program describes the same few again
        # and again.
        self._described: Dict[int, Tuple["weakref.ref[Any]", Any, Tensor]] = {}
        fork.guard(self)

    def _handshake(self, link: Link, rank: int, token: str) -> None:
        message = {"type": "join", "protocol": PROTOCOL, "version": __version__, "client": "python"}
        message.update(rank=rank, token=token, pid=os.getpid())
        try:
            reply, fds = link.request(message, "joined")
        except Refused as err:
            raise JoinError(f"the agent refused rank {rank} of job {link.job}: {err}") from None
        except ShoalError as err:
            raise JoinError(f"joining as rank {rank} of job {link.job}: {err}") from None
        try:
            self.name, self.host = str(reply["job"]), str(reply["host"])
            self.rank, self.size, self.generation = (
                int(reply["rank"]),
                int(reply["size"]),
                int(reply.get("generation", 0)),
            )
            slots, slot_bytes, spin_us = (int(reply[k]) for k in ("slots", "slot_bytes", "spin_us"))
            self._piece, self._places = (
                int(reply.get("piece_bytes", 0)),
                int(reply.get("pieces_open", 0)),
            )
            self.late, crowded = bool(reply.get("late")), bool(reply.get("crowded"))
            if (
                len(fds) != 3
                or not 0 <= self.rank < self.size
                or slots < 1
                or slot_bytes < ERROR_TEXT_AT
                or slot_bytes % 64
            ):
                raise ValueError(f"{reply} with {len(fds)} descriptors")
            block = mmap.mmap(fds[0], HEADER_BYTES + slots * slot_bytes)
            seen = HEADER.unpack_from(block, 0)
            if seen != (MAGIC, PROTOCOL, slots, slot_bytes, rank):
                raise ValueError(f"a control block that starts with {seen}")
        except (KeyError, TypeError, ValueError, OSError) as err:
            for fd in fds:
                os.close(fd)
            raise JoinError(
                f"the agent's welcome makes no sense ({type(err).__name__}: {err}): install the"
                " package and the `shoal` binary from the same release"
            ) from None
        self.view = View(self.generation, self.rank, self.size)
        # Calls on groups from here on take a detour: 0 while this worker is a job of one, or
        # newcomers wait for the state.
        self._detour = 0 if self.late else _OWN_GROUPS
        self._alone = self.late
        self._seat = rank
        self._early = False  # let in while the job is in a later epoch than this worker's program
        self._elders: Optional[int] = None
        self.link = link
        self.calls = Calls(
            link,
            block,
            fds[0],
            slots,
            slot_bytes,
            (fds[1], fds[2]),
            spin_us,
            None if crowded else Core(self.rank),
        )
        self.arena = Arena(link, self.calls.settle)
        self.results = Results(link)

    def check(self) -> None:
        """Raise what broke the job, if anything did: a lost agent, a fork, the end."""
        self.link.check()

    def describe(self, x: Any, dtype: Optional[str] = None) -> Tensor:
        """Describe an array, and find its place in the arena."""
        known = self._described.get(id(x))
        if known is not None and dtype is None:
            ref, numpy_dtype, tensor = known
            alive: Any = ref()
            if (
                alive is x
                and x.dtype is numpy_dtype
                and x.shape == tensor.shape
                and x.flags.writeable is tensor.writable
            ):
                return tensor
        tensor = describe(x, dtype)
        if tensor.contiguous:
            place = self.arena.locate(tensor.address, tensor.nbytes)
            if place is not None and place[1] % tensor.dtype.itemsize == 0:
                tensor.place = place
        if self.results.all and tensor.place is None:
            self.results.mark(tensor)
        if (
            (tensor.place or tensor.shared)
            and dtype is None
            and type(x).__module__ == "numpy"
            and x.base is not None
        ):
            self._remember(x, tensor)
        return tensor

    def _remember(self, x: Any, tensor: Tensor) -> None:
        # Only NumPy views of the arena: nothing can move their data while they live, as torch's
        # `set_` or a resize can.
        key, described = id(x), self._described
        described[key] = weakref.ref(x, lambda _: described.pop(key, None)), x.dtype, tensor
        tensor.array = None  # the description must not keep the array alive

    def make(self, x: Any, dtype: DType, shape: Shape) -> Any:
        """A new array in the arena, of the kind that x is. Its elements are whatever the last user
        left.
        """
        return like(x, dtype, shape, self.buffer(elements(shape) * dtype.itemsize))

    def buffer(self, nbytes: int, later: bool = False) -> Any:
        """New arena memory, freed when nothing refers to it. `later`: its pages are made while
        others go on.
        """
        return self.arena.buffer(nbytes, later)

    def shared(self, group: int, name: str, nbytes: int) -> memoryview:
        """Memory to be read that all workers of the host see who give its group and name; own
        memory in a job of one.
        """
        self.link.check()  # before the lock, which a forked child may have inherited taken
        result, memory = self.results.get(group, name, nbytes)
        if not self._alone and group < _OWN_GROUPS:
            self.results.bind((result, 0), self.generation)
        return memory

    def pin(
        self, address: int, pin: Callable[[int, int], None], unpin: Callable[[int], None]
    ) -> None:
        """Have the arena memory around an address pinned for a device; see Arena.pin."""
        self.arena.pin(address, pin, unpin)

    def call(
        self,
        kind: int,
        inp: Optional[Tensor],
        out: Optional[Tensor],
        held: Any,
        result: T,
        op: int = 0,
        group: int = 0,
        peer: int = 0,
        tag: int = 0,
        weight: float = 1.0,
        counts: Optional[Sequence[int]] = None,
        shape: Optional[Shape] = None,
        flags: int = 0,
        at_once: bool = False,
    ) -> Handle[T]:
        """Submit a call. `held` is kept alive until the agent is done; `result` is what `wait`
        returns. `at_once`: the caller waits for it next.
        """
        self.link.check()
        if out is not None and out.shared is not None:
            # with it the members may change, and with them the memory
            self.calls.complete(self._commit)
        if group >= self._detour:
            if self._alone or group >= _OWN_GROUPS:
                if out is not None and out.shared is not None:
                    out.shared[0].own()
                return alone(kind, inp, out, result, peer)
            group = group or self._among_elders()
        lead = inp if inp is not None else out
        dtype, ndim, shape_bytes = (
            (lead.dtype.code, lead.ndim, lead.shape_bytes) if lead is not None else _NOTHING
        )
        if shape is not None:
            ndim, shape_bytes = pack_shape(shape, elements(shape))
        handle: Handle[T]
        carried: Optional[PiecewiseHandle[T]] = None
        target = out.place if out is not None and out.count else None
        if out is not None and out.shared is not None:
            target = self.results.bind(out.shared, self.generation)
        in_arena = (inp is None or inp.place or not inp.count) and (
            out is None or target or not out.count
        )
        if in_arena and counts is None and peer >= 0:
            handle = Handle(self.calls, result, held)
            in_place = inp.place if inp is not None and inp.count else None
            out_place = target
            counts_place = None
        elif (
            at_once
            and inp is not None
            and out is not None
            and not target
            and self._takes_pieces(inp, out)
        ):
            handle = carried = PiecewiseHandle(
                self.calls, result, held, self.arena, inp, out, self._piece, self._places
            )
            in_place = out_place = carried.window
            counts_place, flags = None, flags | PIECES
        else:
            handle = staged = (StagedHandle if peer >= 0 else AnySourceHandle)(
                self.calls, result, held, self.arena
            )
            in_place, out_place = self._stage(staged, kind, inp, out, target)
            counts_place = self._stage_counts(staged, counts)
        in_segment, in_offset = in_place or _NOWHERE
        out_segment, out_offset = out_place or _NOWHERE
        counts_segment, counts_offset = counts_place or _NOWHERE
        try:
            self.calls.submit(
                handle,
                kind,
                dtype,
                op,
                ndim,
                group,
                peer & 0xFFFFFFFF,
                tag,
                weight,
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
            )
            if carried is not None:
                carried.carry()
        except BaseException:
            if carried is not None:
                carried.give_up()
            raise
        if flags & (MORE | STEP):
            self._elastic = True
        if flags & STEP:
            self._commit = handle.ticket
        return handle

    def _takes_pieces(self, inp: Tensor, out: Tensor) -> bool:
        """Whether foreign memory can go through a window. Not in a job that takes steps: it may
        have to repeat a call from its input.
        """
        if (
            not 0 < self._piece < inp.nbytes
            or self._elastic
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

    def _stage(
        self,
        handle: "StagedHandle[Any]",
        kind: int,
        inp: Optional[Tensor],
        out: Optional[Tensor],
        target: Optional[Place],
    ) -> Tuple[Optional[Place], Optional[Place]]:
        """Stand-ins for what is foreign; one for both where input and output are the same."""
        places: List[Optional[Place]] = [None, None]
        for i, tensor in enumerate((inp, out)):
            if tensor is None or not tensor.count:
                continue
            place = target if i else tensor.place
            if place is not None:
                places[i] = place
                continue
            if i == 1 and tensor is inp:
                places[i] = places[0]
            else:
                staging = handle.borrow(tensor.nbytes)
                places[i] = staging.place
                # when the root is lost, its part falls to a rank that has an output only
                if i == 0 or kind == _BROADCAST:
                    tensor.copy_to(staging.address)
            if i == 1:
                handle.copy_back(tensor, staging)
        return places[0], places[1]

    def _stage_counts(
        self, handle: "StagedHandle[Any]", counts: Optional[Sequence[int]]
    ) -> Optional[Place]:
        if counts is None:
            return None
        packed = struct.pack(f"<{len(counts)}q", *counts)
        staging = handle.borrow(len(packed))
        ctypes.memmove(staging.address, packed, len(packed))
        return staging.place

    def open_group(self, ranks: Sequence[int]) -> Tuple[int, int]:
        """The id of a group, and this worker's rank inside."""
        if self._alone:
            return self.own_group(), 0
        try:
            reply, _ = self.link.request({"type": "group", "ranks": list(ranks)}, "group")
        except Refused as err:
            raise ShoalError(str(err)) from None
        return int(reply["id"]), int(reply["rank"])

    def close_group(self, number: int) -> None:
        """Tell the agent that this worker needs a group no more. One of its own nobody knows."""
        if number < _OWN_GROUPS:
            self.link.send({"type": "ungroup", "id": number})

    def follow(self, changed: Callable[[], None]) -> None:
        """Have `changed` called after each change of the view, before the call that told of it
        returns.
        """
        self._changed = changed

    def _look(self) -> None:
        self.view = view = self.calls.view()
        self.generation, self.late, self._alone = view.generation, False, view.released
        self._part_from_elders()
        if view.released:
            self.size = 1  # and the rank stays: the rank 0 that writes the results is a member
        else:
            # Those who were members before are among themselves until the newcomers have the state.
            self.rank, self.size = view.rank, view.size if view.new else view.size - view.joined
        self._detour = 0 if self._alone or self.size < view.size else _OWN_GROUPS
        self._changed()

    def own_group(self) -> int:
        """The id of a new group of this worker alone, which needs no agent."""
        self._own_groups += 1
        return _OWN_GROUPS + self._own_groups

    def _among_elders(self) -> int:
        """The group for calls on the world that the newcomers do not make."""
        if self._elders is None:
            self._elders, _ = self.open_group(range(self.size))
        return self._elders

    def _part_from_elders(self) -> None:
        if self._elders is not None:
            self.close_group(self._elders)
            self._elders = None

    def welcome(self) -> None:
        """The newcomers are members from now on, for this worker too."""
        self.size = self.view.size
        self._detour = _OWN_GROUPS
        self._part_from_elders()
        self._changed()

    @contextlib.contextmanager
    def everyone(self) -> Iterator[None]:
        """Calls on the world within the block are of all members: the newcomers make them too,
        before they have the state.
        """
        detour = self._detour
        if not self._alone:
            self._detour = _OWN_GROUPS
        try:
            yield
        finally:
            self._detour = detour

    def state_data(self, place: Cursor) -> None:
        """Tell what the job trains on, and from which place; every worker tells the same. The job
        is elastic from then on.

        Before the first step it may be told again, with a place that is further.
        """
        self._elastic = True
        message = {
            "type": "data",
            "samples": place.samples,
            "batch": place.batch,
            "seed": place.seed,
            "shuffle": place.shuffle,
        }
        if place.committed():
            message["cursor"] = base64.b64encode(place.pack()).decode()
        try:
            self.link.request(message, "data")
        except Refused as err:
            raise ShoalError(str(err)) from None

    def state_layout(self, statement: bytes) -> None:
        """Tell how the state of the job lies on its workers, as docs/formats/reshape.md has it;
        every worker tells the same.

        Raises ShoalError when it contradicts itself, the others, or what this worker says that it
        holds.
        """
        block = self.arena.copy(statement)  # kept until the agent has answered
        try:
            self.link.request({"type": "state", **self.arena.extent(block)}, "state")
        except Refused as err:
            raise ShoalError(str(err)) from None

    def ask_shape(self) -> Shaped:
        """How the state of the job lies now, and what comes next."""
        try:
            reply, _ = self.link.request({"type": "shape"}, "shape")
        except Refused as err:
            raise ShoalError(str(err)) from None
        mesh, following, broken, lost, alone = (
            str(reply.get(key, "")) for key in ("mesh", "next", "broken", "lost", "alone")
        )
        writes = base64.b64decode(reply.get("writes", ""))
        return Shaped(
            mesh,
            following,
            broken,
            lost,
            int(reply.get("in", 0)),
            int(reply.get("out", 0)),
            alone,
            writes,
        )

    def bucket(self, nbytes: int, now: int, backward: float) -> int:
        """How large buckets of `nbytes` of gradients should be, which a backward pass makes in so
        many seconds, and which are of `now` bytes; 0 where nothing is known.
        """
        try:
            reply, _ = self.link.request(
                {"type": "bucket", "bytes": nbytes, "now": now, "seconds": backward}, "bucket"
            )
        except Refused as err:
            raise ShoalError(str(err)) from None
        return int(reply.get("bytes", 0))

    def enter(self, epoch: Optional[int] = None) -> bool:
        """Ask to be a member of the next view, and wait for it. A new member asks again when it did
        not get the state.

        With an epoch, it can begin in that one only; False when the job is beyond it: this worker
        is a job of one still, or again. It is not rank 0, which is a member that writes the
        results.
        """
        if self._early:
            self._look()
        else:
            before, handle = self.view, Handle[None](self.calls, None, None)
            self.calls.submit(handle, *_ENTER[:6], 0 if epoch is None else epoch + 1, *_ENTER[7:])
            handle.wait()
            if self.view is before:
                return epoch is None or self._stand_by(self._seat)
        self._early = (
            epoch is not None
            and bool(self.view.cursor)
            and not self.view.released
            and Cursor.unpack(self.view.cursor).reached > epoch
        )
        return not self._early or self._stand_by(self.view.rank)

    def _stand_by(self, rank: int) -> bool:
        """Be a job of one until this worker's program is in the epoch of the others; False."""
        self.late = self._alone = True
        self.rank, self.size, self._detour = rank, 1, 0
        self._changed()
        return False

    def hold(self) -> None:
        """Collect calls until `release`."""
        self.calls.hold()

    def release(self) -> None:
        """Submit the collected calls as one."""
        self.calls.release()

    def scribe(self) -> AgentScribe:
        """Who writes this worker's part of checkpoints."""
        return AgentScribe(self)

    def report(self, metrics: Dict[str, float]) -> None:
        """Send numbers to the launcher."""
        self.link.send(
            {
                "type": "report",
                "metrics": {name: _in_json(value) for name, value in metrics.items()},
            }
        )

    def leave(self) -> None:
        """Say good-bye and hang up. Arrays of the arena stay readable."""
        if self.link.broken is not None:
            if isinstance(self.link.broken, ForkError):
                self.link.check()
            return
        self.link.close(left(self.name), {"type": "leave"})
        self.calls.close()
        fork.forget(self)

    def after_fork(self) -> None:
        """In a forked child: no more calls, no descriptors, and only private memory."""
        self.link.disown(
            ForkError(
                f"this process was forked from a worker of job {self.name}, and a job belongs to"
                " the process that joined it: let only the parent call shoal, or start the child"
                " with multiprocessing's 'spawn' or 'forkserver' method"
            )
        )
        self.calls.disown()
        for mapping in self.arena.mappings() + self.results.mappings():
            mapping.make_private()


def _in_json(value: float) -> Union[float, str]:
    # JSON has no word for what is not finite; the launcher takes these.
    if math.isfinite(value):
        return value
    return "NaN" if math.isnan(value) else "+Inf" if value > 0 else "-Inf"
