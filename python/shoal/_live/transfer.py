"""How the state of the members reaches those who join: docs/formats/arena.md, section 5."""

from __future__ import annotations

import contextlib
import ctypes
import hashlib
import itertools
import json
from array import array
from bisect import bisect_right
from collections import deque
from typing import (
    Any,
    Callable,
    Deque,
    Dict,
    Iterator,
    List,
    NamedTuple,
    Optional,
    Protocol,
    Sequence,
    Tuple,
)

from .._runtime.handle import Handle
from .._runtime.tree import Item, flatten, memory, unflatten
from ..errors import LostError, MismatchError, ShoalError
from ..group import Group

TAG = 0xE17E
# The state moves in pieces of this many bytes, of which a worker has WINDOW under way. Each lies in
# arena memory that was used before: to touch fresh shared memory takes several times longer than to
# copy.
PIECE = 2 << 20
WINDOW = 4
# Headers are filled up to a multiple of this. When rank 0 is lost before its broadcast, another
# rank's header, of the same length then, takes its place.
_HEADER_STEP = 4096


class Entry(NamedTuple):
    """A registered part of the state."""

    get: Callable[[], Any]
    set: Callable[[Any], None]
    alike: bool  # the same on every worker
    in_place: bool  # what `get` returns is the state itself, not a copy of it
    checkpointed: bool


class Sharded(Protocol):
    """State that lies on all members together, and that no member has whole."""

    name: str

    def get(self) -> Any:
        """The state for a checkpoint, with `RowSharded` tensors in it."""

    def set(self, value: Any) -> None:
        """Take this member's part of the state in a checkpoint, of whatever number of workers: the
        tensors are whole.
        """

    def absorb_losses(self) -> None:
        """The members have changed: what was dealt to those who are gone is dealt to the others,
        but not yet to those who have just joined.

        Those make the same calls, before they have any other state.
        """

    def include_newcomers(self) -> None:
        """Those who have just joined have all other state: they get their shares."""


class State:
    """What a worker that joins needs, by name."""

    def __init__(self) -> None:
        self._entries: Dict[str, Entry] = {}
        self.sharded: List[Sharded] = []  # no member has them whole
        self.discover: Callable[[], None] = lambda: None  # registers what the script need not name
        self._buffers: Dict[str, memoryview] = {}  # memory for the items of the others, by name

    def register(
        self,
        name: str,
        get: Callable[[], Any],
        set: Callable[[Any], None],
        alike: bool = True,
        in_place: bool = False,
        checkpointed: bool = True,
    ) -> None:
        """See Job.register. With `in_place` a worker that joins receives into the arrays that `get`
        returns, and `set` finds the values there. What is not `checkpointed` is in no checkpoint:
        it says how these workers go about it, not what they have learned.
        """
        entry = Entry(get, set, alike, in_place, checkpointed)
        # what cannot travel is better refused now than when a worker joins
        self._plan(name, entry, [])
        self._entries[name] = entry

    def absorb_losses(self) -> None:
        """After a change of the members, before those who have joined get the state."""
        for part in self.sharded:
            part.absorb_losses()

    def include_newcomers(self) -> None:
        """When those who have joined have the state."""
        for part in self.sharded:
            part.include_newcomers()

    @property
    def empty(self) -> bool:
        """Whether there is nothing that is the same on all workers."""
        return not self.sharded and not any(entry.alike for entry in self._entries.values())

    def unused(self, name: str) -> str:
        """See Job.unused."""
        tries = (f"{name} {i}" for i in itertools.count(2))
        return (
            name if name not in self._entries else next(t for t in tries if t not in self._entries)
        )

    def digest(self) -> int:
        """See Job.digest."""
        hashed = hashlib.blake2b(digest_size=6)
        for name, entry in sorted(self._entries.items()):
            if entry.alike:
                items: List[Item] = []
                hashed.update(json.dumps([name, flatten(name, entry.get(), items)]).encode())
                for item in items:
                    hashed.update(item.memory())
        return int.from_bytes(hashed.digest(), "little")

    def send(self, world: Group, joined: int, step: int) -> None:
        """Give this member's pieces of the state to the last `joined` ranks, and return when they
        have them.

        The state may change then, and no step could end without them anyway.
        """
        items: List[Item] = []
        notes = {name: self._plan(name, entry, items) for name, entry in self._entries.items()}
        listed = [{"name": item.name, "bytes": item.nbytes} for item in items]
        header = json.dumps(
            {"step": step, "items": listed, "notes": notes}, separators=(",", ":"), allow_nan=False
        ).encode()
        _share_header(world, header + b" " * (-len(header) % _HEADER_STEP))
        joiners = range(world.size - joined, world.size)
        ends = list(itertools.accumulate(item.nbytes for item in items))

        def begin(block: Any, start: int, stop: int) -> List[Handle[Any]]:
            at = ctypes.addressof(block)
            for i, first, last in _ranges(ends, start, stop):
                items[i].copy_to(at, first, last)
                at += last - first
            piece = memoryview(block).cast("B")[: stop - start]
            return [world.send_async(piece, rank, TAG) for rank in joiners]

        def end(_: Any, start: int, stop: int, calls: List[Handle[Any]]) -> None:
            for call in calls:
                # A joiner that is gone needs it no more, and one that asks for something else is
                # told so itself.
                with contextlib.suppress(LostError, MismatchError):
                    call.wait()

        _move(world, _pieces(ends)[world.rank :: joiners.start], begin, end)

    def allocate(self) -> None:
        """Have memory for a state like this worker's own. To touch it takes longer than all else,
        so this is for the time before it asks to enter: from then on the others wait for it.
        """
        self._buffers.clear()
        found: List[Tuple[Item, bool]] = []
        for name, entry in self._entries.items():
            items: List[Item] = []
            self._plan(name, entry, items)
            found += ((item, entry.in_place) for item in items)
        end = 0
        for item, own in sorted(found, key=lambda f: f[0].address):
            # What two names share here may be two things where it comes from.
            shared = item.address < end or item.name in self._buffers
            self._buffers[item.name] = item.memory() if own and not shared else memory(item.nbytes)
            end = max(end, item.address + item.nbytes)

    def receive(self, world: Group, joined: int) -> bool:
        """Take over the state of the other members; False when one is gone that had to give a part
        of it: enter again then.

        Raises ShoalError when the state is not that of this program.
        """
        try:
            self.absorb_losses()
            text = _share_header(world, b"")
            if not any(text):  # the header of a member that had none
                return False
            header = _parse(text)
            parts = self._fetch(world, joined, header)
        except LostError:
            return False
        self.restore(header["notes"], parts)
        self._buffers.clear()
        return True

    def plans(self, items: List[Item]) -> Tuple[Dict[str, Any], Dict[str, Any]]:
        """For a checkpoint: the plans of what is alike on all workers, and of what is this worker's
        own. Appends the arrays to `items`.
        """
        notes: Tuple[Dict[str, Any], Dict[str, Any]] = {}, {}
        for name, entry in self._entries.items():
            if entry.checkpointed:
                notes[not entry.alike][name] = self._plan(name, entry, items)
        for sharded in self.sharded:
            notes[0][sharded.name] = flatten(sharded.name, sharded.get(), items)
        return notes

    def restore(
        self, notes: Dict[str, Any], parts: List[memoryview], checkpoint: bool = False
    ) -> None:
        """Set all parts of the state, or those of a checkpoint. Raises ShoalError when it is not
        that of this program.
        """
        setters = {
            name: entry.set
            for name, entry in self._entries.items()
            if entry.checkpointed or not checkpoint
        }
        if checkpoint:
            setters.update((sharded.name, sharded.set) for sharded in self.sharded)
            # Older ones have what is not kept any more.
            notes = {
                name: note
                for name, note in notes.items()
                if name not in self._entries or self._entries[name].checkpointed
            }
        if notes.keys() != setters.keys():
            theirs, ours = sorted(notes), sorted(setters)
            raise ShoalError(
                f"the state comes from workers that registered {theirs}, this worker {ours}: run"
                " the same program everywhere, and make all of it before the loop"
            )
        for name, set in setters.items():
            set(unflatten(notes[name], parts))

    def _fetch(self, world: Group, joined: int, header: Dict[str, Any]) -> List[memoryview]:
        """The bytes of all items, from all who were members before."""
        buffers = dict(self._buffers)
        parts = [
            _buffer(buffers.pop(item["name"], None), int(item["bytes"])) for item in header["items"]
        ]
        ends, givers = (
            list(itertools.accumulate(part.nbytes for part in parts)),
            world.size - joined,
        )

        def begin(block: Any, start: int, stop: int) -> List[Handle[Any]]:
            return [
                world.recv_async(
                    memoryview(block).cast("B")[: stop - start], start // PIECE % givers, TAG
                )
            ]

        def end(block: Any, start: int, stop: int, calls: List[Handle[Any]]) -> None:
            calls[0].wait()
            piece, at = memoryview(block).cast("B"), 0
            for i, first, last in _ranges(ends, start, stop):
                parts[i][first:last] = piece[at : at + last - first]
                at += last - first

        _move(world, _pieces(ends), begin, end)
        return parts

    def _plan(self, name: str, entry: Entry, items: List[Item]) -> Any:
        if entry.alike:
            return flatten(name, entry.get(), items)
        # Every member sends a piece of the items, so what differs between them can only be in the
        # header.
        inside: List[Item] = []
        plan = flatten(name, entry.get(), inside)
        if inside:
            raise TypeError(
                f"{name} differs between workers and has an array: let its `get` return bytes,"
                " x.tobytes() for example"
            )
        return plan


def _buffer(room: Optional[memoryview], nbytes: int) -> memoryview:
    return room if room is not None and room.nbytes == nbytes else memory(nbytes)


def _share_header(world: Group, mine: bytes) -> bytearray:
    """The header of rank 0, or of another that takes its part: zeros where that one has none of
    this length.
    """
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
        raise ShoalError(
            f"the state of the other members cannot be read ({err}): run the same release of shoal"
            " everywhere"
        ) from None


def _pieces(ends: Sequence[int]) -> List[Tuple[int, int]]:
    """Where the pieces of the state begin and end. The old ranks take turns in sending them."""
    whole = ends[-1] if ends else 0
    return [(at, min(at + PIECE, whole)) for at in range(0, whole, PIECE)]


def _ranges(ends: Sequence[int], start: int, stop: int) -> Iterator[Tuple[int, int, int]]:
    """Which bytes of which items lie between two places of the state. The items end at `ends`."""
    i = bisect_right(ends, start)
    while start < stop:
        begin, last = ends[i - 1] if i else 0, min(stop, ends[i])
        if start < last:
            yield i, start - begin, last - begin
        start, i = last, i + 1


def _move(
    world: Group, cuts: List[Tuple[int, int]], begin: Callable[..., Any], end: Callable[..., None]
) -> None:
    """Take pieces through arena memory: `begin` returns the calls of a piece, `end` waits for
    them.
    """
    in_flight: Deque[Tuple[Any, int, int, Any]] = deque()
    for start, stop in cuts:
        if len(in_flight) < WINDOW:
            block = world._backend.buffer(PIECE)
        else:
            block = in_flight[0][0]
            end(*in_flight.popleft())
        in_flight.append((block, start, stop, begin(block, start, stop)))
    while in_flight:
        end(*in_flight.popleft())
