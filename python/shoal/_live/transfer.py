"""How workers that join get the state of the members: docs/formats/arena.md, section 5."""

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
from .._runtime.tree import Item, allocate_touched, flatten, unflatten
from ..errors import LostError, MismatchError, ShoalError
from ..group import Group

TAG = 0xE17E  # of the messages that pieces of the state travel in
# The state moves in pieces of PIECE bytes, and a worker has WINDOW of them under way. Each lies in
# arena memory that was used before, because to touch fresh shared memory takes several times longer
# than to copy.
PIECE = 2 << 20
WINDOW = 4
# Headers are padded to a multiple of this many bytes. When rank 0 is lost before its broadcast, the
# header of another rank takes its place, and must have the same length.
_HEADER_STEP = 4096


class Entry(NamedTuple):
    """A registered part of the state."""

    get: Callable[[], Any]  # returns the value, on a worker that has it
    set: Callable[[Any], None]  # takes the value over, on a worker that needs it
    alike: bool  # the value is the same on every worker
    in_place: bool  # `get` returns the state itself, not a copy of it
    checkpointed: bool  # checkpoints have the value too
    optional: bool  # but older ones do not
    # The value has arrays and differs between workers; joiners and checkpoints get that of rank 0.
    of_first: bool = False


class Sharded(Protocol):
    """State that is divided among the members, so that no member has all of it. The thread of the
    training loop calls the methods, on all members at the same place between two steps;
    `absorb_losses` and `include_newcomers` wait for the other members.
    """

    name: str

    def get(self) -> Any:
        """The state for a checkpoint, with `RowSharded` tensors in it."""

    def set(self, value: Any) -> None:
        """Take this member's part of the state of a checkpoint, where the tensors are whole, from
        any number of workers.
        """

    def absorb_losses(self) -> None:
        """Divide the state anew after the members have changed: members that remain get the parts
        of those that are gone. Newcomers get nothing yet, but make the same calls.
        """

    def include_newcomers(self) -> None:
        """Give newcomers, which have all other state, their parts."""


class State:
    """The parts of the state that are registered, by name: what a worker that joins needs, and what
    checkpoints have. Only the thread of the training loop uses it, and calls the functions that are
    registered. A method that waits for other workers says so.
    """

    def __init__(self) -> None:
        """Nothing is registered yet."""
        self._entries: Dict[str, Entry] = {}  # by name, in the order of registration
        self.sharded: List[Sharded] = []  # state that is divided among the members
        # Registers what the script need not name, such as schedulers. `shoal.torch` sets it.
        self.discover: Callable[[], None] = lambda: None
        self._buffers: Dict[str, memoryview] = {}  # memory for the items of the others, by name

    def register(
        self,
        name: str,
        get: Callable[[], Any],
        set: Callable[[Any], None],
        alike: bool = True,
        in_place: bool = False,
        checkpointed: bool = True,
        optional: bool = False,
        of_first: bool = False,
    ) -> None:
        """Add a part of the state, under a name that is not taken: get() on the workers that have
        it, set(value) on those that need it; not `alike`: it may differ between workers, has no
        arrays, nor scalars of NumPy, and that of rank 0 is given. With `in_place` a worker that
        joins receives into the arrays that `get` returns, and `set` finds the values there. What is
        not `checkpointed` is in no checkpoint: it says how these workers go about it, not what they
        have learned. What is `optional` stays as it is where a checkpoint has none. With `of_first`
        the value differs between workers and has arrays, of the same shapes on all: rank 0 alone
        sends and writes it. Raises TypeError for a value that cannot be sent.
        """
        alike = alike and not of_first
        entry = Entry(get, set, alike, in_place, checkpointed, optional, of_first)
        # A value that cannot be sent is refused now, and not when a worker joins.
        self._plan_entry(name, entry, [])
        self._entries[name] = entry

    def absorb_losses(self) -> None:
        """Divide sharded state among the remaining members, before newcomers get the state. All
        members call it, newcomers too, and wait for each other.
        """
        for part in self.sharded:
            part.absorb_losses()

    def include_newcomers(self) -> None:
        """Divide sharded state among all members, after newcomers have got the state. All members
        call it, and wait for each other.
        """
        for part in self.sharded:
            part.include_newcomers()

    @property
    def is_empty(self) -> bool:
        """Whether nothing is registered that is the same on all workers, or divided among them."""
        return not self.sharded and not any(entry.alike for entry in self._entries.values())

    def unused(self, name: str) -> str:
        """The name, or where it is registered already the name with the next free number."""
        tries = (f"{name} {i}" for i in itertools.count(2))
        return (
            name if name not in self._entries else next(t for t in tries if t not in self._entries)
        )

    def digest(self) -> int:
        """A checksum of 48 bits of the values that are alike on all workers, which is then the same
        on all of them.
        """
        hashed = hashlib.blake2b(digest_size=6)
        for name, entry in sorted(self._entries.items()):
            if entry.alike:
                items: List[Item] = []
                hashed.update(json.dumps([name, flatten(name, entry.get(), items)]).encode())
                for item in items:
                    hashed.update(item.memory())
        return int.from_bytes(hashed.digest(), "little")

    def send_to_newcomers(self, world: Group, joined: int, step: int) -> None:
        """Send this member's pieces of the state to the last `joined` ranks, after so many steps of
        the job as `step` says. All members but these call it. Returns when they have the pieces:
        the state may change after that. Raises ShoalError where this member has another state than
        the one whose header counts: each gives a part of what should be the same.
        """
        items: List[Item] = []
        notes: Dict[str, Any] = {}
        listed: List[Dict[str, Any]] = []
        first: Dict[Tuple[int, int], int] = {}  # the first item of a memory, which is the state
        common = 0  # number of items that all members have alike; those of rank 0 come after them
        for name, entry in sorted(self._entries.items(), key=lambda e: e[1].of_first):
            notes[name] = self._plan_entry(name, entry, items)
            for item in items[len(listed) :]:
                listed.append({"name": item.name, "bytes": item.nbytes})
                memory = item.address, item.nbytes
                if entry.in_place and item.nbytes and memory in first:
                    listed[-1]["same"] = first[memory]
                elif entry.in_place:
                    first[memory] = len(listed) - 1
            common = common if entry.of_first else len(listed)
        whole = {"step": step, "items": listed, "notes": notes}
        if common < len(listed):
            whole["common"] = common
        header = json.dumps(whole, separators=(",", ":"), allow_nan=False).encode()
        text = _broadcast_header(world, header + b" " * (-len(header) % _HEADER_STEP))
        if not any(text):  # the newcomers ask again
            return
        joiners = range(world.size - joined, world.size)
        parsed = _parse_header(text)
        _check_listed_alike(listed, parsed)
        ends = _item_ends(parsed["items"])

        def send_piece(block: Any, start: int, stop: int) -> List[Handle[Any]]:
            """Copy a piece into arena memory, and begin to send it to all newcomers."""
            at = ctypes.addressof(block)
            for i, first, last in _item_ranges(ends, start, stop):
                items[i].copy_to(at, first, last)
                at += last - first
            piece = memoryview(block).cast("B")[: stop - start]
            return [world.send_async(piece, rank, TAG) for rank in joiners]

        def wait_for_piece(_: Any, start: int, stop: int, calls: List[Handle[Any]]) -> None:
            """Wait until the newcomers that are left have a piece."""
            for call in calls:
                # A newcomer that is gone needs nothing, and one that asks for something else gets
                # an error itself.
                with contextlib.suppress(LostError, MismatchError):
                    call.wait()

        pieces = _pieces(ends, parsed.get("common"), joiners.start)
        mine = [(start, stop) for start, stop, sender in pieces if sender == world.rank]
        _move_pieces(world, mine, send_piece, wait_for_piece)

    def allocate_buffers(self) -> None:
        """Allocate memory for a state like this worker's own, which `receive_from_members` uses. To
        touch the memory takes longer than everything else, so call this before the worker asks to
        enter: after that the others wait for it.
        """
        self._buffers.clear()
        found: List[Tuple[Item, bool]] = []
        for name, entry in self._entries.items():
            items: List[Item] = []
            self._plan_entry(name, entry, items)
            found += ((item, entry.in_place) for item in items)
        end, before = 0, (0, 0)  # before: address and bytes of the last array to receive into
        for item, own in sorted(found, key=lambda f: f[0].address):
            memory = item.address, item.nbytes
            if own and memory == before and item.nbytes:
                continue  # a tied weight, which the others have under both names too
            # Two names that share memory here may have separate memory on the sender.
            shared = item.address < end or item.name in self._buffers
            before = memory if own else before
            self._buffers[item.name] = (
                item.memory() if own and not shared else allocate_touched(item.nbytes)
            )
            end = max(end, item.address + item.nbytes)

    def receive_from_members(self, world: Group, joined: int) -> bool:
        """Wait for the state of the members from before, and set all parts of this worker's to it.
        False when a member that had to send a part is gone: this worker must enter again then.

        Raises ShoalError when the state is not that of this program.
        """
        try:
            self.absorb_losses()
            text = _broadcast_header(world, b"")
            if not any(text):  # the header of a member that had none
                return False
            header = _parse_header(text)
            parts = self._receive_items(world, joined, header)
        except LostError:
            return False
        self.restore(header["notes"], parts)
        self._buffers.clear()
        return True

    def plan_checkpoint(
        self, items: List[Item], size: int = 1
    ) -> Tuple[Dict[str, Any], Dict[str, Any]]:
        """The plans of a checkpoint of `size` workers, by name: of the values that are alike on all
        of them or of rank 0, and of the values of this worker alone. Appends the arrays to `items`,
        without a copy of those that `get` returns.
        """
        notes: Tuple[Dict[str, Any], Dict[str, Any]] = {}, {}
        # Of what rank 0 alone writes each worker may have another number of arrays: it comes last,
        # so that all others have the same place on every worker.
        for name, entry in sorted(self._entries.items(), key=lambda e: e[1].of_first):
            if entry.checkpointed:
                own = not entry.alike and not entry.of_first
                begin = len(items)
                notes[own][name] = self._plan_entry(name, entry, items)
                if entry.of_first:
                    items[begin:] = [
                        item._replace(cuts=[0] + size * [item.nbytes] if item.nbytes else None)
                        for item in items[begin:]
                    ]
        for sharded in self.sharded:
            notes[0][sharded.name] = flatten(sharded.name, sharded.get(), items)
        return notes

    def restore(
        self, notes: Dict[str, Any], parts: List[memoryview], checkpoint: bool = False
    ) -> None:
        """Call the `set` of all parts of the state, or of those that a checkpoint has, with the
        values of the plans `notes`, whose arrays lie in `parts`. Raises ShoalError when the state
        is not that of this program, and what a `set` raises.
        """
        setters = {
            name: entry.set
            for name, entry in self._entries.items()
            if entry.checkpointed or not checkpoint
        }
        if checkpoint:
            setters.update((sharded.name, sharded.set) for sharded in self.sharded)
            # Older checkpoints have values that are not written any more.
            notes = {
                name: note
                for name, note in notes.items()
                if name not in self._entries or self._entries[name].checkpointed
            }
            for name, entry in self._entries.items():
                if entry.optional and name not in notes:
                    setters.pop(name, None)
        if notes.keys() != setters.keys():
            theirs, ours = sorted(notes), sorted(setters)
            if checkpoint:
                raise ShoalError(
                    f"its workers had registered {theirs}, and this one has {ours}: name another"
                    " folder, or run the program that wrote it"
                )
            raise ShoalError(
                f"the state comes from workers that registered {theirs}, this worker {ours}: run"
                " the same program everywhere, and make all of it before the loop"
            )
        for name, set in setters.items():
            set(unflatten(notes[name], parts))

    def _receive_items(self, world: Group, joined: int, header: Dict[str, Any]) -> List[memoryview]:
        """Receive the bytes of all items, from all members but the newcomers, into the allocated
        buffers where they fit, and wait for them. Raises LostError where a member is lost.
        """
        buffers = dict(self._buffers)
        parts: List[memoryview] = []
        for item in header["items"]:
            parts.append(
                parts[int(item["same"])]
                if "same" in item
                else _memory_of_size(buffers.pop(item["name"], None), int(item["bytes"]))
            )
        ends = _item_ends(header["items"])
        pieces = _pieces(ends, header.get("common"), world.size - joined)
        senders = {start: sender for start, _, sender in pieces}

        def receive_piece(block: Any, start: int, stop: int) -> List[Handle[Any]]:
            """Begin to receive a piece into arena memory, from the member whose turn it is."""
            return [
                world.recv_async(
                    memoryview(block).cast("B")[: stop - start], senders[start], TAG
                )
            ]

        def store_piece(block: Any, start: int, stop: int, calls: List[Handle[Any]]) -> None:
            """Wait for a piece, and copy it to where its items lie. Raises LostError where its
            sender is lost.
            """
            calls[0].wait()
            piece, at = memoryview(block).cast("B"), 0
            for i, first, last in _item_ranges(ends, start, stop):
                parts[i][first:last] = piece[at : at + last - first]
                at += last - first

        bounds = [(start, stop) for start, stop, _ in pieces]
        _move_pieces(world, bounds, receive_piece, store_piece)
        return parts

    def _plan_entry(self, name: str, entry: Entry, items: List[Item]) -> Any:
        """The plan of a registered value; appends its arrays to `items`. Raises TypeError for a
        value that cannot be sent.
        """
        if entry.alike or entry.of_first:
            return flatten(name, entry.get(), items)
        # Every member sends pieces of the items, so a value that differs between members can only
        # be in the header.
        inside: List[Item] = []
        plan = flatten(name, entry.get(), inside)
        if inside:
            what, other = "an array", "bytes, x.tobytes() for example"
            if not inside[0].array.ndim:
                what, other = "a scalar of NumPy or torch", "a number of Python's, as x.item() is"
            at = "" if inside[0].name == name else f" ({inside[0].name})"
            raise TypeError(
                f"{name} differs between workers and has {what}{at}: let its `get` return {other}"
            )
        return plan


def _memory_of_size(room: Optional[memoryview], nbytes: int) -> memoryview:
    """The allocated memory where it has the size, else other memory of that size."""
    return room if room is not None and room.nbytes == nbytes else allocate_touched(nbytes)


def _broadcast_header(world: Group, mine: bytes) -> bytearray:
    """The header of rank 0, or of another rank where rank 0 is lost: zeros where that rank has no
    header of this length. All ranks call it, each with its own header, b"" for a newcomer's, and
    wait for each other.
    """
    length = world.broadcast(array("q", [len(mine)]))[0]
    text = bytearray(mine if length == len(mine) else length)
    if length:
        world.broadcast(text)
    return text


def _parse_header(text: bytearray) -> Dict[str, Any]:
    """The content of a header. Raises ShoalError for what is none."""
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


def _check_listed_alike(listed: List[Dict[str, Any]], header: Dict[str, Any]) -> None:
    """Raise ShoalError where the items that this member has listed are not those that a header has
    for all members.
    """
    common = header.get("common", len(header["items"]))
    for pair in itertools.zip_longest(listed[:common], header["items"][:common]):
        here, there = (f"{x['name']} with {x['bytes']} bytes" if x else "no more" for x in pair)
        if here != there:
            raise ShoalError(
                "all members give a part of the state to a worker that joins, and it is not the"
                f" same on all of them: where this one has {here}, another has {there}. Register"
                " what differs with alike=False, and build dicts in the same order everywhere"
            )


def _item_ends(listed: List[Dict[str, Any]]) -> List[int]:
    """Where the items of a header end in the bytes of the state: those that are the same memory as
    an earlier one take no room.
    """
    return list(
        itertools.accumulate(0 if "same" in item else int(item["bytes"]) for item in listed)
    )


def _pieces(
    ends: Sequence[int], common: Optional[int], givers: int
) -> List[Tuple[int, int, int]]:
    """Where the pieces of the state begin and end, and which rank sends each. The items end at
    `ends`. The first `givers` ranks, which are the members from before the newcomers, take turns in
    sending the first `common` items, None = all, and rank 0 sends those behind them, in pieces of
    their own.
    """
    whole = ends[-1] if ends else 0
    middle = whole if common is None else (ends[common - 1] if common else 0)
    turns = [
        (at, min(at + PIECE, middle), k % givers) for k, at in enumerate(range(0, middle, PIECE))
    ]
    return turns + [(at, min(at + PIECE, whole), 0) for at in range(middle, whole, PIECE)]


def _item_ranges(ends: Sequence[int], start: int, stop: int) -> Iterator[Tuple[int, int, int]]:
    """The ranges of items that lie between two places of the state, each as the index of its item
    and the first and last byte in that. The items end at `ends`.
    """
    i = bisect_right(ends, start)
    while start < stop:
        begin, last = ends[i - 1] if i else 0, min(stop, ends[i])
        if start < last:
            yield i, start - begin, last - begin
        start, i = last, i + 1


def _move_pieces(
    world: Group, cuts: List[Tuple[int, int]], begin: Callable[..., Any], end: Callable[..., None]
) -> None:
    """Send or receive pieces, up to WINDOW of them at once, each in arena memory of its own:
    `begin(memory, start, stop)` makes the calls of a piece and returns them, and
    `end(memory, start, stop, calls)` waits for them. Returns after the end of the last one.
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
