"""DistributedDataParallel on shoal, in one call."""

from __future__ import annotations

import functools
import os
from typing import Any, Dict, List, Tuple

import torch
import torch.distributed as dist
from torch.nn.modules.batchnorm import _BatchNorm

import shoal
from shoal._runtime.arguments import wrong_type
from shoal._runtime.log import format_count, log_line

from . import averaged, cuda, elastic, registry
from .compress import Compression, bucket_maker
from .ddp_model import DistributedDataParallel
from .state import register_state
from .wire import copy_from_rank


def ddp(
    model: torch.nn.Module, compress: Compression = None, **options: Any
) -> DistributedDataParallel:
    """Wrap `model` so that every backward pass averages its gradients over the workers of the job.
    All workers call it, on the thread of the training loop, and wait for each other.

    The result is a torch DistributedDataParallel, with one worker too, so `model.module`,
    `no_sync()`, `join()` and checkpoints look the same at every size. Parameters and buffers start
    as rank 0's. `options` go to DistributedDataParallel unchanged (bucket_cap_mb in MiB,
    find_unused_parameters, static_graph, …).

    With `compress`, gradients take fewer bytes: "bf16", "fp16", "int8", TopK(0.01),
    PowerSGD(rank=4); the package `compress` says what these are. Where they must not be rounded,
    leave it out.

    The default process group is set up with the backend "shoal" if the script has not set one up,
    or the job of that was left; one with another backend is used as it is.

    Without `shoal.torch.loader` it is as in torch: gradients are the same on all workers, and
    whether each of them also steps its optimizer is the script's business.

    In a job with `shoal.torch.loader` (make it first), gradients are weighted by the samples that
    each worker had, running means of batch norms and the like are averaged with them, and the end
    of the backward pass commits the step. To torch the model is then alone, whatever workers join
    or are lost; workers that join get it from the others, with the state of its optimizers, their
    schedulers and a GradScaler, if these were made after `import shoal.torch` and before the loop.
    How large buckets are is found out while it trains on several hosts, unless bucket_cap_mb says
    it or gradients are compressed.

    A parameter that comes later, in the model or in one of its optimizers, would not be averaged:
    the forward pass then raises RuntimeError, unless shoal.torch.optimizer has it. A parameter
    that takes no gradient now must not take one later, because it would not be averaged: the
    forward pass then raises RuntimeError. To train some layers later, wrap the model while all of
    its parameters take gradients, with find_unused_parameters=True, and freeze those after it. A
    worker that joins trains the same parameters as the others; a program that goes on from a
    checkpoint freezes them itself.

    torch.compile may come before this call or after it, on the model or on the result.

    A copy of the result (copy.deepcopy, torch.save, torch.optim.swa_utils.AveragedModel) is an
    ordinary model: it has the same names and memory of its own, averages nothing, and is loaded
    without shoal. What each worker keeps in a copy, such as a moving average, workers that join get
    where the script registers it before the loop, on every worker::

        job.register("average", average.state_dict, average.load_state_dict)

    Raises RuntimeError where the ranks' models differ, or where the model has no parameter that
    takes a gradient.
    """
    if not isinstance(model, torch.nn.Module):
        raise wrong_type("model", model, "a torch.nn.Module; of several wrap each")
    job, make = shoal.join(), bucket_maker(compress)
    if dist.is_initialized() and getattr(dist.group.WORLD, "_job", job) is not job:
        dist.destroy_process_group()  # its job was left
    if not dist.is_initialized():
        own: Dict[str, Any] = {}
        if job.elastic and not _awaits_all_in_store():
            # Rank 0 would wait in torch's own store for a worker that is lost before it gets here.
            own = dict(store=dist.HashStore(), rank=job.rank, world_size=job.size)
        dist.init_process_group("shoal", **own)
    if job.elastic:
        if any(isinstance(m, torch.nn.parallel.DistributedDataParallel) for m in model.modules()):
            raise ValueError(
                "the model, or a part of it, is a DistributedDataParallel already, and a step of"
                " shoal.torch.loader takes one average: wrap the plain model, once"
            )
        copy_from_rank(job, (*model.parameters(), *model.buffers()))
        wrapped = elastic.wrap_elastic(job, model, options, make)
        register_state(job, "model", model)
    else:
        wrapped = DistributedDataParallel(model, **options)
        if (
            compress is not None
            or options.get("process_group") is None
            and cuda.device_of(model.parameters())
        ):
            if options.get("process_group") is not None:
                raise ValueError(
                    "process_group cannot be chosen with compress, which averages over all workers"
                    " of the job"
                )
            elastic.average_gradients_with(
                wrapped,
                elastic.Average(
                    job,
                    job.group(list(range(job.size))),
                    model,
                    make,
                    elastic.largest_bucket_bytes(model, options),
                    find_unused=False,
                ),
            )
        averaged.of(job).rigid.add(wrapped)
    known = averaged.of(job)
    known.by_ddp.update(p for p in model.parameters() if p.requires_grad)
    frozen = [(name, p) for name, p in model.named_parameters() if not p.requires_grad]
    known.frozen_by_ddp.update(p for _, p in frozen)
    if frozen:
        wrapped.register_forward_pre_hook(functools.partial(_check_still_frozen, known, frozen))
    wrapped.register_forward_pre_hook(_UnaveragedParameters(model, known))
    if job.elastic and any(isinstance(m, _BatchNorm) for m in model.modules()):
        wrapped.register_forward_pre_hook(_SingleSample(job))
    return wrapped


class _UnaveragedParameters:
    """A hook for forward passes that finds parameters that optimizers have and nobody averages, of
    this model or beside its own. It looks when optimizers have got others. The thread of the
    forward pass calls it.
    """

    def __init__(self, model: torch.nn.Module, known: averaged.Averaged):
        """A hook for this model, which has not looked yet. `known` is what its job averages."""
        self._model, self._known = model, known
        # The number of parameters of all optimizers when it last looked; -1 = it has not.
        self._seen = -1

    def __call__(self, *_: Any) -> None:
        """Raise RuntimeError, before a forward pass, where there are such parameters."""
        optimizers = registry.live_optimizers()
        count = sum(len(group["params"]) for opt in optimizers for group in opt.param_groups)
        if count == self._seen or not torch.is_grad_enabled():
            return
        names, known = {p: name for name, p in self._model.named_parameters()}, self._known
        new = []
        for opt in optimizers:
            trained = [p for group in opt.param_groups for p in group["params"] if p.requires_grad]
            with_ours = any(p in known.by_ddp for p in trained if p in names)
            new += [
                p
                for p in trained
                if p not in known.by_ddp
                and p not in known.frozen_by_ddp
                and p not in known.by_optimizer
                and (with_ours or p in names)
            ]
        if new:
            some = ", ".join(names.get(p, f"one of shape {list(p.shape)}") for p in new[:3]) + (
                ", …" if len(new) > 3 else ""
            )
            raise RuntimeError(
                "an optimizer has parameters that shoal.torch.ddp did not find when it wrapped the"
                f" model, so their gradients would not be averaged ({some}): make them before, and"
                " as parts of the model, or give the optimizer to shoal.torch.optimizer when it"
                " has them, which averages what ddp does not"
            )
        self._seen = count


class _SingleSample:
    """A hook for forward passes of a model with batch norms, which says once that this worker has a
    single sample of a step: torch's error does not say where that comes from. The thread of the
    forward pass calls it.
    """

    def __init__(self, job: "shoal.Job"):
        """A hook that has said nothing yet."""
        self._job = job
        self._said = False  # the user was told

    def __call__(self, model: torch.nn.Module, _: Any) -> None:
        """Say so, before a forward pass in training, where this worker has a single sample."""
        step = self._job.step
        if self._said or not model.training or step is None or len(step.indices) > 1:
            return
        self._said = True
        workers = format_count(self._job.size, "worker")
        log_line(
            f"this worker has one sample in step {step.number}, of {step.count} on"
            f" {workers}, and a batch norm cannot compute with one value"
            " a channel: shoal.torch.loader(…, drop_last=True) leaves smaller batches out, and with"
            f" a global_batch of {2 * self._job.size} or more no worker gets one of several samples"
        )


def _check_still_frozen(
    known: averaged.Averaged, frozen: List[Tuple[str, torch.Tensor]], *_: Any
) -> None:
    """Raise RuntimeError, before a forward pass, where a parameter takes a gradient that was
    frozen: DistributedDataParallel never averages it, so each worker would train it on its own
    samples.
    """
    thawed = [
        name for name, p in frozen if p.requires_grad and p not in known.by_optimizer
    ]
    if thawed and torch.is_grad_enabled():
        some = ", ".join(thawed[:3]) + (", …" if len(thawed) > 3 else "")
        raise RuntimeError(
            f"{some} took no gradient when shoal.torch.ddp wrapped the model, and takes one now,"
            " which would not be averaged: wrap it while all of its parameters take gradients,"
            " with find_unused_parameters=True, and call requires_grad_(False) after that"
        )


def _awaits_all_in_store() -> bool:
    """Whether init_process_group ends when all workers have been in its store, which then has to be
    the same for all.
    """
    return torch.__version__ < (2, 1) or os.environ.get("TORCH_DIST_INIT_BARRIER", "0") != "0"
