"""The share of an optimizer's state that a worker holds, and how shares move between workers."""

from __future__ import annotations

import copy
import hashlib
import math
from array import array
from bisect import bisect_left
from collections import defaultdict
from typing import Any, Dict, List, NamedTuple, Sequence, Tuple

import torch
from torch import Tensor

import shoal
from shoal._runtime.tree import RowSharded

from .flat import FlatParameters, gather_chunks
from .layout import Partition, Slice, Span, partition, slices
from .state_kinds import StateKind, state_kinds


class MemberRow(NamedTuple):
    """The row of one member in a census; all -1 = the member is gone."""

    host: int  # hash of the name of its host
    rank: int  # rank in the partition before; -1 = the member holds nothing yet
    size: int  # number of members of the partition before


class Shards:
    """The parts of parameters that this worker updates, and the optimizer for them.

    `partition` says what each member holds, `parts` are the slices of parameters held here, and
    `inner` is an optimizer like the user's for them. The thread of the training loop uses it; where
    a method makes calls (`gather`, `absorb_losses`, `include_newcomers` and what they use), all
    members call it together, and wait for each other.
    """

    def __init__(
        self, job: "shoal.Job", optimizer: torch.optim.Optimizer, flat: FlatParameters
    ) -> None:
        """Take this worker's share, together with all members; a worker that joins holds nothing
        yet. Raises TypeError for an optimizer whose state cannot be cut.
        """
        self._job, self.optimizer, self.flat = job, optimizer, flat
        self.name = "sharded " + job.unused("optimizer")
        groups = {p: g for g, group in enumerate(optimizer.param_groups) for p in group["params"]}
        self._group = [groups[p] for p in flat.parameters]
        self._kinds: List[Dict[str, StateKind]] = [
            state_kinds(optimizer, g, p) for g, p in zip(self._group, flat.parameters)
        ]
        self._names = sorted({name for known in self._kinds for name in known})
        self.inner = copy.copy(optimizer)
        self.parts: List[Tuple[Slice, Tensor]] = []
        self.partition = Partition((), ())
        self._hold_nothing()
        if not job.outside:
            self._take_own_share()

    def _take_own_share(self) -> None:
        """Take this worker's share of the state that the optimizer has already, as on all others,
        and clear that of the optimizer.
        """
        hosts = [row.host for row in self._census()]
        self._set_partition(partition(self.flat.total, hosts), len(hosts))
        self._make_parts(self.partition.held(self._rank))
        for run, part in self.parts:
            first, _ = self.flat.places[run.parameter]
            for name, value in self.optimizer.state.get(
                self.flat.parameters[run.parameter], {}
            ).items():
                cut = self._is_cut(run.parameter, name)
                self.inner.state[part][name] = (
                    value.reshape(-1)[run.start - first : run.stop - first].clone()
                    if cut
                    else copy.deepcopy(value)
                )
        self.optimizer.state.clear()

    def step(self) -> None:
        """Update the parts held here, from their `grad`, which is gone then. Waits for nobody."""
        for mine, given in zip(self.inner.param_groups, self.optimizer.param_groups):
            mine.update({key: value for key, value in given.items() if key != "params"})
        type(self.optimizer).step(self.inner)
        self.drop_gradients()

    def drop_gradients(self) -> None:
        """Let go of the gradients of the parts held here."""
        for _, part in self.parts:
            part.grad = None

    def gather(self) -> None:
        """After an update: give all members all parameters, and divide the state anew where members
        have gone.
        """
        if self._members_changed:
            self.absorb_losses()
            return
        share = self.partition.shares[self._rank]
        with self._job.grouped():
            calls = [
                self._job.allgather_async(s.part(s.values, share), out=s.values)
                for s in self.flat.buffers
            ]
        lost = False
        for call in calls:
            try:
                call.wait()
            except shoal.LostError:  # on all members, or on none
                lost = True
        if lost:
            self._spread_parameters()

    def absorb_losses(self) -> None:
        """When the members have changed: give all of them all parameters, and divide the shares of
        those who are gone among those who are left.

        Those who have just joined make the same calls, and hold nothing yet. Raises ShoalError
        where both who held something are gone.
        """
        view = self._job._backend.view
        if view.released or not self._members_changed:
            return
        if view.new:
            self._hold_nothing()
        elders = view.size - view.joined
        with self._job._backend.with_newcomers():
            self._spread_parameters()
            rows = self._census()
            same = all(
                (row.rank, row.size) == (rank, elders) for rank, row in enumerate(rows[:elders])
            )
            self._repartition(
                [row.host if rank < elders else -1 for rank, row in enumerate(rows)], move=not same
            )

    def include_newcomers(self) -> None:
        """When those who have just joined have all else: divide the state among all members."""
        self._repartition([row.host for row in self._census()], move=True)

    def get(self) -> Dict[str, Any]:
        """The state for a checkpoint: "known" says which parameters have it, and the numbers of it;
        where there is no tensor yet stand zeros.
        """
        cuts, rank = self.partition.cuts(), self._rank
        rows = [bisect_left([start for start, _ in self.flat.places], cut) for cut in cuts]
        value: Dict[str, Any] = {
            "known": RowSharded(self._known()[rows[rank] : rows[rank + 1]], rank, rows)
        }
        mine = {run: part for run, part in self.parts}
        for i, (start, stop) in enumerate(self.flat.places):
            within = [min(max(cut, start), stop) - start for cut in cuts]
            part = mine.get(Slice(i, start + within[rank], start + within[rank + 1]))
            for name, kind in self._kinds[i].items():
                if kind.dtype is not None:
                    held = None if part is None else self.inner.state[part].get(name)
                    zeros = torch.zeros(within[rank + 1] - within[rank], dtype=kind.dtype)
                    value[f"{i}.{name}"] = RowSharded(zeros if held is None else held, rank, within)
        return value

    def set(self, value: Dict[str, Any]) -> None:
        """Take over what is held here of the state in a checkpoint, of whatever number of
        workers.
        """
        table = value["known"]
        for run, part in self.parts:
            first, _ = self.flat.places[run.parameter]
            for name in self._kinds[run.parameter]:
                if (
                    self._is_cut(run.parameter, name)
                    and table[run.parameter, self._names.index(name)] > -math.inf
                ):
                    self.inner.state[part][name] = value[f"{run.parameter}.{name}"][
                        run.start - first : run.stop - first
                    ].clone()
        self._set_numbers(table)

    @property
    def nbytes(self) -> int:
        """The bytes of the state held here."""
        return sum(
            v.numel() * v.element_size()
            for state in self.inner.state.values()
            for v in state.values()
            if torch.is_tensor(v)
        )

    @property
    def _members_changed(self) -> bool:
        """Whether the members are others than when the state was divided."""
        return self._job._backend.view.generation != self._generation

    def _hold_nothing(self) -> None:
        """Hold nothing, as a worker that joins: what this one may have held belongs to members of
        an earlier generation.
        """
        self._generation, self._rank, self._size = -1, -1, -1
        self._make_parts([])

    def _make_parts(self, held: Sequence[Span]) -> None:
        """Have parts for the spans that are `held`, without state: slices of the parameters, which
        share their memory.
        """
        self.parts = []
        self.inner.state = defaultdict(dict)
        self.inner.param_groups = [{**group, "params": []} for group in self.optimizer.param_groups]
        values = [s.values for s in self.flat.buffers]
        for run in slices(self.flat.places, held):
            first, _ = self.flat.places[run.parameter]
            part = self.flat.elements_of(run.parameter, values)[
                run.start - first : run.stop - first
            ]
            self.parts.append((run, part))
            self.inner.param_groups[self._group[run.parameter]]["params"].append(part)

    def _set_partition(self, new: Partition, size: int) -> None:
        """Note a partition among `size` members, for the generation of now, in which the parts are
        held already.
        """
        view = self._job._backend.view
        self.partition, self._generation, self._rank, self._size = (
            new,
            view.generation,
            view.rank,
            size,
        )

    def _census(self) -> List[MemberRow]:
        """What each member says of itself, by rank; all members call it. One that is lost before it
        could has a row of -1.
        """
        view = self._job._backend.view
        said = array("q", [-1]) * (len(MemberRow._fields) * view.size)
        host = int.from_bytes(
            hashlib.blake2b(self._job.host.encode(), digest_size=7).digest(), "little"
        )
        said[len(MemberRow._fields) * view.rank : len(MemberRow._fields) * (view.rank + 1)] = array(
            "q", [host, self._rank, self._size]
        )
        said = self._job.allreduce(said, op="max")
        return [
            MemberRow(*said[i : i + len(MemberRow._fields)])
            for i in range(0, len(said), len(MemberRow._fields))
        ]

    def _spread_parameters(self) -> None:
        """Give all members all parameters, from both who update each of them. It goes on without a
        member that is lost. Raises ShoalError where both are.
        """
        held, missing = self.partition.held(self._rank), False
        for buffer in self.flat.buffers:
            for words in gather_chunks(
                self._job, buffer, buffer.dtype, buffer.pieces(buffer.values, held)
            ):
                missing = missing or not words.is_whole(words.span)
                words.copy_out((buffer.start, buffer.stop), buffer.values)
        if missing:
            raise _lost_error()

    def _repartition(self, hosts: Sequence[int], move: bool) -> None:
        """Divide the state among members on these hosts (-1: gets nothing), and move it. Without
        `move` they have it already. Raises ShoalError where a part is lost.
        """
        new = partition(self.flat.total, hosts)
        if move:
            table = self._merged_known()
            before, state = self.parts, self.inner.state
            self._make_parts(new.held(self._job._backend.view.rank))
            # All members take part in all calls, so all of them find what is missing.
            if not all([self._move_tensor(name, table, before, state) for name in self._names]):
                raise _lost_error()
            self._set_numbers(table)
        self._set_partition(new, sum(host >= 0 for host in hosts))

    def _move_tensor(
        self,
        name: str,
        table: Tensor,
        before: Sequence[Tuple[Slice, Tensor]],
        state: Dict[Tensor, Dict[str, Tensor]],
    ) -> bool:
        """Move one of the tensors that the optimizer keeps, by its name, to those who hold it from
        now on; false where some of it is lost. `table` is that of `_merged_known`; `before` and
        `state` are this worker's parts and their state until now.
        """
        whole = True
        for buffer in self.flat.buffers:
            there = [
                i
                for i in self.flat.parameters_in(buffer)
                if self._is_cut(i, name) and table[i, self._names.index(name)] > -math.inf
            ]
            if not there:
                continue
            dtype = self._kinds[there[0]][name].dtype
            give = [
                (run[1:], state[part].pop(name))
                for run, part in before
                if run.parameter in there and state[part].get(name) is not None
            ]
            mine = [(run, part) for run, part in self.parts if run.parameter in there]
            for _, part in mine:
                self.inner.state[part][name] = torch.empty(part.shape, dtype=dtype)
            for words in gather_chunks(self._job, buffer, dtype, give):
                whole = whole and all(words.is_whole(self.flat.places[i]) for i in there)
                for run, part in mine:
                    words.copy_out(run[1:], self.inner.state[part][name])
        return whole

    def _is_cut(self, parameter: int, name: str) -> bool:
        """Whether the optimizer keeps a tensor of this name that is cut with the parameter."""
        kind = self._kinds[parameter].get(name)
        return kind is not None and kind.dtype is not None

    def _merged_known(self) -> Tensor:
        """What all members together know of the state, by a call of all of them: see _known."""
        table = self._known()
        if table.numel():
            self._job.allreduce(table, op="max")
        return table

    def _known(self) -> Tensor:
        """Which parameters have which state here, and the numbers of it: a row for each parameter,
        and -inf where it has none.
        """
        table = torch.full(
            (len(self.flat.parameters), len(self._names)), -math.inf, dtype=torch.float64
        )
        for run, part in self.parts:
            for name, value in self.inner.state[part].items():
                if value is not None:
                    table[run.parameter, self._names.index(name)] = (
                        1.0 if self._is_cut(run.parameter, name) else float(value)
                    )
        return table

    def _set_numbers(self, table: Tensor) -> None:
        """Set the numbers in the state of the parts from a table: see _known."""
        for run, part in self.parts:
            for name, kind in self._kinds[run.parameter].items():
                value = float(table[run.parameter, self._names.index(name)])
                if kind.dtype is None and value > -math.inf:
                    self.inner.state[part][name] = kind.number(value)


def _lost_error() -> shoal.ShoalError:
    """The error for a part of the state that is lost, for the caller to raise."""
    return shoal.ShoalError(
        "a part of the optimizer's state is gone with the two workers that held it, which were lost"
        " at once. Start the job again: it goes on from its newest checkpoint, if it writes any"
        " (job.checkpoint)"
    )
