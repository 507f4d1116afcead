"""The contract of all strategies. docs/design/strategies.md explains it.

A strategy is pure: it computes on arrays that the caller owns, of NumPy or of torch, in place, and
waits for nobody. Each product and each sum is an operation of its own, so all processors round
alike, and NumPy and torch give the same bytes for float32 and float64.
"""

from __future__ import annotations

from typing import Any, Callable, ClassVar, Dict, List, NamedTuple, Sequence

Arrays = Sequence[Any]  # one array for each parameter, always in the same order


class Option(NamedTuple):
    """A number that a strategy takes."""

    default: float
    allowed: Callable[[float], bool]
    words: str  # what is allowed, for errors, as in "a number above 0"


class Strategy:
    """A way to synchronise workers that make several local steps between two commits.

    A round is a number of local steps, and ends with a commit. The anchor z is the same bytes on
    all workers at every commit. The replica w of a worker is what it computes gradients with. In
    a round w moves by the worker's own optimizer. At the commit d = w - z is averaged over the
    workers, weighted by their samples; that mean moves z on all of them, by `commit`.
    """

    name: ClassVar[str]
    every: ClassVar[int] = 16  # local steps of a round, where nobody says another number
    options: ClassVar[Dict[str, Option]] = {}
    # Gradients are averaged in each step and nothing else is: w is z always, and a round one step.
    averages_gradients: ClassVar[bool] = False
    # After each local step a replica is averaged with that of a partner; see `matching.partners`.
    pairs: ClassVar[bool] = False
    # Replicas stay what they are at a commit, and differ between workers.
    keeps_replicas: ClassVar[bool] = False
    rule: ClassVar[str]  # what a commit does, in a line for people
    costs: ClassVar[str]  # what a lost worker costs, in a line for people

    def __init__(self, **options: float) -> None:
        """The strategy with these options; others have their defaults."""
        self.values = {key: option.default for key, option in self.options.items()}
        self.values.update(options)

    def keep(self, z: Arrays) -> Dict[str, List[Any]]:
        """New arrays, by name, that the strategy keeps beside an anchor z from one commit to the
        next. Like z they are the same bytes on all workers.
        """
        return {}

    def commit(
        self, w: Arrays, z: Arrays, kept: Dict[str, List[Any]], mean: Arrays, workers: int
    ) -> None:
        """End a round: move the anchor z, what is kept beside it, and this worker's replica w.
        `mean` is the mean of all w - z, weighted by samples, of so many `workers` that had samples
        in the round; its content is lost.
        """
        raise NotImplementedError

    def switch(self, w: Arrays, z: Arrays) -> Dict[str, List[Any]]:
        """Begin at a commit with the anchor of another strategy: w := z. Returns what is kept from
        now on, as it is in the beginning.
        """
        assign(w, z)
        return self.keep(z)

    @property
    def parts(self) -> int:
        """Where workers average in pairs: of how many parts of a parameter they average one in a
        step; see `matching.part_of_step`.
        """
        return int(self.values.get("parts", 1))

    @property
    def text(self) -> str:
        """The name with the options that are not the default, as settings of a job have it."""
        changed = [
            f":{key}={value:g}" if float(f"{value:g}") == value else f":{key}={value!r}"
            for key, value in self.values.items()
            if value != self.options[key].default
        ]
        return self.name + "".join(changed)


def assign(targets: Arrays, sources: Arrays) -> None:
    """Copy the elements of each source to its target."""
    for target, source in zip(targets, sources):
        target[...] = source


def add(z: Arrays, mean: Arrays) -> None:
    """z += mean."""
    for anchor, moved in zip(z, mean):
        anchor += moved


def differences(w: Arrays, z: Arrays) -> List[Any]:
    """New arrays w - z."""
    return [replica - anchor for replica, anchor in zip(w, z)]
