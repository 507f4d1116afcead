"""How the state of the members reaches those who join: docs/formats/arena.md, section 5."""

from __future__ import annotations

import ctypes
import hashlib
import itertools
import json
from array import array
from typing import TYPE_CHECKING, Any, Callable, Dict, List, NamedTuple, Tuple

from ._state import Item, build, flatten, pieces, total
from .errors import LostError, ShoalError

if TYPE_CHECKING:
    from .group import Group

TAG = 0xE17E
PIECE = 64 << 20
# Headers are filled up to a multiple of this. When rank 0 is lost before its broadcast, another rank's header, of the same
# length then, takes its place.
_HEADER_STEP = 4096


class Part(NamedTuple):
    """A registered part of the state."""

    get: Callable[[], Any]
    set: Callable[[Any], None]
    alike: bool  # the same on every worker


class State:
    """What a worker that joins needs, by name."""

    def __init__(self) -> None:
        self._parts: Dict[str, Part] = {}

    def register(self, name: str, get: Callable[[], Any], set: Callable[[Any], None], alike: bool) -> None:
        """See Job.register."""
        part = Part(get, set, alike)
        self._plan(name, part, [])  # what cannot travel is better refused now than when a worker joins
        self._parts[name] = part

    def unused(self, name: str) -> str:
        """See Job.unused."""
        tries = (f"{name} {i}" for i in itertools.count(2))
        return name if name not in self._parts else next(t for t in tries if t not in self._parts)

    def digest(self) -> int:
        """See Job.digest."""
        hashed = hashlib.blake2b(digest_size=6)
        for name, part in sorted(self._parts.items()):
            if part.alike:
                items: List[Item] = []
                hashed.update(json.dumps([name, flatten(name, part.get(), items)]).encode())
                for item in items:
                    hashed.update(item.bytes())
        return int.from_bytes(hashed.digest(), "little")

    def send(self, world: "Group", joined: int, step: int) -> None:
        """Give this member's part of the state to the last `joined` ranks. Costs a copy of the part, and returns then."""
        items: List[Item] = []
        notes = {name: self._plan(name, part, items) for name, part in self._parts.items()}
        listed = [{"name": item.name, "bytes": item.nbytes} for item in items]
        header = json.dumps({"step": step, "items": listed, "notes": notes}, separators=(",", ":"), allow_nan=False).encode()
        _share_header(world, header + b" " * (-len(header) % _HEADER_STEP))
        old = world.size - joined
        start, stop = _share(total(items), world.rank, old)
        if start == stop:
            return
        block = world._port.buffer(stop - start)
        at = ctypes.addressof(block)
        for item, first, last in pieces(items, start, stop):
            item.copy_to(at, first, last)
            at += last - first
        # Nobody waits for these: the agent has the bytes, and a worker that is lost needs none.
        for rank in range(old, world.size):
            for piece in _cut(block):
                world.send_async(piece, rank, TAG)

    def receive(self, world: "Group", joined: int) -> bool:
        """Take over the state of the other members; False when one is gone that had to give a part of it: enter again then.

        Raises ShoalError when the state is not that of this program.
        """
        try:
            text = _share_header(world, b"")
            if not any(text):  # of a member that had none
                return False
            header = _parse(text)
            block = self._fetch(world, joined, header)
        except LostError:
            return False
        view, parts, at = memoryview(block).cast("B"), [], 0
        for item in header["items"]:
            size = int(item["bytes"])
            parts.append(view[at : at + size])
            at += size
        notes = header["notes"]
        if notes.keys() != self._parts.keys():
            theirs, ours = sorted(notes), sorted(self._parts)
            raise ShoalError(f"the members of the job registered the state {theirs}, this worker {ours}: run the same program everywhere")
        for name, part in self._parts.items():
            part.set(build(notes[name], parts))
        return True

    @staticmethod
    def _fetch(world: "Group", joined: int, header: Dict[str, Any]) -> Any:
        """The bytes of all items, from all who were members before."""
        whole, old = sum(int(item["bytes"]) for item in header["items"]), world.size - joined
        block = world._port.buffer(whole)
        view, calls = memoryview(block).cast("B"), []
        for rank in range(old):
            start, stop = _share(whole, rank, old)
            calls += [world.recv_async(piece, rank, TAG) for piece in _cut(view[start:stop])]
        for call in calls:
            call.wait()
        return block

    def _plan(self, name: str, part: Part, items: List[Item]) -> Any:
        if part.alike:
            return flatten(name, part.get(), items)
        # Every member sends a piece of the items, so what differs between them can only be in the header.
        inside: List[Item] = []
        plan = flatten(name, part.get(), inside)
        if inside:
            raise TypeError(f"{name} differs between workers and has an array: let its `get` return bytes, x.tobytes() for example")
        return plan


def _share_header(world: "Group", mine: bytes) -> bytearray:
    """The header of rank 0, or of another that takes its part: zeros where that one has none of this length."""
    length = world.broadcast(array("q", [len(mine)]))[0]
    text = bytearray(mine if length == len(mine) else length)
    if length:
        world.broadcast(text)
    return text


def _parse(text: bytearray) -> Dict[str, Any]:
    try:
        found = json.loads(text.decode())
        if isinstance(found["items"], list) and isinstance(found["notes"], dict):
            return dict(found)
        raise ValueError("it is no header")
    except (ValueError, KeyError, TypeError) as err:
        raise ShoalError(f"the state of the other members cannot be read ({err}): run the same release of shoal everywhere") from None


def _share(whole: int, rank: int, of: int) -> Tuple[int, int]:
    return rank * whole // of, (rank + 1) * whole // of


def _cut(block: Any) -> List[memoryview]:
    view = memoryview(block).cast("B")
    return [view[at : at + PIECE] for at in range(0, view.nbytes, PIECE)]
