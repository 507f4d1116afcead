"""Sharded data parallel: each worker keeps and updates a part of the optimizer's state.
docs/design/zero.md has the reasons.
"""

from __future__ import annotations

import math
from typing import Any, Dict, List, Optional, Sequence

import torch
from torch import Tensor

import shoal
from shoal._runtime.arguments import wrong_type
from shoal._runtime.protocol import NO_GRADIENT

from .. import averaged, registry
from ..arena import empty
from ..bucket import StepInfo
from ..buffers import Buffers
from ..exchange import require_open_step
from ..scale import check_rule, follow_batch
from ..state import check_arguments, mark_registered, register_state
from ..wire import copy_from_rank
from .flat import FlatParameters, Piece
from .shards import Shards

_MOST_CALLS = 200  # calls for gradients in a step, which has room for 256


def zero(
    model: torch.nn.Module,
    opt: torch.optim.Optimizer,
    *others: Any,
    stage: int = 1,
    lr_scaling: str = "auto",
) -> "Zero":
    """Have `opt` update the parameters of `model`, each worker a part of them, with gradients
    averaged over the workers of the job. All workers call it, on the thread of the training loop,
    and wait for each other.

        loader = shoal.torch.loader(dataset, global_batch=128)          # first
        optimizer = shoal.torch.zero(model, torch.optim.AdamW(model.parameters()), stage=2)
        for x, y in loader:
            optimizer.zero_grad()
            F.cross_entropy(model(x), y).backward()
            optimizer.step()

    Of n workers, each keeps 2/n of the optimizer's state: its share, and a copy of another's, so
    that nothing is lost with a worker. With stage 1 every worker has all averaged gradients between
    `average_gradients()`, or `step()`, and `zero_grad()`; with stage 2 it gets those of its 2/n
    only, and `grad` of all parameters is None after it. To clip, call
    `optimizer.clip_grad_norm_(1.0)` before `step()`: before the average there are only gradients of
    this worker. A GradScaler may step it: where a gradient of any worker overflows, all of them
    skip the step, and go on with the same scale. The parameters are on all workers after each step,
    and are those that the same optimizer would give with shoal.torch.ddp: to the last bit on one
    host, and up to the order of sums with stage 2 on several. Workers may join, leave and be
    killed. When two that hold the same part are lost at once, `step()` and the loop raise
    ShoalError on all others: start again from a checkpoint.

    It takes optimizers that treat every element by itself, whatever its neighbours are: SGD, Adam,
    AdamW, RMSprop, Adagrad and the like; `opt` keeps its parameter groups, for schedulers, and
    gives its state away. Workers that join get its schedulers, a GradScaler and what is in `others`
    (anything with a `state_dict`) too. The parameters move into the arena; floating-point buffers
    are averaged. Where the loader has a `batch_range`, the learning rate follows the batch by
    `lr_scaling`, as with shoal.torch.optimizer.

    Raises RuntimeError without a loader and for a model on a GPU, ValueError for a loader that
    takes several averages a step, for an optimizer with parameters of something else than the
    model, and for a model whose gradients are averaged already, and TypeError for an optimizer
    whose state cannot be cut, and for complex parameters.

    After Rajbhandari et al., ZeRO: Memory Optimizations Toward Training Trillion Parameter Models,
    SC'20, section 5 (P_os and P_os+g).
    """
    if not isinstance(model, torch.nn.Module):
        raise wrong_type("model", model, "a torch.nn.Module")
    check_arguments(opt, others)
    check_rule(lr_scaling)
    job = shoal.join()
    if not job.elastic:
        raise RuntimeError(
            "shoal.torch.zero commits the steps of a loader: make shoal.torch.loader first"
        )
    if job._progress is not None and job._progress.averages > 1:
        raise ValueError(
            "shoal.torch.zero takes one average a step: make the loader without averages"
        )
    if stage not in (1, 2):
        raise ValueError(
            f"stage={stage!r}: 1 shards the optimizer's state, 2 the averaged gradients too"
        )
    elsewhere = [p.device for p in model.parameters() if p.device.type != "cpu"]
    if elsewhere:
        raise RuntimeError(
            f"shoal.torch.zero has a parameter on {elsewhere[0]}, and keeps parameters in memory of"
            " the host: leave the model on the CPU; shoal.torch.ddp trains models on GPUs"
        )
    taken = {id(p) for group in opt.param_groups for p in group["params"]}
    named = model.named_parameters()
    unreal = [name for name, p in named if p.is_complex() and id(p) in taken]
    if unreal:
        raise TypeError(
            f"shoal.torch.zero cannot divide {unreal[0]}, which has complex numbers: keep its real"
            " and imaginary parts as two parameters, or use shoal.torch.ddp, which averages both"
        )
    known = {id(p) for p in model.parameters()}
    strangers = [p for g in opt.param_groups for p in g["params"] if id(p) not in known]
    if strangers:
        raise ValueError(
            f"the optimizer has a parameter of shape {list(strangers[0].shape)} that is not in the"
            " model, so no other worker would get it: give both the same model, with all of it"
        )
    averages = averaged.of(job)
    if any(p in averages.by_ddp or p in averages.by_optimizer for p in model.parameters()):
        raise ValueError(
            "the gradients of this model are averaged already, by shoal.torch.ddp or another"
            " optimizer of shoal: shoal.torch.zero averages them itself, so leave the other out"
        )
    copy_from_rank(job, (*model.parameters(), *model.buffers()))
    sharded = Zero(job, model, opt, stage)
    averages.by_optimizer.update(p for p in model.parameters() if p.requires_grad)
    follow_batch(job, sharded, opt, lr_scaling)
    mark_registered(job, opt)
    register_state(job, "model", model)
    for other in others:
        register_state(job, type(other).__name__, other)
    return sharded


class Zero(torch.optim.Optimizer):
    """An optimizer whose state is divided among the workers. Made by `zero`. The thread of the
    training loop uses it; `step`, `average_gradients` and `clip_grad_norm_` wait for the other
    workers.
    """

    # GradScaler then leaves unscaling and the look for infinities to step().
    _step_supports_amp_scaling = True

    def __init__(
        self, job: "shoal.Job", model: torch.nn.Module, inner: torch.optim.Optimizer, stage: int
    ) -> None:
        """Move the parameters into the arena, and take this worker's share of the optimizer's
        state. All workers call it together.
        """
        # Not the base's __init__: groups and defaults are those of `inner`, through __getattr__.
        self.inner = inner
        self._job, self._stage = job, stage
        self._flat = FlatParameters(
            [p for group in inner.param_groups for p in group["params"] if p.requires_grad]
        )
        # Parameters that nobody averages, because they were frozen.
        self._frozen = [p for g in inner.param_groups for p in g["params"] if not p.requires_grad]
        self._shards = Shards(job, inner, self._flat)
        self._statistics = Buffers([model])
        # A mark for each parameter: not 0 where a worker had a gradient, and no number where that
        # was not finite.
        self._marks = empty(len(self._flat.parameters))
        self._gradients: List[Tensor] = []  # memory of the gradients, by buffer
        self._kept = 0  # bytes of averaged gradients
        self._averaged = averaged.AverageMark()
        self._looked = False  # whether the newest average was with a look for overflows
        self._overflow = False  # whether it found one, on any worker
        job.register(job.unused("optimizer"), self._settings, self._set_settings)
        job._state.sharded.append(self._shards)

    def __getattr__(self, name: str) -> Any:
        """What this wrapper does not have is the wrapped optimizer's."""
        if name == "inner":  # not there yet while a copy is being made
            raise AttributeError(name)
        return getattr(self.inner, name)

    def __reduce_ex__(self, _: Any) -> Any:
        """Raise RuntimeError: a copy, or a file, would have this worker's part of the state."""
        return self.state_dict()

    def __repr__(self) -> str:
        """A text: over how many workers it is sharded, the stage, and the wrapped optimizer."""
        return f"sharded over {self._job.size} workers, stage {self._stage}: {self.inner!r}"

    def step(self, closure: Any = None) -> None:
        """Average the gradients, which commits the step, update this worker's part of the
        parameters, and get the others from the other workers.

        A worker that is released with this step keeps the parameters of the step before.
        """
        if closure is not None:
            raise RuntimeError(
                "shoal: step(closure) averages as often as the closure is called, and a step of the"
                " loader is one average"
            )
        # Set by GradScaler, which has looked at the gradients of this worker. Whether a step is
        # skipped is known after the average, on all workers alike.
        scale, guarded = self.__dict__.get("grad_scale"), "found_inf" in self.__dict__
        if guarded and self._averaged:
            self._check_guard(scale)
            # With stage 1 those of all parameters, which the parts of this worker share.
            self._unscale(self._gradients or [p.grad for _, p in self._shards.parts], scale)
        elif guarded:
            self._unscale([p.grad for p in self._flat.parameters], scale)
        self._average_once(whole=self._stage == 1, look=guarded)
        self._averaged.clear()
        if guarded:
            registry.record_overflow(self, self._overflow)
        if not self._job._backend.view.gone:
            if guarded and self._overflow:
                self._shards.drop_gradients()
            else:
                self._shards.step()
            self._shards.gather()

    def _check_guard(self, scale: Optional[Tensor]) -> None:
        """Raise RuntimeError where a GradScaler could not do its part before step(), because the
        gradients were averaged. `scale` is what it has not divided them by yet; None = it has.
        """
        if not self._looked:
            raise RuntimeError(
                "shoal: the gradients were averaged without a look for overflows, because the"
                " GradScaler is not known here: make it after `import shoal.torch`"
            )
        if self._stage == 2 and scale is None and not isinstance(self.found_inf, Tensor):
            raise RuntimeError(
                "shoal: scaler.unscale_(optimizer) found no gradients, because with stage=2 those"
                " that are averaged are divided among the workers: call it before the average"
            )

    @staticmethod
    def _unscale(gradients: Sequence[Optional[Tensor]], scale: Optional[Tensor]) -> None:
        """Divide gradients by a scale, in place; None among them = there is none, and for the scale
        = that was done.
        """
        if scale is None:
            return
        divisor = scale.item()
        for gradient in gradients:
            if gradient is not None:
                gradient.div_(divisor)

    def average_gradients(self) -> None:
        """Average the gradients now, which commits the step; the next `step()` does not do it
        again, unless a backward pass comes before it, which is one too many for the step.

        With stage 1 `grad` of the parameters is the average then; what is done to it in place
        counts.
        """
        self._average_once(whole=self._stage == 1)

    def clip_grad_norm_(
        self, max_norm: float, norm_type: float = 2.0, error_if_nonfinite: bool = False
    ) -> Tensor:
        """Average the gradients now, which commits the step, and scale them so that their norm,
        over all parameters, is `max_norm` at most; returns the norm that they had. As
        torch.nn.utils.clip_grad_norm_ does after `average_gradients()`, but with stage 2 too: then
        the averages of all parameters are on all workers until `step()`. Raises RuntimeError where
        stage 2 has averaged already.
        """
        if self._averaged and self._stage == 2:
            raise RuntimeError(
                "shoal: the gradients are averaged already, and with stage=2 no worker has all of"
                " them: call clip_grad_norm_ in place of average_gradients()"
            )
        self._average_once(whole=True)
        norm = torch.nn.utils.clip_grad_norm_(
            self._flat.parameters, max_norm, norm_type, error_if_nonfinite=error_if_nonfinite
        )
        if self._stage == 2:
            self._drop_gradients()
        return norm

    def _average_once(self, whole: bool, look: bool = False) -> None:
        """Commit the step with the average of all gradients, and wait for it: for each worker of
        its parts, or of the `whole` model. Does nothing where that was done. `look`: a GradScaler
        must know of overflows.
        """
        if self._averaged:
            return
        if any(p.requires_grad for p in self._frozen):
            raise RuntimeError(
                "shoal: a parameter is trained that was frozen when shoal.torch.zero took the"
                " optimizer, and nobody averages it: make shoal.torch.zero while all that is ever"
                " trained requires gradients, and freeze some after it"
            )
        step = require_open_step(self._job)
        self._looked = look or bool(registry.live_scalers())
        room = self._pack_gradients()
        job, calls = self._job, []
        share = step.weight / step.samples_of_ranks(range(job.size))
        info = StepInfo(job.rank, job.size, step.number, share, fresh=False)
        with self._job.grouped():
            self._statistics.find(self._statistics.buckets)
            for bucket in self._statistics.buckets:
                bucket.begin_step(info)
                bucket.pack([b.detach() for b in bucket.parameters])
                calls.append(step.share(bucket.buffer, last=False, tag=NO_GRADIENT))
            kept = self._submit_sums(step, room, calls, whole)
            calls.append(step.share(self._marks, last=True, tag=NO_GRADIENT))
        for call in reversed(calls):
            call.wait()
        self._job._backend.step_timer.record_average_done()
        for bucket in self._statistics.buckets:
            for buffer, average in zip(bucket.parameters, bucket.unpack()):
                if average is not None:  # else nobody is left whose samples count
                    buffer.detach().copy_(average)
        self._assign_gradients(kept, whole)
        self._averaged.set(self._flat.parameters)

    def zero_grad(self, *args: Any, **kwargs: Any) -> None:
        """As torch's; the next `step()` averages again."""
        self._averaged.clear()
        self.inner.zero_grad(*args, **kwargs)

    def memory(self) -> Dict[str, int]:
        """The bytes that this worker holds: of "parameters", of "gradients" that were averaged in
        the newest step, of "state".
        """
        parameters = sum(s.values.numel() * s.values.element_size() for s in self._flat.buffers)
        return {"parameters": parameters, "gradients": self._kept, "state": self._shards.nbytes}

    def state_dict(self) -> Any:
        """Raises RuntimeError: the state is divided among the workers. job.checkpoint writes it."""
        raise RuntimeError(
            "shoal: the state of a sharded optimizer lies on all workers: job.checkpoint writes it"
            " and takes it over again"
        )

    def load_state_dict(self, state_dict: Any) -> None:
        """Raises RuntimeError: load the state into the optimizer before shoal.torch.zero shards
        it.
        """
        raise RuntimeError(
            "shoal: load the state into the optimizer before shoal.torch.zero shards it;"
            " job.checkpoint takes over its own"
        )

    def add_param_group(self, param_group: Any) -> None:
        """Raises RuntimeError: the parameters are divided already."""
        raise RuntimeError(
            "shoal: add the group to the optimizer before shoal.torch.zero shards it"
        )

    def _pack_gradients(self) -> List[Tensor]:
        """Copy this worker's gradients into the arena, one after the other, mark which there are,
        and return them by buffer. The parameters let go of theirs.
        """
        if not self._gradients:
            self._gradients = self._flat.allocate()
        self._marks.fill_(1)
        for i, parameter in enumerate(self._flat.parameters):
            place, gradient = self._flat.elements_of(i, self._gradients), parameter.grad
            if gradient is None:
                place.zero_()
                self._marks[i] = 0
            elif gradient.is_sparse:
                raise RuntimeError(
                    "shoal: sparse gradients cannot be sharded: use layers with sparse=False"
                )
            elif gradient.data_ptr() != place.data_ptr():
                place.copy_(gradient.reshape(-1))
            if self._looked and not torch.isfinite(place).all():
                self._marks[i] = math.nan  # which the average of the marks is then
            parameter.grad = None
        return self._gradients

    def _submit_sums(
        self, step: "shoal.Step", room: List[Tensor], calls: List[Any], whole: bool
    ) -> List[Piece]:
        """Submit the sums of gradients, which lie in `room`, and append the calls to `calls`, for
        the caller to wait for. Returns where those of this worker's parts, or with `whole` of all,
        will lie then.
        """
        flat, partition = self._flat, self._shards.partition
        sums = 2 * len(partition.shares) * len(flat.buffers)
        if whole or len(partition.shares) < 3 or sums > _MOST_CALLS:
            calls += [step.share(tensor, last=False) for tensor in room]
            return [((s.start, s.stop), tensor) for s, tensor in zip(flat.buffers, room)]
        kept: List[Piece] = []
        for buffer, tensor in zip(flat.buffers, room):
            for owner, share in enumerate(partition.shares):
                for span, piece in buffer.pieces(tensor, [share]):
                    for root in (owner, partition.buddies[owner]):
                        out = None
                        if root == self._job.rank:
                            out = empty(piece.numel(), piece.dtype)
                            kept.append((span, out))
                        if root is not None:
                            calls.append(step.reduce_to_root(piece, root, out))
        return kept

    def _assign_gradients(self, kept: List[Piece], whole: bool) -> None:
        """Give each part of this worker its averaged gradient, and of a `whole` average the
        parameters theirs.
        """
        used = self._marks.ne(0).tolist()
        self._overflow = self._looked and not bool(torch.isfinite(self._marks).all())
        self._shards.drop_gradients()  # of an average of which no step was made
        for run, part in self._shards.parts:
            if used[run.parameter]:
                (first, _), tensor = next(
                    (span, tensor)
                    for span, tensor in kept
                    if span[0] <= run.start and run.stop <= span[1]
                )
                part.grad = tensor[run.start - first : run.stop - first]
        if whole:
            for i, parameter in enumerate(self._flat.parameters):
                parameter.grad = (
                    self._flat.elements_of(i, self._gradients).view(parameter.shape)
                    if used[i]
                    else None
                )
        else:
            self._drop_gradients()
        self._kept = sum(tensor.numel() * tensor.element_size() for _, tensor in kept)

    def _drop_gradients(self) -> None:
        """Let go of all gradients but those in the parts of this worker."""
        for parameter in self._flat.parameters:
            parameter.grad = None
        self._gradients = []

    def _settings(self) -> List[Dict[str, Any]]:
        """The settings of all parameter groups, such as learning rates."""
        return [
            {key: value for key, value in group.items() if key != "params"}
            for group in self.inner.param_groups
        ]

    def _set_settings(self, value: List[Dict[str, Any]]) -> None:
        """Take over the settings of all parameter groups, when this worker joins or goes on from a
        checkpoint.
        """
        for group, given in zip(self.inner.param_groups, value):
            group.update(given)
