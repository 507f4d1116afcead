"""A joined worker: the handshake, and the way of a call from arrays to a descriptor."""

from __future__ import annotations

import ctypes
import math
import mmap
import os
import struct
import weakref
from typing import Any, Dict, List, Optional, Sequence, Tuple, TypeVar, Union

from . import _fork
from ._arena import Arena, Place
from ._calls import Calls, left
from ._layout import ERROR_TEXT_AT, HEADER, HEADER_BYTES, MAGIC, PROTOCOL, U8, DType, pack_shape
from ._link import Link, Refused
from ._tensor import Shape, Tensor, describe, elements, like
from ._version import __version__
from .errors import ForkError, JoinError, ShoalError
from .handle import AnySourceHandle, Handle, StagedHandle

T = TypeVar("T")
_NOWHERE = (0, 0)
# dtype, ndim and shape of a call without arrays.
_NOTHING = (U8.code, *pack_shape((0,), 0))


class Worker:
    """One rank of a job, connected to the agent of its host."""

    def __init__(self, path: str, job: str, rank: int, token: str) -> None:
        link = Link(path, job)
        try:
            self._handshake(link, rank, token)
        except BaseException:
            link.close(left(job))
            raise
        # Descriptions of arena arrays by id(array): a steady program describes the same few again and again.
        self._described: Dict[int, Tuple["weakref.ref[Any]", Any, Tensor]] = {}
        _fork.guard(self)

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
            self.rank, self.size, self.generation = (int(reply[k]) for k in ("rank", "size", "generation"))
            slots, slot_bytes, spin_us = (int(reply[k]) for k in ("slots", "slot_bytes", "spin_us"))
            if len(fds) != 3 or not 0 <= self.rank < self.size or slots < 1 or slot_bytes < ERROR_TEXT_AT or slot_bytes % 64:
                raise ValueError(f"{reply} with {len(fds)} descriptors")
            block = mmap.mmap(fds[0], HEADER_BYTES + slots * slot_bytes)
            seen = HEADER.unpack_from(block, 0)
            if seen != (MAGIC, PROTOCOL, slots, slot_bytes, self.rank):
                raise ValueError(f"a control block that starts with {seen}")
        except (KeyError, TypeError, ValueError, OSError) as err:
            for fd in fds:
                os.close(fd)
            raise JoinError(
                f"the agent's welcome makes no sense ({type(err).__name__}: {err}): install the package and the `shoal` "
                "binary from the same release"
            ) from None
        self.link = link
        self.calls = Calls(link, block, fds[0], slots, slot_bytes, (fds[1], fds[2]), spin_us, self.rank)
        self.arena = Arena(link, self.calls.settle)

    def check(self) -> None:
        """Raise what broke the job, if anything did: a lost agent, a fork, the end."""
        self.link.check()

    def describe(self, x: Any, dtype: Optional[str] = None) -> Tensor:
        """Describe an array, and find its place in the arena."""
        known = self._described.get(id(x))
        if known is not None and dtype is None:
            ref, numpy_dtype, tensor = known
            alive: Any = ref()
            if alive is x and x.dtype is numpy_dtype and x.shape == tensor.shape and x.flags.writeable is tensor.writable:
                return tensor
        tensor = describe(x, dtype)
        if tensor.contiguous:
            place = self.arena.locate(tensor.address, tensor.nbytes)
            if place is not None and place[1] % tensor.dtype.itemsize == 0:
                tensor.place = place
                if dtype is None and type(x).__module__ == "numpy" and x.base is not None:
                    self._remember(x, tensor)
        return tensor

    def _remember(self, x: Any, tensor: Tensor) -> None:
        # Only NumPy views of the arena: nothing can move their data while they live, as torch's `set_` or a resize can.
        key, described = id(x), self._described
        described[key] = weakref.ref(x, lambda _: described.pop(key, None)), x.dtype, tensor
        tensor.array = None  # the description must not keep the array alive

    def make(self, x: Any, dtype: DType, shape: Shape) -> Any:
        """A new array in the arena, of the kind that x is. Its elements are whatever the last user left."""
        return like(x, dtype, shape, self.buffer(elements(shape) * dtype.itemsize))

    def buffer(self, nbytes: int) -> Any:
        """New arena memory, freed when nothing refers to it."""
        return self.arena.buffer(nbytes)

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
    ) -> Handle[T]:
        """Submit a call. `held` is kept alive until the agent is done; `result` is what `wait` returns."""
        self.link.check()
        lead = inp if inp is not None else out
        dtype, ndim, shape_bytes = (lead.dtype.code, lead.ndim, lead.shape_bytes) if lead is not None else _NOTHING
        if shape is not None:
            ndim, shape_bytes = pack_shape(shape, elements(shape))
        handle: Handle[T]
        in_arena = (inp is None or inp.place or not inp.count) and (out is None or out.place or not out.count)
        if in_arena and counts is None and peer >= 0:
            handle = Handle(self.calls, result, held)
            in_place = inp.place if inp is not None and inp.count else None
            out_place = out.place if out is not None and out.count else None
            counts_place = None
        else:
            handle = staged = (StagedHandle if peer >= 0 else AnySourceHandle)(self.calls, result, held, self.arena)
            in_place, out_place = self._stage(staged, inp, out)
            counts_place = self._stage_counts(staged, counts)
        in_segment, in_offset = in_place or _NOWHERE
        out_segment, out_offset = out_place or _NOWHERE
        counts_segment, counts_offset = counts_place or _NOWHERE
        self.calls.submit(
            handle, kind, dtype, op, ndim, group, peer & 0xFFFFFFFF, tag, weight,
            in_segment, out_segment,
            in_offset, inp.count if inp is not None else 0,
            out_offset, out.count if out is not None else 0,
            counts_segment, len(counts) if counts is not None else 0, counts_offset,
            shape_bytes,
        )  # fmt: skip
        return handle

    def _stage(
        self, handle: "StagedHandle[Any]", inp: Optional[Tensor], out: Optional[Tensor]
    ) -> Tuple[Optional[Place], Optional[Place]]:
        """Stand-ins for what is foreign; one for both where input and output are the same."""
        places: List[Optional[Place]] = [None, None]
        for i, tensor in enumerate((inp, out)):
            if tensor is None or not tensor.count:
                continue
            if tensor.place is not None:
                places[i] = tensor.place
                continue
            if i == 1 and tensor is inp:
                places[i] = places[0]
            else:
                staging = handle.borrow(tensor.nbytes)
                places[i] = staging.place
                if i == 0:
                    tensor.copy_to(staging.address)
            if i == 1:
                handle.copy_back(tensor, staging)
        return places[0], places[1]

    def _stage_counts(self, handle: "StagedHandle[Any]", counts: Optional[Sequence[int]]) -> Optional[Place]:
        if counts is None:
            return None
        packed = struct.pack(f"<{len(counts)}q", *counts)
        staging = handle.borrow(len(packed))
        ctypes.memmove(staging.address, packed, len(packed))
        return staging.place

    def open_group(self, ranks: Sequence[int]) -> Tuple[int, int]:
        """The id of a group, and this worker's rank inside."""
        try:
            reply, _ = self.link.request({"type": "group", "ranks": list(ranks)}, "group")
        except Refused as err:
            raise ShoalError(str(err)) from None
        return int(reply["id"]), int(reply["rank"])

    def hold(self) -> None:
        """Collect calls until `release`."""
        self.calls.hold()

    def release(self) -> None:
        """Submit the collected calls as one."""
        self.calls.release()

    def report(self, metrics: Dict[str, float]) -> None:
        """Send numbers to the launcher."""
        self.link.send({"type": "report", "metrics": {name: _in_json(value) for name, value in metrics.items()}})

    def leave(self) -> None:
        """Say good-bye and hang up. Arrays of the arena stay readable."""
        if self.link.broken is not None:
            if isinstance(self.link.broken, ForkError):
                self.link.check()
            return
        self.link.close(left(self.name), {"type": "leave"})
        self.calls.close()
        _fork.forget(self)

    def after_fork(self) -> None:
        """In a forked child: no more calls, no descriptors, and only private memory."""
        self.link.disown(
            ForkError(
                f"this process was forked from a worker of job {self.name}, and a job belongs to the process that joined it: "
                "let only the parent call shoal, or start the child with multiprocessing's 'spawn' or 'forkserver' method"
            )
        )
        self.calls.disown()
        for mapping in self.arena.mappings():
            mapping.make_private()


def _in_json(value: float) -> Union[float, str]:
    # JSON has no word for what is not finite; the launcher takes these.
    if math.isfinite(value):
        return value
    return "NaN" if math.isnan(value) else "+Inf" if value > 0 else "-Inf"
