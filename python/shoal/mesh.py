"""The ranks of a job as a grid with named axes, one for each kind of parallelism."""

from __future__ import annotations

from math import prod
from typing import Dict, List, Optional

from ._runtime.arguments import as_integer
from ._runtime.axes import Axis, parse_axes
from .group import Group
from .world import World


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

    The text may say more of an axis, in parentheses: `pp=2(8/6;micro=4;ahead=3/1)` gives the first
    stage eight layers and the second six, which `part` tells; `micro`, `ahead` and `chunks` are for
    the program to follow, and `on` says on which kind of host each position is to be.

    The thread of the training loop makes, indexes and frees it; its groups are for any thread, as
    Group says.
    """

    def __init__(self, job: World, text: str) -> None:
        """Every rank of the job makes the mesh, with the same text, and waits until the agent has
        its groups. Raises ValueError where the degrees do not multiply to the size of the job.
        """
        self.job = job
        self._described = parse_axes(text)
        self.axes = {axis.name: axis.size for axis in self._described}
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

    def part(self, axis: str, count: int) -> range:
        """Which of so many things in a row, numbered from 0, are this rank's along an axis: layers
        of a pipeline stage, or samples of a batch. They are divided by the shares of the axis, and
        without shares as evenly as can be, the first positions with one more. This is where
        `spread(k,n,contiguous)` in a layout has them, which refuses shares that are not `count` in
        all, and chunks. An axis that is not named has one position, with all of them.
        """
        count = as_integer("count", count, 0, "how many things are dealt, an integer from 0 on")
        found = self._find(axis)
        if found is None:
            return range(count)
        at, shares = self.coordinate[axis], found.shares
        if shares is None:
            each, more = divmod(count, found.size)
            first = each * at + min(at, more)
            return range(first, first + each + (at < more))
        whole = sum(shares)
        return range(sum(shares[:at]) * count // whole, sum(shares[: at + 1]) * count // whole)

    @property
    def micro(self) -> Optional[int]:
        """How many samples a micro-batch has; None where the mesh does not say."""
        return next((axis.micro for axis in self._described if axis.micro), None)

    @property
    def ahead(self) -> Optional[int]:
        """Of how many micro-batches this rank holds what their backward passes need: so many it
        takes forward before the first one goes back. None where the mesh does not say; 1F1B
        (Narayanan et al. 2021, section 2.2) has one more for each stage behind this one, so 1 on
        the last.
        """
        for axis in self._described:
            if axis.ahead is not None:
                return axis.ahead[self.coordinate[axis.name]]
        return None

    def chunks(self, axis: str) -> int:
        """How many chunks of what is spread over an axis each position has, dealt round and round;
        1 where the mesh does not say.
        """
        found = self._find(axis)
        return found.chunks or 1 if found else 1

    def _find(self, name: str) -> Optional[Axis]:
        """The axis of a name; None where the mesh has none."""
        return next((axis for axis in self._described if axis.name == name), None)

    def free(self) -> None:
        """Free the groups of the mesh, in which no call is under way, and none is made any more.
        Waits for nobody.
        """
        for group in self._groups.values():
            group.free()

    def __str__(self) -> str:
        """The text of the mesh, in its normal form."""
        return ",".join(map(str, self._described))

    def __repr__(self) -> str:
        """The mesh, and where this rank is on it."""
        return f"<shoal.Mesh {self}: rank {self.job.rank} at {self.coordinate}>"


def _rank_strides(axes: Dict[str, int]) -> Dict[str, int]:
    """The difference in rank of neighbours on each axis."""
    degrees: List[int] = list(axes.values())
    return {axis: prod(degrees[i + 1 :]) for i, axis in enumerate(axes)}
