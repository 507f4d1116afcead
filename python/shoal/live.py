"""Training on a mesh that may change while the job runs: each worker has a part of the state, and
the parts may change between two steps.
"""

from __future__ import annotations

import contextlib
import json
import threading
from typing import (
    Any,
    Callable,
    Iterator,
    List,
    Mapping,
    NamedTuple,
    Optional,
    Protocol,
    Sequence,
    Union,
)

from ._checkpoint.mesh_state import MeshState
from ._live import packing
from ._live.epochs import End
from ._runtime.arguments import as_catalogue, wrong_type
from ._runtime.backend import Call
from ._runtime.log import format_count, log_line
from ._runtime.protocol import KINDS, STEP
from ._runtime.view import View
from .cursor import Cursor
from .errors import LostError, ShoalError
from .job import Job, join
from .mesh import Mesh
from .steps import Progress

_RESHAPE = KINDS["reshape"]
_METHODS = ("tensors", "gradients", "update")  # that every Model has


class Model(Protocol):
    """What a rank of a mesh trains. A model lives as long as its mesh. The thread that goes through
    the steps of `train` calls the methods, on all ranks at the same places.

    A model may have a method `initialize()`, which sets the tensors to their values at the start of
    training. It is called only where no other rank has the state already, so that a change of the
    mesh does not wait for values that it replaces.

    A model may also have a method `adopt(tensors)`. It makes the model keep its state in the given
    arrays, by the names of `tensors()`, in place of its own. They lie in memory of the job, which
    other ranks' agents read and write when the mesh changes: so the state is not copied out of the
    model or into it, and is in memory only once. The arrays hold the state, or arbitrary values
    where `initialize()` follows.
    """

    def tensors(self) -> Mapping[str, Any]:
        """This rank's part of the state by name: parameters, and the state of the optimizer. The
        arrays are the state itself, and no copies.

        Names and shapes are those of the layout; arrays are NumPy's or torch's.
        """

    def gradients(self, indices: Any) -> Any:
        """Compute the gradients of a global batch, summed over the ranks that have the same
        parameters. Returns this rank's share of the loss, an array of shape [1].

        All ranks get the same indices, and divide the samples among themselves. The tensors must
        stay as they are: when a worker is lost during this call, the step is made again.
        """

    def update(self) -> None:
        """Change the tensors by the gradients, without other ranks."""


class Trained(NamedTuple):
    """A committed step, and the model after it."""

    number: int  # committed steps of the job before this one
    epoch: int  # the epoch that the step was in, from 0 on
    loss: float  # over the global batch
    model: Any  # this rank's; another one may follow when the mesh changes
    mesh: Mesh  # the mesh that the step was made on


def train(
    build: Callable[[Mesh], Model],
    *,
    layout: Union[str, Mapping[str, Any]],
    catalogue: Sequence[Mapping[str, Any]],
    mesh: str,
    samples: int,
    batch: int,
    seed: int = 0,
    epochs: Optional[int] = None,
    steps: Optional[int] = None,
    shuffle: bool = True,
) -> Iterator[Trained]:
    """Train a model that is cut over the ranks of a mesh, and yield every step that is committed.
    All workers call it alike, on the thread of the training loop; each step waits for the others.

        for step in shoal.train(
            build, layout=LAYOUT, catalogue=TENSORS, mesh="dp=2,tp=2", samples=len(data), batch=32
        ):
            print(step.number, step.loss)

    `build` makes this rank's part of the model for a mesh. `layout` says where the tensors lie on
    any mesh (docs/formats/layout.md, as text or a mapping; of its mesh only the names of the axes
    count: with `dp` they are the axes that a mesh may have), and `catalogue` lists all of them,
    whole: {"name": …, "dtype": "f32", "shape": […]}. `mesh` is what the job begins with; with fewer
    workers than it has ranks, the largest mesh of its axes that has as many ranks as there are
    workers, and no higher degree. The job's spec may name another for a number of workers.
    `shoal reshape JOB --mesh dp=4` changes it: between two steps the state moves to the ranks of
    the other mesh, proved by fingerprint, `build` is called again, and the next step is made there.

    When a worker is lost, the step under way is void. It is made again on a mesh of a smaller `dp`
    that the remaining workers can hold. Where only the lost worker had a part of the state, the job
    goes back to the newest checkpoint by itself, on the largest mesh that the remaining workers can
    hold: call job.checkpoint before train. Without checkpoints the job ends, and says why. A
    program that is started again goes on from the newest checkpoint, on any number of workers and
    any mesh. The loop of a worker that a mesh does not need ends early; job.released says so. The
    other arguments are those of Job.steps.

    Raises ShoalError when layout, tensors and model contradict each other; the message names rank
    and tensor.
    """
    if not callable(build):
        raise wrong_type(
            "build", build, "a function that makes this rank's part of the model for a mesh"
        )
    if not isinstance(mesh, str):
        raise wrong_type("mesh", mesh, "a text with the degree of each axis, as 'dp=2,tp=2'")
    job = join()
    text = layout if isinstance(layout, str) else json.dumps(layout)
    live = _LiveModel(job, build, text, as_catalogue(catalogue), mesh)
    live.declare_layout()
    progress = job.place(samples, batch, seed, shuffle)
    progress.meshed = True  # checkpoints are made below, where the mesh is known
    end = End(1 if epochs is None and steps is None else epochs, steps)
    progress.begin_loop(end)
    while True:
        try:
            ended = progress.finish_step(end)
            if job.released or ended and live.checkpoints is None or not live.follow_mesh(progress):
                return
            if live.save_if_due_or_ended(progress.cursor, end):
                return
            step = progress.open_whole_step()
            loss = live.model.gradients(step.indices)
            step.share(loss, last=True, op="sum").wait()
        except LostError:
            live.drop_step(progress)
            continue
        live.allocate_ahead()
        live.model.update()
        yield Trained(step.number, step.epoch, float(loss[0]), live.model, live.mesh)


class _LiveModel:
    """The model of this rank, as the mesh changes. All methods but `_allocate_next_memory` run on
    the thread of the training loop, and on all workers at the same place.
    """

    model: Any
    mesh: Any

    def __init__(
        self,
        job: Job,
        build: Callable[[Mesh], Model],
        layout: str,
        catalogue: Sequence[Mapping[str, Any]],
        mesh: str,
    ) -> None:
        """Without a model yet. Has the job's checkpoints, if it makes any, write and read the state
        of this mesh.
        """
        self._job, self._build = job, build
        self._layout, self._catalogue = layout, catalogue
        self._first_mesh = mesh  # the mesh that the job begins with
        # The view for which the model was last found to be the right one; None = none yet.
        self._seen: Optional[View] = None
        # Memory of the job that holds this rank's part of the state; None = the model's own tensors
        # hold the part.
        self._memory: Any = None
        # The thread that allocates `_next_memory`; None = no such thread runs.
        self._allocator: Optional[threading.Thread] = None
        # Memory for this rank's part of the state on the next mesh; None = not allocated. The
        # allocator thread writes it, and it is read only after `_join_allocator`.
        self._next_memory: Any = None
        self.model = self.mesh = None
        self.checkpoints = job._checkpoints
        # What checkpoints have of this rank's part of the state; None = the job makes none.
        self._mesh_state: Optional[MeshState] = None
        if self.checkpoints is not None:
            self._mesh_state = MeshState(job)
            self.checkpoints.meshed = self._mesh_state
        # Whether the whole job starts, and so may go on from a checkpoint. False for a worker that
        # joins, which gets the state from the others.
        self._starting = not job.outside
        self._warned = False  # `_warn_unreplicated` was called

    def declare_layout(self, local: Optional[Mapping[str, Any]] = None) -> None:
        """Tell the agent how the state lies, and that this rank has the tensors `local`; None = not
        known yet. Waits for its answer: where the whole job starts, that is the mesh to begin with.
        Raises ShoalError where it contradicts the others.
        """
        mesh = self._job._backend.declare_layout(
            packing.layout_statement(self._layout, self._first_mesh, self._catalogue, local)
        )
        if local is None and mesh and mesh != self._first_mesh and not self._job.outside:
            if not self._job.rank:
                workers = format_count(self._job.size, "worker")
                log_line(
                    f"the job has {workers}, and begins on mesh {mesh};"
                    f" its program states mesh {self._first_mesh}"
                )
            self._first_mesh = mesh

    def follow_mesh(self, progress: Progress) -> bool:
        """Go to the mesh that the job should have: move the state, and build the model. Waits for
        the other workers where it changes. False when that mesh does not need this worker. Raises
        ShoalError where the job cannot go on.
        """
        backend = self._job._backend
        self._join_allocator()
        while backend.view is not self._seen:
            view = backend.view  # one that comes while the model is built is followed in its turn
            status = backend.ask_mesh()
            if status.mesh_error:
                raise ShoalError(status.mesh_error)
            if status.rollback_reason and self._mesh_state is None:
                raise ShoalError(
                    f"{status.rollback_reason}. With job.checkpoint before shoal.train the job"
                    " would go back to a checkpoint by itself"
                )
            if not status.next_mesh:
                self._next_memory = None  # a mesh that was announced does not come
                if self.model is None:
                    self._build_model(status.mesh or self._first_mesh)
                if status.rollback_reason or self._starting:
                    self._resume(progress, status.rollback_reason)
                self._seen = view
            else:
                self._move_state(status.nbytes, status.next_nbytes)
            if not progress.cross_step_boundary():
                return False
        return True

    def _build_model(self, mesh: str) -> None:
        """Build the model for a mesh, with the state that was moved to this rank, if any was. Waits
        for the other workers, which do the same. Where it raises LostError, since the program asks
        for others when it builds, there is no model, and the state that was moved is kept.
        """
        self.mesh = self._job.mesh(mesh)
        model = self._build(self.mesh)
        if not all(hasattr(model, name) for name in _METHODS):
            raise wrong_type("build(mesh)", model, f"a model with {', '.join(_METHODS)}")
        mine = model.tensors()
        self.declare_layout(mine)
        moved = self._memory is not None
        if hasattr(model, "adopt"):
            self._lend_memory(model, mine, moved or hasattr(model, "initialize"))
        elif moved:
            packing.unpack(self._memory, mine)
            self._memory = None
        if not moved and hasattr(model, "initialize"):
            try:
                model.initialize()
            except LostError:
                self._memory = None  # it has no state yet
                raise
        self.model = model
        if self._mesh_state is not None:
            self._mesh_state.set_model(self.mesh, self.model)

    def _lend_memory(self, model: Any, mine: Mapping[str, Any], filled: bool) -> None:
        """Have a model keep its tensors in memory of the job: in that of the state that was moved
        here, if any was. `filled`: the memory has the values, or will get them.
        """
        if self._memory is None:
            nbytes = packing.lay_out(mine)[1]
            self._memory = self._job._backend.buffer(nbytes)
            if not filled:
                packing.pack(mine, self._memory, nbytes)
        model.adopt(packing.views(mine, self._memory))

    def _resume(self, progress: Progress, lost: str) -> None:
        """Go on from the newest checkpoint, if there is one. `lost` says which part of the state is
        lost, so that there must be one; "" = none is. Raises ShoalError where there is none then.
        """
        if self.checkpoints is None or self._mesh_state is None:
            return
        if lost:
            # The checkpoint that is being written may become the newest one.
            self.checkpoints.wait()
            self._job.barrier()
        place = self.checkpoints.resume(progress.cursor)
        if place is not progress.cursor:
            self._mesh_state.load_into_model()
            progress.move_to(place)
        elif lost:
            raise ShoalError(
                f"{lost}. There is no checkpoint in {self.checkpoints.root} to go back to"
            )
        self._starting = False

    def _warn_unreplicated(self) -> None:
        """Warn after the first step, on rank 0, about state that only one worker or host has, in a
        job without checkpoints. Asks the agent for it, and waits.
        """
        self._warned = True
        if self.checkpoints is None and not self._job.rank:
            alone = self._job._backend.ask_mesh().unreplicated
            if alone:
                log_line(
                    f"{alone}, and this job makes no checkpoints: if that is lost, the job ends;"
                    " job.checkpoint before shoal.train has it go back instead"
                )

    def save_if_due_or_ended(self, cursor: Cursor, end: End) -> bool:
        """Make a checkpoint if one is due, or the last one at the end, for which it waits. Returns
        whether the training has come to its end.
        """
        ended = end.is_reached_at(cursor, 0)
        if not self._warned and cursor.step:
            self._warn_unreplicated()
        if self.checkpoints is not None:
            if ended:
                self.checkpoints.save_last(cursor)
            else:
                self.checkpoints.save_if_due(cursor)
        return ended

    def _move_state(self, old_bytes: int, new_bytes: int) -> None:
        """Give away this rank's part of the state, of `old_bytes`, and get its part on the next
        mesh, of `new_bytes`; 0 = this rank has no part there. Returns when the part is here. The
        model is gone then. Raises ShoalError where this rank's part has no values yet.
        """
        backend = self._job._backend
        old: List[Any] = []
        if old_bytes and self._memory is None:
            if self.model is None:
                raise ShoalError(
                    "a worker was lost while the model was set to its first values, and the mesh"
                    " changes for that: there is no state to move yet. Start the job again"
                )
            memory = backend.buffer(old_bytes)
            packing.pack(self.model.tensors(), memory, old_bytes)
            old = [memory]
        elif old_bytes:
            old = [self._memory]
        new: List[Any] = []
        if new_bytes:
            ready = self._next_memory is not None and len(self._next_memory) == new_bytes
            new = [self._next_memory if ready else backend.buffer(new_bytes, lazy=True)]
        self._next_memory = None
        given, taken = (backend.describe(m[0]) if m else None for m in (old, new))
        backend.submit(Call(_RESHAPE, given, taken, flags=STEP), (old, new), None).wait()
        if self.mesh is not None:
            self.mesh.free()
        self.model = self.mesh = None
        self._memory = new[0] if new else None

    def allocate_ahead(self) -> None:
        """If the mesh changes after the committed step, begin to allocate the memory for the next
        mesh on a thread of its own, while the model is updated: to touch the memory takes longer
        than to copy.
        """
        view = self._job._backend.view
        if view is not self._seen and not view.released and not view.parks:
            allocator = threading.Thread(target=self._allocate_next_memory, name="shoal reshape")
            # Where the system has no thread, the memory is allocated when it is needed.
            with contextlib.suppress(RuntimeError):
                allocator.start()
                self._allocator = allocator

    def _allocate_next_memory(self) -> None:
        """Allocate `_next_memory`, on the allocator thread, which waits for the agent."""
        backend = self._job._backend
        try:
            nbytes = backend.ask_mesh().next_nbytes
            self._next_memory = backend.buffer(nbytes, lazy=True) if nbytes else None
        except ShoalError:
            pass  # the call that needs the memory raises the error

    def _join_allocator(self) -> None:
        """Wait for the allocator thread, if there is one."""
        if self._allocator is not None:
            self._allocator.join()
            self._allocator = None

    def drop_step(self, progress: Progress) -> None:
        """Drop the step under way, which has lost a worker, and go on from its start when all other
        workers have dropped it.
        """
        progress.drop_open_step()
        self._job._backend.enter()
