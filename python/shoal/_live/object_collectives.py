"""Work that the workers divide among themselves between two steps, with all results on all of them:
evaluation. What a lost worker had is dealt out again.
"""

from __future__ import annotations

import json
from array import array
from typing import Any, Callable, Dict, List, Sequence

from .._runtime.tree import Item, flatten, unflatten
from ..world import World

_PIECE = 1 << 26  # bytes that are exchanged in one call


def map_over_workers(
    job: World, items: Sequence[int], make: Callable[[int], Any]
) -> Dict[int, Any]:
    """make(item) for each item, made by one of the workers and given to all of them; the i-th item
    by the worker of rank i modulo their number, unless that is lost. The threads of the training
    loop of all workers call it alike, and wait for each other. make() returns what `pack` takes.
    """
    if job.size == 1:
        return {item: make(item) for item in items}
    made: Dict[int, Any] = {}
    missing, ranks = list(items), list(range(job.size))
    while missing:
        mine = missing[ranks.index(job.rank) :: len(ranks)]
        found = _exchange(job, missing, {item: pack(make(item)) for item in mine}, ranks)
        made.update((item, unpack(text)) for item, text in found.items())
        missing = [item for item in missing if item not in found]
    return made


def allgather_objects(job: World, value: Any) -> Dict[int, Any]:
    """The values of all workers that are not lost, by rank in ascending order; `pack` says of what
    kinds. The threads of the training loop of all workers call it, and wait for each other.
    """
    if job.size == 1:
        return {job.rank: value}
    ranks = list(range(job.size))
    found = _exchange(job, list(ranks), {job.rank: pack(value)}, ranks)
    return {rank: unpack(found[rank]) for rank in sorted(found)}


def _exchange(
    job: World, items: Sequence[int], mine: Dict[int, bytes], ranks: List[int]
) -> Dict[int, bytes]:
    """The texts of all workers by item; `mine` has those of this one. All workers call it, with the
    same items, and wait for each other. Those of lost workers may lack; `ranks` is changed to the
    list of the others.
    """
    # Sums go on without a lost worker. A sum where all but one give zeros is what that one gives.
    lengths = array("q", bytes(8 * (job.size + len(items))))
    lengths[job.rank] = 1
    for i, item in enumerate(items):
        lengths[job.size + i] = 2 + len(mine[item]) if item in mine else 0
    job.allreduce(lengths)
    ranks[:] = [rank for rank in range(job.size) if lengths[rank]]
    # Before and after each text lies a byte that is 1: a worker that is lost meanwhile gives zeros
    # from there on.
    body, place, at = bytearray(sum(lengths[job.size :])), {}, 0
    for item, length in zip(items, lengths[job.size :]):
        if length:
            place[item] = slice(at, at + length)
            if item in mine:
                body[place[item]] = b"\1" + mine[item] + b"\1"
            at += length
    for start in range(0, len(body), _PIECE):
        job.allreduce(memoryview(body)[start : start + _PIECE])
    return {
        item: bytes(body[part.start + 1 : part.stop - 1])
        for item, part in place.items()
        if body[part.start] and body[part.stop - 1]
    }


def pack(value: Any, name: str = "a result") -> bytes:
    """A value as bytes: arrays, numbers, texts, bytes, None, and lists, tuples and dicts of these.
    Raises TypeError, which says the name, for another.
    """
    items: List[Item] = []
    plan = flatten(name, value, items)
    head = json.dumps([plan, [item.nbytes for item in items]], allow_nan=False).encode()
    return b"".join(
        [len(head).to_bytes(8, "little"), head, *(bytes(item.memory()) for item in items)]
    )


def unpack(text: bytes) -> Any:
    """The value that `pack` has packed, with arrays in new memory."""
    at = 8 + int.from_bytes(text[:8], "little")
    plan, lengths = json.loads(text[8:at])
    parts = []
    for length in lengths:
        parts.append(memoryview(bytearray(text[at : at + length])))
        at += length
    return unflatten(plan, parts)
