"""Averages the gradients of a DistributedDataParallel whose workers may join and be lost. The
functions are for `shoal.torch.ddp`, on the thread of the training loop.
"""

from __future__ import annotations

import inspect
import weakref
from datetime import timedelta
from typing import Any, Callable, Dict, List, Optional, Sequence, Set, Tuple

import torch
import torch.distributed as dist
from torch import Tensor

import shoal
from shoal._runtime.arguments import wrong_type

from .backend import ProcessGroup
from .bucket import MOST_BYTES, Bucket, make_buckets
from .bucket_sizes import BucketSizes
from .ddp_model import DistributedDataParallel
from .exchange import require_open_step
from .path import Path, Paths
from .replicas import Comparison

_LEAST_BYTES = 1 << 20  # bytes of the smallest bucket that is worth a call
_BUCKETS = 16  # number of buckets that a model is cut into, unless they get too small or too large
# The largest number of DDP's own buckets where the workers find the size of shoal's.
_MOST_DDP_BUCKETS = 64
_FOREVER = timedelta(days=3650)  # a timeout that never ends
# The option that keeps DDP from sending the parameters to itself at the start, which copies them.
# Empty where PyTorch is too old to have it.
_UNSYNCED: Dict[str, Any] = (
    {"init_sync": False}
    if "init_sync" in inspect.signature(DistributedDataParallel.__init__).parameters
    else {}
)
# Models that were wrapped before the job had a loader. Their gradients are averaged over the
# workers with which the job began, so none of these may be lost.
rigid: "weakref.WeakSet[DistributedDataParallel]" = weakref.WeakSet()


def wrap_elastic(
    job: "shoal.Job",
    model: torch.nn.Module,
    options: Dict[str, Any],
    make: Callable[[Sequence[Tensor]], Bucket],
) -> DistributedDataParallel:
    """`model` as a DistributedDataParallel that commits the open step of the job at the end of a
    backward pass. `options` are DDP's, and `make` makes a bucket. All workers call it together, and
    wait for each other.

    To torch it is alone: parts of DDP that speak to the other workers on their own account (the
    check of the parameters at the start, the new order of buckets after the first step, the
    broadcast of buffers before each forward) would not fit between the calls of a worker that
    joined later.
    """
    if options.get("process_group") is not None:
        raise ValueError(
            "process_group cannot be chosen in a job with shoal.torch.loader: it averages over the"
            " members of the job"
        )
    limit = largest_bucket_bytes(model, options)
    total = gradient_bytes(model)
    # Whether the workers find the size of buckets while they train.
    adaptive = make is Bucket and not options.get("bucket_cap_mb")
    # DDP's buckets say when gradients are ready, so they are no larger than the smallest buckets of
    # shoal that may be tried.
    ddp_bucket_bytes = max(total // _MOST_DDP_BUCKETS, _LEAST_BYTES) if adaptive else limit
    wrapped = DistributedDataParallel(
        model,
        **{
            "bucket_cap_mb": ddp_bucket_bytes / (1 << 20),
            **_UNSYNCED,
            **options,
            "process_group": _SingleProcessGroup(job, [0], _FOREVER),
        },
    )
    average = Average(
        job,
        None,
        model,
        make,
        limit,
        bool(options.get("find_unused_parameters")),
        [b for b in model.buffers() if b.is_floating_point()],
    )
    if adaptive:
        average.find_bucket_size(total)
    average_gradients_with(wrapped, average)
    if job._progress is not None:
        alive = weakref.ref(wrapped)
        job._progress.hints.append(lambda: _advice_without_average(alive()))
    return wrapped


def _advice_without_average(wrapped: Optional[DistributedDataParallel]) -> str:
    """Advice for the error of a step that was not averaged, by which parameters of a wrapped model
    have a gradient; "" where the model is gone.
    """
    if wrapped is None:
        return ""
    trained = [(name, p) for name, p in wrapped.module.named_parameters() if p.requires_grad]
    without = [name for name, p in trained if p.grad is None]
    unused = "use shoal.torch.ddp(model, find_unused_parameters=True)"
    if 0 < len(without) < len(trained):
        some = ", ".join(without[:3]) + (", …" if len(without) > 3 else "")
        return (
            f"{len(without)} of {len(trained)} parameters got none ({some}): {unused}, or"
            " requires_grad_(False) for those that are not trained"
        )
    return (
        "No backward pass went through the model that shoal.torch.ddp returned, or only under"
        " no_sync(). To accumulate gradients, cut the batch of a step into parts, all but the last"
        f" under no_sync(). If the loss does not depend on all parameters, {unused}"
    )


def average_gradients_with(wrapped: DistributedDataParallel, average: "Average") -> None:
    """Have the gradients of a DistributedDataParallel averaged by `average`, in every backward
    pass.
    """
    # DDP reads the annotations of a hook, and does not understand them as strings: a lambda has
    # none.
    wrapped.register_comm_hook(average, lambda average, bucket: average.take_bucket(bucket))


def largest_bucket_bytes(model: torch.nn.Module, options: Dict[str, Any]) -> int:
    """The largest size of a bucket in bytes: DDP's option, or else so small that most of a step is
    sent while the backward pass goes on, but large enough that a bucket is worth a call.
    """
    most = options.get("bucket_cap_mb") or 0
    if not isinstance(most, (int, float)):
        raise wrong_type("bucket_cap_mb", most, "how large a bucket may be, a number of MiB")
    wanted = most * (1 << 20) or min(gradient_bytes(model) / _BUCKETS, MOST_BYTES)
    return max(int(wanted), _LEAST_BYTES)


def gradient_bytes(model: torch.nn.Module) -> int:
    """The bytes of all gradients of a model."""
    return sum(p.numel() * p.element_size() for p in model.parameters() if p.requires_grad)


class _SingleProcessGroup(ProcessGroup):
    """A process group of this process only, as DDP gets it: what DDP sends by it stays here."""

    def _new_group(self, ranks: Optional[List[int]]) -> "shoal.Group":
        """A group of this process, whatever the ranks are."""
        return self._job.alone()


class Average:
    """The mean of all gradients of a backward pass, over the members of the job or over a group.

    The buckets of the agent's calls are not DDP's: those come in the order in which gradients were
    ready, which a worker that joins in the middle cannot know. They follow the order of the
    parameters, which is the same everywhere. They travel between the hosts as they fill, but a step
    completes as a whole, so nothing is waited for before DDP's last bucket is there; then a task of
    the copier waits for all of them, which on the CPU is in the hook.

    `statistics` are buffers of the model (running means and the like) that are averaged too, so
    that they are the same everywhere after the step.

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
        statistics: Sequence[Tensor] = (),
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
        self._statistics = make_buckets(statistics)
        for bucket in self._statistics:
            bucket.gradient = False
        self._sizes: Optional[BucketSizes] = None  # None = buckets keep their size
        self._size = bucket_bytes  # the largest size of a bucket, in bytes
        self._paths = Paths(
            job,
            [*parameters, *statistics],
            self._make_buckets(),
            group,
            uncompressed=make is Bucket,
        )
        self._path = self._paths.arena  # the path of the step under way
        # By index of a bucket of the path: the number of gradients that the bucket lacks still.
        self._missing: List[int] = []
        self._full = 0  # number of full buckets at the front of the path's list
        # DDP's buckets of the step under way that came already, and the futures on which DDP waits.
        self._taken: List[Tuple[dist.GradBucket, torch.futures.Future]] = []
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
        all_buckets = [*self._statistics, *make_buckets(self._parameters, self._size, self._make)]
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
            self._comparison.note_members()
            self._alone = self._keeps and self._job.size == 1 and self._job.step is not None
            if not self._alone:
                if not self._grouped:
                    self._comparison.compare(self._parameters)
                self._resize_buckets()
                self._begin_step(self._paths.choose())
        if self._alone:
            return self._take_alone(bucket)
        future = self._path.copier.new_future()
        self._taken.append((bucket, future))
        self._copy_in(bucket)
        if bucket.is_last():
            taken, self._taken = self._taken, []
            self._end_step(taken)
        return future

    def _take_alone(self, bucket: dist.GradBucket) -> torch.futures.Future[torch.Tensor]:
        """Take a bucket where this worker is the only one: its gradients are the mean already, and
        nothing is copied. The last bucket commits the step.
        """
        future: torch.futures.Future[torch.Tensor] = torch.futures.Future()
        self._taken.append((bucket, future))
        if bucket.is_last():
            taken, self._taken = self._taken, []
            self._check_none_withheld(taken)
            require_open_step(self._job).commit_without_average()
            if self._used is not None:
                self._used.clear()
            for each, done in taken:
                done.set_result(each.buffer())
        return future

    def _begin_step(self, path: Path) -> None:
        """Begin a step on a path, or begin it again, with the statistics of the model. Waits until
        the last step's copies have left the buckets.
        """
        self._path = path
        path.copier.begin_step()
        path.exchange.begin_step()
        statistics = len(self._statistics)  # the buckets of statistics come first, and are full
        self._missing, self._full = (
            [0] * statistics + [len(b.parameters) for b in path.buckets[statistics:]],
            0,
        )
        with path.copier.copying_in():
            for bucket in path.buckets[:statistics]:
                bucket.pack([b.detach() for b in bucket.parameters])

    def _copy_in(self, bucket: dist.GradBucket) -> None:
        """Copy the gradients of a bucket of DDP's into shoal's buckets, and have the copier's tasks
        submit those that are full once the copies are there.
        """
        path = self._path
        with path.copier.copying_in():
            for parameter, gradient in zip(bucket.parameters(), bucket.gradients()):
                i, j = self._place[parameter]
                unused = self._used is not None and parameter not in self._used
                path.buckets[i].put(j, None if unused else gradient)
                self._missing[i] -= 1
        while self._full < len(self._missing) and not self._missing[self._full]:
            self._full += 1
        full, first, end = self._full, len(self._taken) == 1, bucket.is_last()
        if end and full < len(self._missing):
            self._check_none_withheld(self._taken)
        path.copier.run_after_copies(lambda: self._submit_full(path, full, first, end))

    def _check_none_withheld(
        self, taken: List[Tuple[dist.GradBucket, torch.futures.Future]]
    ) -> None:
        """Raise RuntimeError for parameters whose gradients DDP has kept to itself in this step, of
        which these are all buckets.
        """
        # A bucket with a sparse gradient has a parameter and no gradient.
        given = {p for bucket, _ in taken for p, _ in zip(bucket.parameters(), bucket.gradients())}
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

    def _end_step(self, taken: List[Tuple[dist.GradBucket, torch.futures.Future]]) -> None:
        """Commit the step after the last of DDP's buckets, which `taken` are, with their futures.
        Makes it again as often as it is void, for which it may wait for the other workers, and has
        the futures completed with the means.
        """
        while not self._path.exchange.try_commit():
            # The step is void, and is made again: DDP's buckets have the gradients still.
            self._comparison.note_members()
            self._begin_step(self._paths.choose(void=True))
            for bucket, _ in taken:
                self._copy_in(bucket)
        path = self._path
        path.copier.run_after_copies(
            lambda: self._copy_means_out(path, [bucket for bucket, _ in taken])
        )
        path.copier.complete_futures([(future, bucket.buffer()) for bucket, future in taken])

    def _copy_means_out(self, path: Path, taken: List[dist.GradBucket]) -> None:
        """Wait for the means, and copy them into DDP's buckets and the model's buffers, on the
        thread of the copier's tasks.
        """
        gradients = {
            p: g for bucket in taken for p, g in zip(bucket.parameters(), bucket.gradients())
        }
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
