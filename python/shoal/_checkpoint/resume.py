"""How a job goes on from a checkpoint: the workers choose the newest one that is whole, read it,
and agree on what they have seen of it.
"""

from __future__ import annotations

import errno
import os
import random
from array import array
from typing import Any, Dict, List, NamedTuple, NoReturn, Optional, Tuple

from .._live.transfer import State
from .._runtime.log import log_line
from ..cursor import Cursor
from ..errors import ShoalError
from ..group import Group
from .commit import Sealed, listed_tensors
from .contents import LoadedParts, MeshedState
from .shards import Damaged, ShardReader
from .source import Candidate, Source
from .writer import Writer

_READ_ERRORS = (OSError, MemoryError, ValueError, KeyError, TypeError, IndexError)


class ReadCheckpoint(NamedTuple):
    """A checkpoint that all workers have read, and not set yet."""

    name: str  # in messages
    state: Dict[str, Any]  # the content of shoal-checkpoint.json
    loaded: LoadedParts

    def restore(
        self, registered: State, cursor: Cursor, batches: Optional[Tuple[int, int]], rank: int
    ) -> Cursor:
        """Set the registered state of the worker of that rank, and return the place of the
        checkpoint. `cursor` is the place of this program, `batches` what its batch may be (None =
        that of `cursor` alone). Raises ShoalError where it does not fit this program.
        """
        place = Cursor.unpack(bytes.fromhex(self.state["cursor"]))
        ours, theirs = ((c.samples, c.batch, c.seed, c.shuffle) for c in (cursor, place))
        if batches is not None and batches[0] <= place.batch <= batches[1]:
            ours = (ours[0], place.batch, *ours[2:])
        if ours != theirs:
            raise ShoalError(
                f"{self.name} is of a job with (samples, batch, seed, shuffle) = {theirs}, this one"
                f" has {ours}{'' if batches is None else f', batch_range={batches}'}: name"
                " another folder, or train on the same"
            )
        if place.round > 1 and not cursor.round:
            raise ShoalError(
                f"{self.name} is of a job whose workers synchronise after {place.round} steps, and"
                " this one averages gradients in every step: name another folder, or state sync=…"
                " or local_steps=… as the program that wrote it"
            )
        try:
            registered.restore(
                {**self.state["notes"], **self.loaded.own[rank % int(self.state["workers"])]},
                self.loaded.parts,
                checkpoint=True,
            )
        except ShoalError as err:
            raise ShoalError(f"{self.name}: {err}") from None
        except Exception as err:
            # An error of a registered setter: the state is that of another model or optimizer.
            raise ShoalError(
                f"{self.name} does not fit this program ({type(err).__name__}: {err}): name another"
                " folder, or run the program that wrote it"
            ) from err
        return place


class Resumer:
    """Finds the checkpoint from which the job goes on, and reads it. The thread of the training
    loop calls the methods, on all workers together, and waits for them.
    """

    def __init__(self, job: Group, source: Source, writer: Writer, root: str, keep: int) -> None:
        """The checkpoints of `source`, which is at `root`; `keep` of them stay."""
        self._job, self._source, self._writer = job, source, writer
        self._root, self._keep = root, keep
        self._writable = False  # a file was written there, when the job began
        self._lister = 0  # the rank that lists the checkpoints
        self.shared_seed = 0  # a random number, drawn in the last search: the same on all workers

    def read_newest(self, meshed: Optional[MeshedState]) -> Optional[ReadCheckpoint]:
        """Read the newest checkpoint that is whole, and rename those that are damaged; None where
        there is no checkpoint. `meshed` is the state on a mesh; None = every worker has all of it.

        The first time, a worker whose part could not be written there raises ShoalError. So do all
        when there are checkpoints, and none of them can be used, and when a worker cannot read the
        newest one that is not damaged.
        """
        damaged: List[Candidate] = []
        self._lister = 0
        chosen = self._choose(0)
        if not self._writable:  # now, because what earlier workers left is removed
            self._writer.try_write(self._root, self._keep)
            self._writable = True
        while chosen is not None:
            try:
                found = self._read(chosen, meshed)
            finally:
                self._source.release()
            if found is None:
                damaged.append(chosen)
                chosen = self._choose(len(damaged))
                continue
            if self.is_speaker():
                for bad in damaged:
                    self._source.quarantine(bad)
            return ReadCheckpoint(f"the checkpoint of step {chosen.step} in {self._root}", *found)
        if damaged:
            raise ShoalError(
                f"none of the {len(damaged)} checkpoints in {self._root} can be used; what is wrong"
                " with each stands above. Repair one, or name another folder to start from the"
                " beginning"
            )
        return None

    def is_speaker(self) -> bool:
        """Whether this worker has listed the checkpoints, and speaks for all."""
        return self._job.rank == self._lister

    def _choose(self, tried: int) -> Optional[Candidate]:
        """Agree with all workers on the newest checkpoint after the `tried` newest ones, as the
        first rank that is not lost sees it, which looks there; None = there is none.
        """
        nobody, none, one = range(3)
        while True:
            said = array("q", [nobody, 0, 0, 0])
            if self.is_speaker():
                newest = self._source.newest(tried)
                drawn = random.SystemRandom().getrandbits(62)
                said = array("q", [none, 0, 0, drawn] if newest is None else [one, *newest, drawn])
            there, step, seed, drawn = map(int, self._job.broadcast(said, self._lister))
            if there != nobody:
                self.shared_seed = drawn
                return Candidate(step, seed) if there == one else None
            # The rank was lost before it had looked, and another rank's empty answer came instead.
            self._lister += 1

    def _read(
        self, chosen: Candidate, meshed: Optional[MeshedState]
    ) -> Optional[Tuple[Dict[str, Any], LoadedParts]]:
        """Read all of a checkpoint into memory, or this worker's part; None where its bytes are
        proved to be wrong. Each worker compares its share of the hashes, and all of them agree on
        what they have seen, for which they wait. Returns the content of shoal-checkpoint.json, and
        what was read. Raises ShoalError on all workers where one of them cannot read it.
        """
        fetched: Optional[Sealed] = None
        rank, size = self._job.rank, self._job.size
        while True:
            found: Optional[Tuple[Dict[str, Any], LoadedParts]] = None
            blocks = hashed = damaged = 0
            unreadable: Optional[Exception] = None
            try:
                fetched = fetched or self._source.fetch(chosen)
                found, blocks, hashed = _read_share(fetched, meshed, rank, size)
            except (ShoalError, *_READ_ERRORS) as err:
                why = _look_for_damage(fetched, err)
                if isinstance(why, Damaged):
                    damaged = 1
                    log_line(
                        f"checkpoint of step {chosen.step} cannot be used: {why}; the one before it"
                        " is tried"
                    )
                else:
                    # Before the others know: a launcher ends all workers with the first that fails.
                    unreadable = why
                    log_line(f"checkpoint of step {chosen.step} cannot be read: {_met(why)}")
            said = self._job.allreduce(array("q", [damaged, unreadable is not None, hashed]))
            if said[0]:
                return None
            if said[1]:
                self._fail(chosen, unreadable)
            if said[2] >= blocks:
                return found
            rank, size = 0, 1  # a worker was lost that had compared a share

    def _fail(self, chosen: Candidate, why: Optional[Exception]) -> NoReturn:
        """Raise ShoalError about a checkpoint that cannot be read, and may be whole. `why` is what
        this worker has met; None = another one has.
        """
        met = "another worker says why" if why is None else _met(why)
        raise ShoalError(
            f"the checkpoint of step {chosen.step} in {self._root} cannot be read: {met}. It stays"
            " as it is, and nobody has found it damaged: start again when that is mended, or move"
            " it out of the folder to go on from the one before"
        ) from why


def _met(why: Exception) -> str:
    """What is wrong where a checkpoint cannot be read because of `why`, and what to do."""
    return f"{str(why) or repr(why)}{_advice(why)}"


def _read_share(
    fetched: Sealed, meshed: Optional[MeshedState], rank: int, size: int
) -> Tuple[Tuple[Dict[str, Any], LoadedParts], int, int]:
    """Read a checkpoint, or this worker's part of one on a mesh. Returns the content of
    shoal-checkpoint.json and what was read, how many blocks have hashes, and how many of them were
    compared: each `size`-th one from number `rank` on. On a mesh, both numbers are 0: what is read
    is compared.
    """
    state = fetched.read_state()
    if ("mesh" in state) != (meshed is not None):
        kind = "with" if "mesh" in state else "without"
        raise ShoalError(f"it is of a job {kind} a mesh: name another folder")
    if meshed is not None:
        return (state, meshed.read(fetched, state)), 0, 0
    loaded, blocks = ShardReader(listed_tensors(state)), 0
    for file in fetched.file_hashes():
        blocks += len(file["sha256"])
        path = os.path.join(fetched.path, file["name"])
        loaded.read(path, file["size"], file["sha256"], rank, size)
    return (state, loaded), blocks, loaded.hashed


def _look_for_damage(fetched: Optional[Sealed], err: Exception) -> Exception:
    """Why a checkpoint could not be read: Damaged where its bytes are proved to be wrong, else the
    error `err`. May read all of its files again.
    """
    # The system refuses, or the checkpoint is of another program: its bytes may be right. Only a
    # file that is missing may be damage.
    refused = isinstance(err, (ShoalError, OSError, MemoryError))
    if isinstance(err, Damaged) or refused and not isinstance(err, FileNotFoundError):
        return err
    assert fetched is not None  # what `fetch` raises is one of these
    try:
        fetched.compare()
    except Damaged as proof:
        return proof
    except (ShoalError, *_READ_ERRORS):
        pass  # then nobody can say what the bytes are
    return err


def _advice(err: Exception) -> str:
    """What to do about an error of the system, as the end of a sentence; "" where that is not
    known.
    """
    number = err.errno if isinstance(err, OSError) else None
    if number in (errno.EMFILE, errno.ENFILE):
        return ". Raise `ulimit -n`"
    if number == errno.ENOMEM or isinstance(err, MemoryError):
        return ". Give the job more memory, or start fewer workers on this host"
    if number in (errno.EACCES, errno.EPERM):
        return ". Let the user who starts the job read it"
    if isinstance(err, FileNotFoundError):
        return ". All hosts must see the same folder"
    return ""
