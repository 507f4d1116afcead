"""Checkpoints of other people's trainers: one worker writes, with the place in the data."""

from __future__ import annotations

import json
import os
from typing import Callable, Optional, TypeVar

import shoal
from shoal._live.dealt import told
from shoal.cursor import Cursor

T = TypeVar("T")

_PLACE = "shoal-place.json"


def written(job: "shoal.Job", write: Callable[[], T]) -> T:
    """Have one worker call write(), and return its result on all of them. It is rank 0, or another
    one where that is lost before it is done. All workers call it alike, and wait for each other.
    """
    writer = 0
    while True:
        answers = told(job, [write()] if job.rank == writer else None)
        for answer in answers.values():
            if answer is not None:
                return answer[0]
        writer = min(answers)


def write_place(folder: "str | os.PathLike[str]", place: Cursor) -> None:
    """Write the place in the data into the folder of a checkpoint."""
    with open(os.path.join(folder, _PLACE), "w") as file:
        json.dump({"cursor": place.pack().hex()}, file)


def read_place(folder: "str | os.PathLike[str]") -> Optional[Cursor]:
    """Read the place in the data of a checkpoint; None where it was written without shoal."""
    try:
        with open(os.path.join(folder, _PLACE)) as file:
            return Cursor.unpack(bytes.fromhex(json.load(file)["cursor"]))
    except FileNotFoundError:
        return None
