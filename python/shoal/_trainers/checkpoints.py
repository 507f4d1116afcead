"""Checkpoints of other people's trainers: one worker writes, with the place in the data."""

from __future__ import annotations

import dataclasses
import json
import os
import re
import shutil
from typing import Any, Callable, List, Optional, Tuple, TypeVar

import shoal
from shoal._live.object_collectives import allgather_objects
from shoal._runtime.log import log_line
from shoal.cursor import Cursor
from shoal.torch.wire import copy_from_rank

T = TypeVar("T")

_PLACE = "shoal-place.json"  # the file of the place in the data, in the folder of a checkpoint


def write_once(job: "shoal.Job", write: Callable[[], T], folder: Optional[str] = None) -> T:
    """Have one worker call write(), and return its result, of the kinds that
    object_collectives.pack takes, on all of them. It is rank 0, or another one where that is lost
    before it is done. The threads of the training loop of all workers call it at the same place,
    and wait for each other. `folder` is one that write() makes and refuses to write into where it
    is there: what a lost worker has left of it is removed, unless it was there before. None = none.
    """
    found = {} if folder is None else allgather_objects(job, os.path.exists(folder))
    writer = 0
    while True:
        if folder is not None and job.rank == writer and not any(found.values()):
            shutil.rmtree(folder, ignore_errors=True)  # of a writer that is lost
        answers = allgather_objects(job, [write()] if job.rank == writer else None)
        for answer in answers.values():
            if answer is not None:
                return answer[0]
        writer = min(answers)


def share_loaded(job: "shoal.Job", model: Any, there: bool, load: Callable[[], None]) -> None:
    """Have each worker that sees the files of a model (`there`) call load(), and the others get its
    parameters and buffers from one of these. Where none sees them, all call load(). The threads of
    the training loop of all workers call it at the same place, and wait for each other.
    """
    seen = allgather_objects(job, there)
    if seen[job.rank] or not any(seen.values()):
        load()
    if all(seen.values()) or not any(seen.values()):
        return
    giver = next(rank for rank, has in seen.items() if has)
    copy_from_rank(job, (*model.parameters(), *model.buffers()), giver)


def numbered_folders(folder: Optional[str]) -> List[Tuple[int, str]]:
    """The checkpoints in a folder, with the number at the end of the name of each, in the order of
    these. None where the folder is not there, or None.
    """
    names = os.listdir(folder) if folder is not None and os.path.isdir(folder) else []
    found = [(re.search(r"[0-9]+$", name), os.path.join(folder or "", name)) for name in names]
    return sorted((int(number.group()), path) for number, path in found if number)


def write_place(folder: "str | os.PathLike[str]", place: Cursor) -> None:
    """Write the place in the data into the folder of a checkpoint, which exists. Only the worker
    that writes the checkpoint calls it.
    """
    with open(os.path.join(folder, _PLACE), "w") as file:
        json.dump({"cursor": place.pack().hex()}, file)


def read_place(folder: "str | os.PathLike[str]") -> Optional[Cursor]:
    """Read the place in the data of a checkpoint; None where it was written without shoal."""
    try:
        with open(os.path.join(folder, _PLACE)) as file:
            return Cursor.unpack(bytes.fromhex(json.load(file)["cursor"]))
    except FileNotFoundError:
        return None


def place_after_updates(folder: str, done: int, start: Cursor, updates: int) -> Cursor:
    """The place in the data of a checkpoint of the Trainer of transformers that was written after
    `done` updates, of which an epoch has `updates`. `start` is the start of this job's data. Reads
    the folder. Where that has no place, or one in other data, the place is counted, and the user is
    told.
    """
    place = read_place(folder)
    whole = dataclasses.replace(
        start, epoch=done // updates, step=done, next=done % updates * start.batch
    )
    counted = {"epoch": whole.epoch, "step": whole.step, "next": whole.next, "apart": whole.apart}
    # The shares are of the workers that were there, and no part of the data.
    alike = {**counted, "left": (), "shares": whole.shares}
    if place is None or dataclasses.replace(place, **alike) != whole:
        log_line(
            f"{folder} was written without shoal, or with other data or batches: it goes on"
            f" behind step {done}, in shoal's order of the samples"
        )
        return whole
    return place


def tell_that_it_is_over(job: "shoal.Job", done: int) -> None:
    """Tell the person why a training that stopped early after `done` steps makes none where its
    script is started again with the checkpoint of the job. Rank 0 tells; a worker that joins at the
    end of a training has another rank.
    """
    if job.rank == 0:
        log_line(
            f"the training of the job's checkpoint stopped early, after step {done}, and makes no"
            " more steps; to train anew, give the job another folder for checkpoints"
        )
