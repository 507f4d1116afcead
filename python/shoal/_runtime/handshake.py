"""How a worker joins its job: docs/formats/arena.md, section 2."""

from __future__ import annotations

import mmap
import multiprocessing
import os
from typing import Any, Dict, List, NamedTuple, Tuple

from .._version import __version__
from ..errors import JoinError, ShoalError
from .link import Link, Refused
from .protocol import ERROR_TEXT_AT, HEADER, HEADER_BYTES, MAGIC, PROTOCOL


class Welcome(NamedTuple):
    """What the agent answers to a worker that joins."""

    job: str
    host: str
    rank: int
    size: int
    generation: int  # number of the membership of now
    slots: int  # number of slots of the control block
    slot_bytes: int  # bytes of a slot
    spin_us: int  # microseconds that a wait polls before it sleeps
    piece_bytes: int  # bytes of a piece of a call in pieces; 0 = the agent takes none
    pieces_open: int  # number of pieces that the window of a call in pieces holds
    late: bool  # the job already runs, and this worker is no member yet
    crowded: bool  # the host has fewer cores than workers
    block: mmap.mmap  # the control block
    block_fd: int  # the descriptor that it is mapped from
    bells: Tuple[int, int]  # descriptors: the agent's bell, and this worker's


def join(link: Link, rank: int, token: str) -> Welcome:
    """Join the job of a link: send one request and wait for the answer. `rank` is the number of
    this worker, and `token` its secret, as the launcher gave both; who is late gets another rank.
    The caller owns the descriptors of the welcome.

    Raises JoinError where the agent refuses, or is of another version.
    """
    message = {
        "type": "join",
        "protocol": PROTOCOL,
        "version": __version__,
        "client": "python",
        "rank": rank,
        "token": token,
        "pid": os.getpid(),
    }
    try:
        reply, fds = link.request(message, "joined")
    except Refused as err:
        refusal = f"the agent refused rank {rank} of job {link.job}: {err}"
        if _runs_script_of_parent():
            # DataLoader's workers where they are spawned, for one.
            refusal += (
                ". multiprocessing has started this process, which runs the script of its parent"
                ' once more, but for what stands under `if __name__ == "__main__":`'
            )
        raise JoinError(refusal) from None
    except ShoalError as err:
        raise JoinError(f"joining as rank {rank} of job {link.job}: {err}") from None
    try:
        return _read_welcome(reply, fds, rank)
    except (KeyError, TypeError, ValueError, OSError) as err:
        for fd in fds:
            os.close(fd)
        raise JoinError(
            f"the agent's welcome makes no sense ({type(err).__name__}: {err}): install the package"
            " and the `shoal` binary from the same release"
        ) from None


def _runs_script_of_parent() -> bool:
    """Whether multiprocessing has started this process, and has run the script of its parent in it,
    or runs that now: then it has not said yet who the parent is.
    """
    current = multiprocessing.current_process()
    return multiprocessing.parent_process() is not None or hasattr(current, "_inheriting")


def _read_welcome(reply: Dict[str, Any], fds: List[int], rank: int) -> Welcome:
    """Check the agent's answer, and map the control block. Raises an error of Python's own where
    something is missing or wrong; the descriptors stay the caller's.
    """
    slots, slot_bytes, spin_us = (int(reply[k]) for k in ("slots", "slot_bytes", "spin_us"))
    number, size = int(reply["rank"]), int(reply["size"])
    if (
        len(fds) != 3
        or not 0 <= number < size
        or slots < 1
        or slot_bytes < ERROR_TEXT_AT
        or slot_bytes % 64
    ):
        raise ValueError(f"{reply} with {len(fds)} descriptors")
    block = mmap.mmap(fds[0], HEADER_BYTES + slots * slot_bytes)
    seen = HEADER.unpack_from(block, 0)
    if seen != (MAGIC, PROTOCOL, slots, slot_bytes, rank):
        raise ValueError(f"a control block that starts with {seen}")
    return Welcome(
        job=str(reply["job"]),
        host=str(reply["host"]),
        rank=number,
        size=size,
        generation=int(reply.get("generation", 0)),
        slots=slots,
        slot_bytes=slot_bytes,
        spin_us=spin_us,
        piece_bytes=int(reply.get("piece_bytes", 0)),
        pieces_open=int(reply.get("pieces_open", 0)),
        late=bool(reply.get("late")),
        crowded=bool(reply.get("crowded")),
        block=block,
        block_fd=fds[0],
        bells=(fds[1], fds[2]),
    )
