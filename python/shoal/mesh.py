"""The ranks of a job as a grid with named axes, one for each kind of parallelism."""

from __future__ import annotations

import re
from math import prod
from typing import Dict, List

from ._runtime.arguments import wrong_type
from .group import Group
from .world import World

_AXIS = re.compile(r"\s*([a-z][a-z0-9_]*)\s*=\s*([0-9]+)\s*")


class Mesh:
    """The ranks of a job on named axes, the last axis the fastest: the text and the order of
    docs/formats/layout.md.

        mesh = job.mesh("dp=2,tp=4")
        # among the four ranks that differ from this one in tp only
        mesh["tp"].allreduce(partial)

    `axes` are the degrees by name, and `coordinate` is the place of this rank on each axis.
    `mesh[axis]` is the Group of the ranks that differ from this one on that axis only; its `size`
    is the degree, and its `rank` the coordinate. An axis of degree 1, or one that is not named, is
    a group of this rank alone.

    The thread of the training loop makes, indexes and frees it; its groups are for any thread, as
    Group says.
    """

    def __init__(self, job: World, text: str) -> None:
        """Every rank of the job makes the mesh, with the same text, and waits until the agent has
        its groups. Raises ValueError where the degrees do not multiply to the size of the job.
        """
        self.job = job
        self.axes = parse_degrees(text)
        if prod(self.axes.values()) != job.size:
            raise ValueError(
                f"a mesh {text!r} of {prod(self.axes.values())} ranks for a job of {job.size}: give"
                " degrees that multiply to the number of workers"
            )
        strides = _rank_strides(self.axes)
        self.coordinate = {
            axis: job.rank // strides[axis] % degree for axis, degree in self.axes.items()
        }
        self._groups: Dict[str, Group] = {}  # by axis; axes of degree 1 when they are asked for
        for axis, degree in self.axes.items():
            if degree > 1:
                first = job.rank - self.coordinate[axis] * strides[axis]
                self._groups[axis] = job.group(
                    range(first, first + degree * strides[axis], strides[axis])
                )

    def __getitem__(self, axis: str) -> Group:
        """The group of the ranks along an axis; a new one of this rank alone where the axis is not
        named.
        """
        if axis not in self._groups:
            self._groups[axis] = self.job.alone()
        return self._groups[axis]

    def free(self) -> None:
        """Free the groups of the mesh, in which no call is under way, and none is made any more.
        Waits for nobody.
        """
        for group in self._groups.values():
            group.free()

    def __str__(self) -> str:
        """The text of the mesh, as it is made of."""
        return ",".join(f"{axis}={degree}" for axis, degree in self.axes.items())

    def __repr__(self) -> str:
        """The mesh, and where this rank is on it."""
        return f"<shoal.Mesh {self}: rank {self.job.rank} at {self.coordinate}>"


def parse_degrees(text: str) -> Dict[str, int]:
    """The degree of each axis in a text such as dp=2,tp=4. The empty text is one rank. Raises
    TypeError or ValueError for any other text.
    """
    if not isinstance(text, str):
        raise wrong_type("mesh", text, "a text with the degree of each axis, as 'dp=2,tp=4'")
    axes: Dict[str, int] = {}
    for item in text.split(",") if text.strip() else []:
        found = _AXIS.fullmatch(item)
        if not found or not int(found[2]):
            raise ValueError(
                f"mesh {text!r}: {item!r} is not of the form axis=degree, such as tp=4, with a name"
                " in small letters and a degree of at least 1"
            )
        if found[1] in axes:
            raise ValueError(f"mesh {text!r}: axis {found[1]} comes twice")
        axes[found[1]] = int(found[2])
    return axes


def _rank_strides(axes: Dict[str, int]) -> Dict[str, int]:
    """The difference in rank of neighbours on each axis."""
    degrees: List[int] = list(axes.values())
    return {axis: prod(degrees[i + 1 :]) for i, axis in enumerate(axes)}
