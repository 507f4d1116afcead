"""An optimizer that makes local steps, and moves a common anchor once a round."""

from __future__ import annotations

import contextlib
from typing import Any, Callable, Dict, Iterator, List, Optional, Sequence

import torch
from torch import Tensor

import shoal
from shoal._runtime.log import format_count, log_line
from shoal.sync import Sync, parse

from .. import averaged
from ..buffers import Buffers
from ..exchange import require_open_step
from ..moments import broadcast_state
from ..optimizer_wrapper import Wrapper
from ..replicas import Comparison
from ..state import (
    initialize_some,
    initialize_state,
    load_state,
    mark_registered,
    register_trained,
)
from ..wire import copy_from_rank
from ..zero.optimizer import Zero
from .anchor import Anchor
from .partner import Partners


def local_steps(
    job: "shoal.Job", opt: torch.optim.Optimizer, others: Sequence[Any], sync: Sync, text: str
) -> "LocalSteps":
    """The optimizer that `shoal.torch.optimizer` returns for a strategy with local steps, which
    `text` names. All workers call it, and wait for each other. Raises RuntimeError, TypeError and
    ValueError for what does not go with local steps, with the line to change.
    """
    models = [getattr(m, "_orig_mod", m) for m in others if isinstance(m, torch.nn.Module)]
    _check_supported(job, opt, models, text)
    copy_from_rank(job, (t for m in models for t in (*m.parameters(), *m.buffers())))
    job._progress.declare_sync(  # type: ignore[union-attr]
        sync.strategy.text, sync.every, text == "auto"
    )
    made = LocalSteps(job, opt, models, sync)
    if job.rank == 0 and not job.outside:
        log_line(
            f"sync {sync.strategy.name}: {format_count(sync.every, 'local step')} a round;"
            f" {sync.strategy.rule}; a worker that is lost costs {sync.strategy.costs}"
        )
    return made


def _check_supported(
    job: "shoal.Job", opt: torch.optim.Optimizer, models: Sequence[torch.nn.Module], text: str
) -> None:
    """Raise an error for what does not go with local steps."""
    call = f'shoal.torch.optimizer(opt, model, sync="{text}")'
    if isinstance(opt, Zero):
        raise RuntimeError(
            f'sync="{text}" and shoal.torch.zero do not go together: a worker has only a part of'
            f" that optimizer's state. In place of shoal.torch.zero(model, opt) write {call}"
        )
    parameters = [p for group in opt.param_groups for p in group["params"]]
    if any(p in averaged.of(job).by_ddp for p in parameters) or any(
        isinstance(m, torch.nn.parallel.DistributedDataParallel) for m in models
    ):
        raise RuntimeError(
            f'sync="{text}" and DistributedDataParallel do not go together: that averages gradients'
            " in every backward pass. Leave out the line that wraps the model, such as model ="
            f" shoal.torch.ddp(model), and write {call}"
        )
    if job._progress is None:
        raise RuntimeError(
            f'sync="{text}": rounds are cut by shoal.torch.loader; make it before the optimizer'
        )
    if job._progress.sync:
        raise RuntimeError(
            f'sync="{text}": the job makes local steps already, by another optimizer or by'
            " local_steps=. A round has one commit: give all parameters to one optimizer"
        )
    if job._progress.meshed:
        raise RuntimeError(
            f'sync="{text}": the model is cut over a mesh, so no worker can step it alone; leave'
            " sync out"
        )
    if job._progress.averages > 1:
        raise ValueError(
            f'sync="{text}" takes one average a round: make the loader without averages='
        )
    if not models:
        raise TypeError(f'sync="{text}" needs the model too: {call}')
    known = {id(p) for m in models for p in m.parameters()}
    if any(id(p) not in known for p in parameters):
        raise ValueError(
            f'sync="{text}": the optimizer has parameters that the model has not; give all models,'
            " as in shoal.torch.optimizer(opt, encoder, decoder, sync=…)"
        )


def _describe_differing(differing: Sequence[int]) -> str:
    """That the anchors of some ranks are not that of most, in words."""
    whose = f"rank{'s' * (len(differing) > 1)} {', '.join(map(str, differing))}"
    return (
        f"not all workers have the same anchor: {whose}"
        f" {'have' if len(differing) > 1 else 'has'} another one than most"
    )


def _refusal_text(wanted: str, now: str, why: str) -> str:
    """That workers do not go on with the strategy that is wanted, and what to do, in words."""
    return (
        f"sync={wanted} is void, and the job goes on by {now}, since {why}. All workers must change"
        " the model in the same way: `if rank == 0:` is for what is written and printed. Begin"
        " again from a checkpoint of before"
    )


class LocalSteps(Wrapper):
    """An optimizer around another, which steps with the gradients of this worker; after the last
    local step of a round the anchor moves. Made by `shoal.torch.optimizer`. The thread of the
    training loop uses it. A `step` that ends a round waits for the other workers, and where they
    average in pairs each waits for the partner.
    """

    def __init__(
        self,
        job: "shoal.Job",
        inner: torch.optim.Optimizer,
        models: Sequence[torch.nn.Module],
        sync: Sync,
    ):
        """Train the parameters of `inner`, which are some of the models'."""
        super().__init__(inner)
        self._job = job
        trained = [p for group in inner.param_groups for p in group["params"]]
        averaged.of(job).by_optimizer.update(trained)
        # The strategy as the setting of the job names it, and how a setting has named the one in
        # force: the two differ where a change was void.
        self._text = self._in_force = sync.strategy.text
        self._anchor = Anchor(job, sync.strategy, trained, Buffers(models))
        self._partners = Partners(job, self._anchor.parameters)
        self._comparison = Comparison(job)
        self._begun = False  # local steps were made of which no commit was made yet
        self._at_anchor = False  # the parameters are the anchor for a while
        self._due = False  # a local step is open of which the program has not called `step` yet
        self._dealt = 0  # samples that count of this worker in that step, before any are left out
        self._skipped = False  # the program has left out samples of a step in this round
        # Of each group the highest learning rate at a commit since the replica was the anchor's;
        # empty = there was no commit since.
        self._rates: List[float] = []
        self._blank: Dict[Tensor, Any] = {}  # what `_allocate_state` has made
        self._register(models)
        job._progress.step_open_hooks.append(self._open_step)  # type: ignore[union-attr]

    def __repr__(self) -> str:
        """The strategy, and the wrapped optimizer."""
        return f"{self._anchor.strategy.text} of {self._job.size} workers: {self.inner!r}"

    def step(self, closure: Optional[Callable[[], Tensor]] = None) -> Any:
        """Take one step of the wrapped optimizer with the gradients of this worker; the last one of
        a round moves the anchor, for which it waits for the other workers. With a strategy that
        averages gradients, each step waits, and is one with their means.
        """
        if closure is not None:
            raise RuntimeError(
                "shoal: step(closure) looks at a loss more than once a step, and local steps take"
                " each batch once: call loss.backward(), and then step()"
            )
        if self._at_anchor:
            raise RuntimeError(
                "shoal: a step within optimizer.anchor(): train outside of the block"
            )
        if self._anchor.strategy.averages_gradients:
            return self._step_together()
        step = require_open_step(self._job)
        self._due = False
        self._skipped = self._skipped or step.local_weight < self._dealt
        gradients = self._gradients()
        overflow = self._unscale(gradients) and self._overflowed(gradients)
        if not step.local_index:
            self._anchor.sample.take(step.number, 0 if overflow else step.local_weight)
        result = None
        if step.local_weight and not overflow:
            self._begun = True
            self._drop_blank_state()
            result = self.inner.step()
        elif not self.inner.state:
            self._allocate_state()
        strategy = self._anchor.strategy
        if strategy.pairs:
            self._begun = True
            self._partners.average(
                step, by_samples=not strategy.keeps_replicas, parts=strategy.parts
            )
        if step.ends_round:
            self._anchor.commit(self._skipped)
            self._begun = False
            self._restart_replica()
        return result

    def average_gradients(self) -> None:
        """Average the gradients now where the strategy averages them, and wait for that; the next
        `step()` does not do it again, unless a backward pass comes before it. Elsewhere do nothing:
        the gradients of a local step are this worker's, and those are what to clip.
        """
        if self._anchor.strategy.averages_gradients and not self._averaged:
            self._average()
            self._averaged.set(self._anchor.parameters)

    def _average(self) -> None:
        """Average the gradients, in place, which commits the step, and wait for that."""
        # A round has one step then, but where a change to another strategy was void.
        require_open_step(self._job).averages_in_round = True
        self._due = False
        self._anchor.average_gradients()

    def _restart_replica(self) -> None:
        """Have a replica that differs from the anchor begin there again where a learning rate is
        half of the highest since it began there, or less (Crossbow, section 4.2).
        """
        rates = [float(group["lr"]) for group in self.inner.param_groups]
        if self._anchor.strategy.keeps_replicas and any(
            0 <= now <= before / 2 < before for now, before in zip(rates, self._rates)
        ):
            self._anchor.reset_replica()
            self._rates = []
        self._rates = [max(pair) for pair in zip(rates, self._rates or rates)]

    @contextlib.contextmanager
    def anchor(self) -> Iterator[None]:
        """A block in which the parameters are the anchor: the same bytes on all workers, for an
        evaluation, or to save the model. Waits for nobody.
        """
        outer, self._at_anchor = self._at_anchor, True
        try:
            with self._anchor.swapped_in():
                yield
        finally:
            self._at_anchor = outer

    def add_param_group(self, param_group: Dict[str, Any]) -> None:
        """Raises RuntimeError: the anchor has the parameters of the beginning."""
        raise RuntimeError(
            "shoal: an optimizer with local steps takes no other parameters once it is made: give"
            " it all of them before shoal.torch.optimizer, and freeze some of them"
        )

    def _allocate_state(self) -> None:
        """Have the wrapped optimizer allocate its state without a step: in a checkpoint all workers
        must have the same tensors. The gradients of the step that is left out go into none of them.
        """
        initialize_some(self.inner, [p for p in self._anchor.parameters if p.requires_grad])
        self._blank = dict(self.inner.state)

    def _drop_blank_state(self) -> None:
        """Drop what `_allocate_state` has made, where it is there still: it has counted a step."""
        for p, state in self._blank.items():
            if self.inner.state.get(p) is state:
                del self.inner.state[p]
        self._blank = {}

    def _open_step(self) -> None:
        """Begin a local step, before its forward pass: the first of a round that is made again
        begins at the anchor, and with the first of any round the job's setting may bring another
        strategy, for which all workers wait for each other.
        """
        if self._at_anchor:
            raise RuntimeError(
                "shoal: the loop goes on within optimizer.anchor(): end the block before"
            )
        step, progress = self._job.step, self._job._progress
        assert step is not None and progress is not None
        if step.local_index and self._due:
            raise RuntimeError(
                f"shoal: step {step.number - 1} ended without optimizer.step(), which others may"
                " wait for: call it in every step of the loop, also after loader.step.skip(True)"
            )
        self._due, self._dealt = True, step.local_weight
        if step.local_index:
            return
        self._skipped = False
        self._anchor.begin()
        self._anchor.begin_round(step.local_steps)
        if self._begun:
            self._anchor.reset_replica()
            self._begun = False
        self._compare_anchors(step)
        if progress.sync != self._text:
            self._switch(step, progress.sync)

    def _compare_anchors(self, step: "shoal.Step") -> None:
        """Compare the anchors of all workers before a round, for whom it waits, where that is
        due.
        """
        self._comparison.note_members()
        if not self._comparison.is_due(step.local_steps, first=True):
            return
        differing = self._anchor.differing_ranks(step, self._job.size, self._job.rank)
        if differing:
            self._comparison.tell(
                f"before step {step.number} {_describe_differing(differing)}. All workers must"
                " change the model in the same way, before the loop too: `if rank == 0:` is for"
                " what is written and printed. Weights that one worker alone loads, it loads before"
                " shoal.torch.optimizer, which hands out those of rank 0"
            )

    def _switch(self, step: "shoal.Step", text: str) -> None:
        """Go on with the strategy that the setting of the job names. All workers do so before the
        same round, and wait for each other: where not all have the same anchor, none of them does.
        Where gradients are averaged from now on all of them need the same state of the wrapped
        optimizer, which is that of rank 0.
        """
        self._text = text
        try:
            strategy = parse(text).strategy
        except ValueError as e:  # the same on all workers, as the text is
            self._reject_switch(str(e), f"{e}; the job goes on by {self._anchor.strategy.text}")
            return
        anchor, job = self._anchor, self._job
        if strategy.text == anchor.strategy.text:
            self._in_force = text
            return
        differing = anchor.differing_ranks(step, job.size, job.rank)
        if differing:
            why = _describe_differing(differing)
            self._reject_switch(why, _refusal_text(strategy.text, anchor.strategy.text, why))
            return
        self._in_force = text
        anchor.switch(strategy)
        self._rates = []
        if strategy.averages_gradients:
            self._blank = {}
            broadcast_state(step, self.inner)

    def _reject_switch(self, why: str, line: str) -> None:
        """Say that this worker goes on with the strategy that it has, and have the setting of the
        job go back to that; every worker does the same.
        """
        job, progress = self._job, self._job._progress
        assert progress is not None
        if job.rank == 0:
            log_line(line)
        job._backend.reject_sync_change(progress.change_number, self._in_force, why)

    def _register(self, models: Sequence[torch.nn.Module]) -> None:
        """Give workers that join, and checkpoints, the anchor in place of this worker's replica,
        and what is kept beside it.
        """
        anchor, job = self._anchor, self._job
        places = {id(p): z for p, z in zip(anchor.parameters, anchor.z)}

        def state_of(model: torch.nn.Module) -> Dict[str, Any]:
            """The state of a model with the anchor for its parameters."""
            anchor.move_to_parameters()
            state = model.state_dict(keep_vars=True)
            return {
                name: places.get(id(v), v.detach() if isinstance(v, Tensor) else v)
                for name, v in state.items()
            }

        def set_state(model: torch.nn.Module, value: Dict[str, Any]) -> None:
            """Set a model and its part of the anchor, between two steps."""
            load_state(model, value)
            anchor.begun = True
            for p in model.parameters():
                if id(p) in places:
                    places[id(p)].copy_(p.detach())
            anchor.kept = anchor.strategy.keep(anchor.z)
            self._begun = False

        def state_beside() -> Dict[str, Any]:
            """The strategy, and what it keeps beside the anchor."""
            anchor.move_to_parameters()
            return {"sync": anchor.strategy.text, "asked": self._text, "kept": anchor.kept}

        def set_beside(value: Dict[str, Any]) -> None:
            """Take over the strategy of the others, or of a checkpoint, and what it keeps."""
            self._text, self._in_force = value["asked"], value["sync"]
            anchor.set_kept(parse(value["sync"]).strategy, value["kept"])
            self._rates = []

        for model in models:
            job._state.register(
                job.unused("model"),
                lambda model=model: state_of(model),
                lambda value, model=model: set_state(model, value),
                in_place=True,
            )
            register_trained(job, list(model.parameters()))
            mark_registered(job, model)
        job._state.register(
            job.unused("beside the anchor"),
            state_beside,
            set_beside,
            in_place=True,
            optional=True,
        )
        inner = self.inner
        if job.outside and not inner.state:
            initialize_state(inner)
        # What the wrapped optimizer has learned differs between workers: each keeps its own, and
        # one that joins begins with that of rank 0.
        job._state.register(
            job.unused("optimizer"),
            lambda: inner.state_dict(),
            lambda value: load_state(inner, value),
            of_first=True,
        )
        mark_registered(job, inner)
