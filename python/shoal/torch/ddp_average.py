"""Averages the gradients of a DistributedDataParallel, for `elastic`, on the thread of the training
loop.
"""

from __future__ import annotations

import contextlib
from typing import (
    Any,
    Callable,
    Dict,
    Iterator,
    List,
    NamedTuple,
    Optional,
    Sequence,
    Set,
    Tuple,
)

import torch
import torch.distributed as dist
from torch import Tensor

import shoal

from .bucket import Bucket, make_buckets
from .bucket_copy import HOST
from .bucket_sizes import BucketSizes
from .buffers import Buffers
from .exchange import require_open_step
from .path import Path, Paths
from .replicas import Comparison


class _Taken(NamedTuple):
    """A bucket of DDP's that came in the step under way."""

    bucket: dist.GradBucket
    gradients: List[Tuple[Tensor, Tensor]]  # see _gradients_in
    future: torch.futures.Future  # of the means, on which DDP waits


class Average:
    """The mean of all gradients of a backward pass, over the members of the job or over a group.

    The buckets of the agent's calls are not DDP's: those come in the order in which gradients were
    ready, which a worker that joins in the middle cannot know. They follow the order of the
    parameters, which is the same everywhere. They travel between the hosts as they fill, but a step
    completes as a whole, so nothing is waited for before DDP's last bucket is there; then a task of
    the copier waits for all of them, which on the CPU is in the hook.

    `statistics` are buffers of the model (running means and the like) that are averaged too, so
    that they are the same everywhere after the step; None = none are.

    The thread that runs backward uses it, and the methods change its fields there; a method for
    that of the copier's tasks says so. On the CPU both are one thread; else backward adds to
    `_used`, and the tasks of a step clear it, before the means of that step are complete.
    """

    def __init__(
        self,
        job: "shoal.Job",
        group: "Optional[shoal.Group]",
        model: torch.nn.Module,
        make: Callable[[Sequence[Tensor]], Bucket],
        bucket_bytes: int,
        find_unused: bool,
        statistics: Optional[Buffers] = None,
    ):
        """Make the buckets. With `find_unused`, watch which parameters get a gradient."""
        parameters = [p for p in model.parameters() if p.requires_grad]
        self._job, self._make = job, make
        self._grouped = group is not None  # the average is over a group, not over the job
        # Whether a worker that is the only one keeps its gradients as they are. What compresses
        # them changes them there too.
        self._keeps = make is Bucket and group is None
        self._alone = False  # it does so in the step under way
        self._comparison = Comparison(job)
        self._names = {p: name for name, p in model.named_parameters()}
        # Gradients are ready in about the reverse order of the parameters.
        self._parameters = parameters[::-1]
        self._statistics = Buffers(()) if statistics is None else statistics
        self._sizes: Optional[BucketSizes] = None  # None = buckets keep their size
        self._size = bucket_bytes  # the largest size of a bucket, in bytes
        self._paths = Paths(
            job,
            [*parameters, *self._statistics.tensors],
            self._make_buckets(),
            group,
            uncompressed=make is Bucket,
        )
        self._path = self._paths.arena  # the path of the step under way
        # By index of a bucket of the path: the number of gradients that the bucket lacks still.
        self._missing: List[int] = []
        self._full = 0  # number of full buckets at the front of the path's list
        self._taken: List[_Taken] = []  # in the order in which they came
        # Parameters that got a gradient since the last mean; None = not observed.
        self._used: Optional[Set[Tensor]] = None
        if find_unused:
            used = self._used = set()  # and not by `self`: the hooks live as long as the parameters
            for p in parameters:
                p.register_hook(lambda _, p=p: used.add(p))  # type: ignore[misc]

    def find_bucket_size(self, total: int) -> None:
        """Let the workers find the size of buckets while they train, in a job with a loop. `total`
        is the size of all gradients in bytes. Called once, before the first step.
        """
        sizes = self._sizes = BucketSizes(self._job, total, self._size)

        def set_size(size: int) -> None:
            """Take over the size in bytes that the others have, when this worker joins; the next
            step's buckets have it.
            """
            sizes.size = size

        self._job._state.register(
            self._job.unused("size of buckets"), lambda: sizes.size, set_size, checkpointed=False
        )

    def _make_buckets(self) -> List[Bucket]:
        """New buckets of the current size, after those of statistics, which stay. Notes in `_place`
        where each parameter lies: the index of its bucket, and its own in that.
        """
        buckets = make_buckets(self._parameters, self._size, self._make)
        all_buckets = [*self._statistics.buckets, *buckets]
        self._place: Dict[Tensor, Tuple[int, int]] = {
            p: (i, j)
            for i, bucket in enumerate(all_buckets)
            for j, p in enumerate(bucket.parameters)
        }
        return all_buckets

    def _resize_buckets(self) -> None:
        """Replace the buckets where their size changes, before anything of the step is in them. In
        some steps it waits for the other workers, to decide on the size.
        """
        if self._sizes is None or self._job.step is None or self._path is not self._paths.arena:
            return
        size = self._sizes.size_for_step(self._job.step)
        if size != self._size:
            self._size = size
            self._path.copier.begin_step()  # waits until the last copies have left the old buckets
            del self._path
            self._paths.rebuild(self._make_buckets)

    def take_bucket(self, bucket: dist.GradBucket) -> torch.futures.Future[torch.Tensor]:
        """Take a bucket of DDP's, in the thread that runs backward, and return the future of its
        mean. On the CPU the last bucket of a step waits for all means.
        """
        if not self._taken:
            self._open_step()
        if self._alone:
            return self._take_alone(bucket)
        future = self._path.copier.new_future()
        self._taken.append(_Taken(bucket, _gradients_in(bucket), future))
        self._copy_in(self._taken[-1])
        if bucket.is_last():
            taken, self._taken = self._taken, []
            self._end_step(taken)
        return future

    def _open_step(self) -> None:
        """Begin a step, before any gradient of it is copied; where this worker is the only one,
        find that out.
        """
        self._comparison.note_members()
        self._alone = self._keeps and self._job.size == 1 and self._job.step is not None
        if not self._alone:
            if not self._grouped:
                self._comparison.compare(self._parameters)
            self._resize_buckets()
            self._begin_step(self._paths.choose())

    @property
    def on_cpu(self) -> bool:
        """Whether gradients are on the CPU."""
        return self._paths.arena.copier is HOST

    @contextlib.contextmanager
    def averaging_pass(self) -> Iterator[Callable[[], None]]:
        """Take the gradients of the backward pass in the block from the parameters, without DDP,
        which is in a block of `no_sync`: its buckets stay as they are. This yields a function, to
        be called once, after the pass: it averages the gradients and commits the step. What
        earlier passes of the step have added up, in blocks of `accumulating_pass`, counts. The
        parameters have the means then, which are in the arena until the next step; None = no worker
        whose samples count has the gradient. A worker without samples needs no pass in the block.
        Of a worker that is alone the gradients are the means.

        All workers make such a pass, or one by DDP. For the CPU alone.
        """
        given: Dict[Tensor, Optional[Tensor]] = {}

        def take(parameter: Tensor, gradient: Optional[Tensor]) -> None:
            """Take the gradient of a parameter, which is complete."""
            if not given:
                self._open_step()
            given[parameter] = gradient if self._alone else None
            if not self._alone:
                self._put(parameter, gradient)

        with self._taking_gradients(take):
            yield lambda: self._complete_pass(given)

    def _complete_pass(self, given: Dict[Tensor, Optional[Tensor]]) -> None:
        """Commit the step of an `averaging_pass`, which has given the gradients of these
        parameters, and have all of them get the means. Of a worker that is alone the values are the
        gradients.
        """
        if not given:
            self._open_step()
        if self._alone:
            for parameter, gradient in given.items():
                parameter.grad = gradient
            require_open_step(self._job).commit_without_average()
        else:
            for p in self._parameters:
                if p not in given:
                    # An earlier pass of the step may have made it.
                    gradient, p.grad = p.grad, None
                    self._put(p, gradient)
            exchange = self._path.exchange  # of the arena, where no step is void
            exchange.submit_full(len(self._path.buckets), end=True)
            for bucket in exchange.averaged_buckets():
                for tensor, mean in zip(bucket.parameters, bucket.unpack()):
                    if tensor in self._names:
                        tensor.grad = mean
                    elif mean is not None:  # a buffer of the model
                        self._path.copier.copy_out(tensor.detach(), mean)
        if self._used is not None:
            self._used.clear()

    @contextlib.contextmanager
    def accumulating_pass(self) -> Iterator[Callable[[], None]]:
        """Add up the gradients of the backward pass in the block, as in a block of `no_sync`,
        before an `averaging_pass` of the same step. DDP, which is in such a block, takes no notice:
        else it has the parameters for used in its own next pass too, with find_unused_parameters.
        This yields a function that gives the parameters their gradients, after the pass; else they
        have them at the end of the block.
        """
        found: Dict[Tensor, Optional[Tensor]] = {}

        def give_back() -> None:
            """Give the parameters the gradients that were taken from them."""
            while found:
                parameter, gradient = found.popitem()
                parameter.grad = gradient

        try:
            with self._taking_gradients(found.__setitem__):
                yield give_back
        finally:
            give_back()

    @contextlib.contextmanager
    def _taking_gradients(
        self, take: Callable[[Tensor, Optional[Tensor]], None]
    ) -> Iterator[None]:
        """Have `take` called with each parameter and its gradient as soon as the backward pass in
        the block has it. The parameter has none then, before DDP looks.
        """

        def take_over(parameter: Tensor) -> None:
            """Take the gradient of a parameter from it."""
            gradient, parameter.grad = parameter.grad, None
            take(parameter, gradient)

        trained = [p for p in self._parameters if p.requires_grad]
        hooks = [p.register_post_accumulate_grad_hook(take_over) for p in trained]
        try:
            yield
        finally:
            for hook in hooks:
                hook.remove()

    def _put(self, parameter: Tensor, gradient: Optional[Tensor]) -> None:
        """Copy the gradient of a parameter into shoal's bucket for `averaging_pass`, and submit the
        buckets that are full now. None = this worker has none.
        """
        before = self._full
        self._fill(parameter, gradient)
        self._count_full()
        if self._full > before:
            self._path.exchange.submit_full(self._full, end=False)

    def _fill(self, parameter: Tensor, gradient: Optional[Tensor]) -> None:
        """Copy the gradient of a parameter to its place in shoal's buckets; None = there is none.
        """
        i, j = self._place[parameter]
        self._path.buckets[i].put(j, gradient)
        self._missing[i] -= 1

    def _count_full(self) -> None:
        """Bring `_full` up to date."""
        while self._full < len(self._missing) and not self._missing[self._full]:
            self._full += 1

    def _take_alone(self, bucket: dist.GradBucket) -> torch.futures.Future[torch.Tensor]:
        """Take a bucket where this worker is the only one: its gradients are the mean already, and
        nothing is copied. The last bucket commits the step.
        """
        future: torch.futures.Future[torch.Tensor] = torch.futures.Future()
        self._taken.append(_Taken(bucket, _gradients_in(bucket), future))
        if bucket.is_last():
            taken, self._taken = self._taken, []
            self._check_none_withheld(taken)
            require_open_step(self._job).commit_without_average()
            if self._used is not None:
                self._used.clear()
            for each in taken:
                each.future.set_result(each.bucket.buffer())
        return future

    def _begin_step(self, path: Path) -> None:
        """Begin a step on a path, or begin it again, with the statistics of the model. Waits until
        the last step's copies have left the buckets.
        """
        self._path = path
        path.copier.begin_step()
        path.exchange.begin_step()
        self._statistics.find(path.buckets)
        statistics = len(self._statistics.buckets)  # their buckets come first, and are full
        self._missing, self._full = (
            [0] * statistics + [len(b.parameters) for b in path.buckets[statistics:]],
            0,
        )
        with path.copier.copying_in():
            for bucket in path.buckets[:statistics]:
                bucket.pack([b.detach() for b in bucket.parameters])

    def _copy_in(self, taken: _Taken) -> None:
        """Copy the gradients of a bucket of DDP's into shoal's buckets, and have the copier's tasks
        submit those that are full once the copies are there.
        """
        path = self._path
        with path.copier.copying_in():
            for parameter, gradient in taken.gradients:
                unused = self._used is not None and parameter not in self._used
                self._fill(parameter, None if unused else gradient)
        self._count_full()
        full, first, end = self._full, len(self._taken) == 1, taken.bucket.is_last()
        if end and full < len(self._missing):
            self._check_none_withheld(self._taken)
        path.copier.run_after_copies(lambda: self._submit_full(path, full, first, end))

    def _check_none_withheld(self, taken: List[_Taken]) -> None:
        """Raise RuntimeError for parameters whose gradients DDP has kept to itself in this step, of
        which these are all buckets.
        """
        given = {p for each in taken for p, _ in each.gradients}
        names = [self._names[p] for p in reversed(self._parameters) if p not in given]
        if names:
            raise RuntimeError(
                "shoal: DistributedDataParallel has not handed over the gradients of"
                f" {', '.join(names)}, so they would not be averaged. Those of an embedding with"
                " sparse=True are never: make it with sparse=False, or freeze it"
            )

    def _submit_full(self, path: Path, full: int, first: bool, end: bool) -> None:
        """Submit the first `full` buckets of a path that are not submitted yet, on the thread of
        the copier's tasks. `first` and `end`: this is for the first or the last of DDP's buckets in
        the step.
        """
        if self._sizes is not None:
            self._sizes.clock.record_full(first, end)
        path.exchange.submit_full(full, end)

    def _end_step(self, taken: List[_Taken]) -> None:
        """Commit the step after the last of DDP's buckets, which `taken` are. Makes it again as
        often as it is void, for which it may wait for the other workers, and has the futures
        completed with the means.
        """
        while not self._path.exchange.try_commit():
            # The step is void, and is made again: DDP's buckets have the gradients still.
            self._comparison.note_members()
            self._begin_step(self._paths.choose(void=True))
            for each in taken:
                self._copy_in(each)
        path = self._path
        path.copier.run_after_copies(lambda: self._copy_means_out(path, taken))
        path.copier.complete_futures([(each.future, each.bucket.buffer()) for each in taken])

    def _copy_means_out(self, path: Path, taken: List[_Taken]) -> None:
        """Wait for the means, and copy them into DDP's buckets and the model's buffers, on the
        thread of the copier's tasks.
        """
        gradients = {p: g for each in taken for p, g in each.gradients}
        for bucket in path.exchange.averaged_buckets():
            for tensor, average in zip(bucket.parameters, bucket.unpack()):
                if tensor in gradients:
                    self._copy_mean_out(tensor, gradients[tensor], average)
                elif average is not None:  # a buffer of the model
                    path.copier.copy_out(tensor.detach(), average)
        if self._used is not None:
            self._used.clear()
        if self._sizes is not None:
            self._sizes.clock.record_end()

    def _copy_mean_out(
        self, parameter: Tensor, gradient: Tensor, average: Optional[Tensor]
    ) -> None:
        """Copy a mean to the place of the gradient in DDP's bucket, on the thread of the copier's
        tasks; None = no worker whose samples count has a gradient.
        """
        if average is None:
            # Those whose samples count have not used it, or are lost; where another worker has, DDP
            # takes what is in its bucket.
            if self._used is None or parameter in self._used:
                zeros = torch.zeros(gradient.shape, dtype=gradient.dtype)
                self._path.copier.copy_out(gradient, zeros)
            return
        self._path.copier.copy_out(gradient, average)
        if self._used is not None and parameter not in self._used:
            # DDP knows this worker only, and takes the parameter for unused.
            if parameter.grad is None:
                parameter.grad = torch.empty_like(gradient)
            self._path.copier.copy_out(parameter.grad, average)


def _gradients_in(bucket: dist.GradBucket) -> List[Tuple[Tensor, Tensor]]:
    """The parameters of a bucket of DDP's that have a gradient in it, each with that, which is a
    view of the bucket. Its own `gradients()` has the elements in the order of their memory, such as
    channels_last, and in a new PyTorch others where they are complex.
    """
    parameters, buffer = bucket.parameters(), bucket.buffer()
    if buffer.is_sparse:  # a bucket with a sparse gradient has a parameter and no gradient
        return []
    if not parameters[0].is_complex() and all(p.is_contiguous() for p in parameters):
        return list(zip(parameters, bucket.gradients()))
    if parameters[0].is_complex() and not buffer.is_complex():
        buffer = torch.view_as_complex(buffer.view(-1, 2))
    parts = buffer.split([p.numel() for p in parameters])
    return [(p, _view_like(p, part)) for p, part in zip(parameters, parts)]


def _view_like(parameter: Tensor, part: Tensor) -> Tensor:
    """A part of a bucket of DDP's as the gradient of a parameter, which lies there as the parameter
    does, if that is dense.
    """
    strides = parameter.stride()
    if parameter.is_contiguous() or torch.empty_like(parameter, device="meta").stride() == strides:
        return part.as_strided(parameter.shape, strides)
    return part.view(parameter.shape)
