"""Averages the gradients of a DistributedDataParallel whose workers may join and be lost. The
functions are for `shoal.torch.ddp`, on the thread of the training loop.
"""

from __future__ import annotations

import inspect
import weakref
from datetime import timedelta
from typing import Any, Callable, Dict, List, Optional, Sequence

import torch
from torch import Tensor

import shoal
from shoal._runtime.arguments import wrong_type

from .backend import ProcessGroup
from .bucket import MOST_BYTES, Bucket
from .buffers import Buffers
from .ddp_average import Average
from .ddp_model import DistributedDataParallel

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
# What averages the gradients of each wrapped model.
_averages: "weakref.WeakKeyDictionary[DistributedDataParallel, Average]"
_averages = weakref.WeakKeyDictionary()


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
        Buffers([model]),
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


def average_gradients_with(wrapped: DistributedDataParallel, average: Average) -> None:
    """Have the gradients of a DistributedDataParallel averaged by `average`, in every backward
    pass.
    """
    # DDP reads the annotations of a hook, and does not understand them as strings: a lambda has
    # none.
    wrapped.register_comm_hook(average, lambda average, bucket: average.take_bucket(bucket))
    _averages[wrapped] = average


def average_beside_ddp(model: Any) -> Optional[Average]:
    """What can average the gradients of this model without DDP, by `Average.averaging_pass`; None =
    nothing can, as on a device. `model` is what shoal.torch.ddp returned, compiled or not.
    """
    model = getattr(model, "_orig_mod", model)
    average = _averages.get(model) if isinstance(model, DistributedDataParallel) else None
    if average is None or not average.on_cpu or getattr(model, "static_graph", False):
        return None  # of a static graph a parameter may get its gradient in several parts
    return average if hasattr(Tensor, "register_post_accumulate_grad_hook") else None


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
