"""Averages the parameters of a model in pairs of workers, within a round."""

from __future__ import annotations

from collections import defaultdict
from time import perf_counter_ns
from typing import Dict, List, Optional, Sequence, Tuple

import torch
from torch import Tensor

import shoal
from shoal.errors import LostError
from shoal.sync import partners
from shoal.sync.matching import average_pair, part_of_step

from ..arena import empty
from ..wire import wire_to_move


class _Meeting:
    """What two workers average of tensors of one type in a step."""

    def __init__(
        self, tensors: Sequence[Tensor], step: int, parts: int, own: Tensor, theirs: Tensor
    ):
        """One of so many parts of each tensor, of which `own` gets a copy to send. `theirs` is
        memory for the partner's.
        """
        self._tensors = tensors
        # Views of the tensors, or of a copy of one whose elements lie otherwise.
        self._flat = [t.reshape(-1) for t in tensors]
        self._cuts = [x[part_of_step(len(x), step, parts)] for x in self._flat]
        self._lengths = [len(x) for x in self._cuts]
        self.own, self.theirs = (room[: sum(self._lengths)] for room in (own, theirs))
        for cut, room in zip(self._cuts, self.own.split(self._lengths)):
            room.copy_(cut)

    def average(self, weights: Tuple[int, int]) -> None:
        """Average what both have, with these weights, once the partner's is there."""
        theirs = [x.to(cut.device) for cut, x in zip(self._cuts, self.theirs.split(self._lengths))]
        average_pair(self._cuts, theirs, weights)
        for tensor, flat in zip(self._tensors, self._flat):
            if flat.data_ptr() != tensor.data_ptr():
                tensor.copy_(flat.view(tensor.shape))


class Partners:
    """Averages tensors with those of another worker, step after step, as the matchings of the job
    have it. For the thread of the training loop.
    """

    def __init__(self, job: "shoal.Job", tensors: Sequence[Tensor]):
        """For these tensors, which all workers have. Memory for them comes with the first
        meeting.
        """
        self._job, self._tensors = job, list(tensors)
        self._group: Optional[shoal.Group] = None  # all members; None = there was no meeting yet
        self._generation = -1  # that of the group
        # By element type: the tensors of it, and memory in the arena for them and for the other's.
        self._rooms: List[Tuple[List[Tensor], Tensor, Tensor]] = []

    def average(self, step: "shoal.Step", by_samples: bool, parts: int = 1) -> None:
        """Average one of so many parts of each tensor with this worker's partner of a local step,
        and wait for that worker. A worker whose partner is lost, or which has none, keeps what it
        has. `by_samples`: weighted by the samples that both have in the round.
        """
        job = self._job
        if job.size == 1:
            return
        if self._generation != job.generation:
            self._renew_group()
        assert self._group is not None and job._progress is not None
        other = partners(job._progress.cursor.seed, step.number, job.size)[job.rank]
        if other == job.rank:
            return
        if not self._rooms:
            self._allocate_rooms()
        met = [
            _Meeting([t.detach() for t in tensors], step.number, parts, own, theirs)
            for tensors, own, theirs in self._rooms
        ]
        since = perf_counter_ns()
        tag = step.number % (1 << 32)  # so that no message is taken for that of another step
        calls = [
            call
            for meeting in met
            if len(meeting.own)
            for call in (
                self._group.send_async(wire_to_move(meeting.own).data, other, tag),
                self._group.recv_async(wire_to_move(meeting.theirs).data, other, tag),
            )
        ]
        lost = False
        for call in calls:
            try:
                call.wait()
            except LostError:
                job._backend.check()  # the agent is there still
                lost = True
        job._backend.step_timer.add_partner_wait(since)
        if lost:
            return
        weights = (1, 1)
        if by_samples:
            weights = (step.samples_of_ranks([job.rank]), step.samples_of_ranks([other]))
        for meeting in met:
            meeting.average(weights)

    def _renew_group(self) -> None:
        """Make the group of the members of now, and free the one before. Waits for the agent.

        It is not the world: members may change only while no call of that is under way.
        """
        if self._group is not None:
            self._group.free()
        self._group = self._job.group(range(self._job.size))
        self._generation = self._job.generation

    def _allocate_rooms(self) -> None:
        """Allocate memory for the tensors of each element type."""
        by_type: Dict[torch.dtype, List[Tensor]] = defaultdict(list)
        for tensor in self._tensors:
            by_type[tensor.dtype].append(tensor)
        for dtype, tensors in by_type.items():
            elements = sum(t.numel() for t in tensors)
            self._rooms.append((tensors, empty(elements, dtype), empty(elements, dtype)))
