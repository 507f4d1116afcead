"""The anchor of a model whose workers make local steps, and how it moves at a commit:
docs/design/strategies.md.
"""

from __future__ import annotations

import contextlib
import ctypes
import hashlib
from array import array
from collections import Counter
from typing import Any, Dict, Iterator, List, Optional, Sequence

import torch
from torch import Tensor

import shoal
from shoal._runtime.protocol import NO_GRADIENT
from shoal._runtime.tensor import describe
from shoal.sync import Strategy
from shoal.sync.contract import assign, differences

from ..arena import empty
from ..bucket import Bucket, BucketCall, StepInfo, make_buckets
from ..buffers import Buffers
from ..exchange import require_open_step
from ..optimizer_wrapper import submit_whole
from ..path import Paths
from ..sample import LocalSample
from ..wire import wire_to_move


class _RoundBucket(Bucket):
    """A bucket for how far parameters have moved from the anchor, or for their gradients."""

    # How many workers had samples in the round: on the first bucket, a number in the arena.
    worker_count: Optional[Tensor] = None
    sample: Optional[LocalSample] = None  # of the gradients, likewise

    def begin_step(self, info: StepInfo) -> None:
        """Make the bucket ready for the first `put` of a commit."""
        super().begin_step(info)
        if self.worker_count is not None:
            self.worker_count[0] = int(info.share > 0)

    def payload_calls(self) -> List[BucketCall]:
        """The calls that make up the mean, the count of the workers, and the sample."""
        calls = super().payload_calls()
        if self.worker_count is not None:
            calls.insert(0, BucketCall(self.worker_count, op="sum", tag=NO_GRADIENT))
        return calls if self.sample is None else [*self.sample.calls(), *calls]


def _digest(tensors: Sequence[Tensor]) -> int:
    """A checksum of 48 bits of the bytes of tensors, which is never 0."""
    hashed = hashlib.blake2b(digest_size=6)
    for tensor in tensors:
        data = wire_to_move(tensor).data
        memory = describe(data)
        hashed.update((ctypes.c_char * memory.nbytes).from_address(memory.address))
    return int.from_bytes(hashed.digest(), "little") | 1


class Anchor:
    """The anchor z of some parameters, and what their strategy keeps beside it. `commit`,
    `average_gradients` and `differing_ranks` wait for the other workers; nothing else waits. For
    the thread of the training loop.
    """

    def __init__(
        self,
        job: "shoal.Job",
        strategy: Strategy,
        parameters: Sequence[Tensor],
        buffers: Buffers,
    ):
        """An anchor at the parameters as they are, the same on all workers. `buffers` are those of
        the models, such as running means of batch norms, that become their means at each commit.
        """
        self._job = job
        self._buffers = buffers
        # What the buffers were when the round under way began; empty = it has one step.
        self._buffers_before: List[Tensor] = []
        self._round_buckets = make_buckets(parameters, make=_RoundBucket)
        self._round_buckets[0].worker_count = empty(1, torch.int64)  # type: ignore[attr-defined]
        buckets = [*buffers.buckets, *self._round_buckets]
        tensors = [*parameters, *buffers.tensors]
        self._path = Paths(job, tensors, buckets, None, uncompressed=False).arena
        # In the order of the buckets, as are `z` and the arrays in `kept`.
        self.parameters = [p for bucket in self._round_buckets for p in bucket.parameters]
        self.sample = LocalSample(self.parameters)  # of the gradients in this round
        self._round_buckets[0].sample = self.sample  # type: ignore[attr-defined]
        self.strategy = strategy
        self.z = [w.clone() for w in self.w]
        self.kept = strategy.keep(self.z)
        # A step was opened, or the state of others or of a checkpoint was taken over.
        self.begun = False

    @property
    def w(self) -> List[Tensor]:
        """The replica of this worker: the elements of the parameters."""
        return [p.detach() for p in self.parameters]

    def begin_round(self, steps: int) -> None:
        """Note what the buffers are, before the first of so many local steps."""
        self._buffers.find(self._buffers.buckets)
        self._buffers_before = [b.detach().clone() for b in self._buffers.tensors if steps > 1]

    def commit(self, skipped: bool = False) -> None:
        """End a round: average how far the parameters have moved over the workers, as the commit of
        the open step, and move the anchor and the parameters as the strategy says. `skipped`: this
        worker has left out samples, which are in its buffers already, whatever they are; it gives
        what those were when the round began.
        """
        self._buffers.find(self._buffers.buckets)
        if skipped:
            for buffer, before in zip(self._buffers.tensors, self._buffers_before):
                buffer.detach().copy_(before)
        w, has_samples = self.w, require_open_step(self._job).weight > 0
        moved: List[Optional[Tensor]] = list(differences(w, self.z))
        self._average(moved, gradient=False)
        # None = all workers are lost that had samples in the round
        mean = [torch.zeros_like(z) if d is None else d for z, d in zip(self.z, moved)]
        workers = int(self._round_buckets[0].worker_count)  # type: ignore[attr-defined]
        if self.strategy.keeps_replicas and not has_samples:
            w = [replica.clone() for replica in w]  # it gives nothing, since D has nothing of it
        self.strategy.commit(w, self.z, self.kept, mean, workers)

    def average_gradients(self) -> None:
        """Average the gradients over the workers, in place, as the commit of the open step. The
        anchor is where the parameters are then; `move_to_parameters` has it follow them.
        """
        gradients = [p.grad for p in self.parameters]
        self._average(gradients, gradient=True)
        for parameter, gradient in zip(self.parameters, gradients):
            parameter.grad = gradient

    def _average(self, tensors: List[Optional[Tensor]], gradient: bool) -> None:
        """Replace tensors like the parameters by their means over the workers, as the commit of
        the open step. None = there is none here, and then none on any worker whose samples count.
        `gradient`: they are gradients, whose noise the agent measures.
        """
        places: Dict[int, int] = {}  # index of the first tensor of a bucket, by the bucket's id
        at = 0
        for bucket in self._round_buckets:
            places[id(bucket)] = at
            at += len(bucket.parameters)
            bucket.gradient = gradient

        def tensors_of(bucket: Bucket) -> List[Optional[Tensor]]:
            """What goes into a bucket."""
            if id(bucket) not in places:
                return [b.detach() for b in bucket.parameters]
            return tensors[places[id(bucket)] :][: len(bucket.parameters)]

        path = self._path
        self._buffers.find(path.buckets)
        submit_whole(path, tensors_of)
        for bucket in path.exchange.averaged_buckets():
            for i, (like, mean) in enumerate(zip(bucket.parameters, bucket.unpack())):
                if id(bucket) not in places:
                    if mean is not None:
                        path.copier.copy_out(like.detach(), mean)
                    continue
                at = places[id(bucket)] + i
                target = tensors[at]
                if mean is None:
                    tensors[at] = None
                    continue
                if target is None:
                    target = tensors[at] = torch.empty_like(like.detach())
                path.copier.copy_out(target.detach(), mean)
        path.copier.order_after_copies_out()

    def begin(self) -> None:
        """Begin the first step: the anchor is where the parameters are, which may have been loaded
        since it was made. Later calls change nothing.
        """
        if not self.begun:
            self.move_to_parameters()
            self.begun = True

    def move_to_parameters(self) -> None:
        """Have the anchor be where the parameters are, where the strategy has them the same, and
        before the first step.
        """
        if self.strategy.averages_gradients or not self.begun:
            assign(self.z, self.w)
        if not self.begun:
            for name, arrays in self.strategy.keep(self.z).items():
                assign(self.kept[name], arrays)

    def differing_ranks(self, step: "shoal.Step", size: int, rank: int) -> List[int]:
        """The ranks, of so many, whose anchor is not that which most workers have; of two that as
        many have it is that of the lowest rank. One that is lost before it has said which it has is
        not among them. The same on all workers, of which this is `rank`.
        """
        if size == 1:
            return []
        self.move_to_parameters()
        digests = array("q", bytes(8 * size))
        digests[rank] = _digest(self.z)
        found = list(step.submit_aside(digests).wait())
        ((usual, _),) = Counter(filter(None, found)).most_common(1)  # 0 = the worker is lost
        return [i for i, digest in enumerate(found) if digest not in (0, usual)]

    def switch(self, strategy: Strategy) -> None:
        """Go on with another strategy, between two rounds: the parameters become the anchor."""
        self.move_to_parameters()
        self.strategy, self.kept = strategy, strategy.switch(self.w, self.z)

    def reset_replica(self) -> None:
        """Set the parameters to the anchor, where the strategy lets them differ from it."""
        if not self.strategy.averages_gradients:
            assign(self.w, self.z)

    def set_kept(self, strategy: Strategy, kept: Dict[str, List[Any]]) -> None:
        """Take over the strategy of others, and what they have kept beside the anchor."""
        self.strategy, self.kept = strategy, strategy.keep(self.z)
        for name, arrays in self.kept.items():
            assign(arrays, kept[name])

    @contextlib.contextmanager
    def swapped_in(self) -> Iterator[None]:
        """A block in which the parameters are the anchor."""
        self.move_to_parameters()
        w = self.w
        own = [replica.clone() for replica in w]
        assign(w, self.z)
        try:
            yield
        finally:
            assign(w, own)
