"""A joined worker: who it is among the members of its job, and what it says to its agent."""

from __future__ import annotations

import base64
import contextlib
import functools
import math
import threading
import weakref
from typing import Any, Callable, Dict, Iterator, Optional, Sequence, Tuple, TypeVar, Union

from ..cursor import Cursor
from ..errors import ForkError, ShoalError
from . import fork
from .arena import Arena
from .backend import Call, DeclaredSync, Setting
from .calls import Calls, error_after_leave
from .core import Core
from .handle import Handle
from .handshake import Welcome, join
from .link import Link, Message, Refused
from .protocol import KINDS, DType
from .shared import SharedResults
from .solo import run_alone
from .step_timer import StepTimer
from .submitter import Submitter
from .tensor import Shape, Tensor, array_like, describe, element_count, mark_shared
from .view import MeshStatus, View

T = TypeVar("T")
# The descriptor of a call that is no collective.
_ENTER = (KINDS["enter"], 0, 0, 0, 0, 0, 0, 1.0, *(0,) * 9, bytes(64), 0, 0, bytes(16))
# Groups that a job of one makes are numbered from here, beyond those of the agent: they never have
# another member.
_SOLO_GROUPS = 1 << 31


class Worker:
    """One rank of a job, connected to the agent of its host.

    Any thread may describe arrays, submit and collect calls, get memory, ask the agent and report.
    `enter`, `become_job_of_one`, `admit_newcomers`, `with_newcomers`, `declare_data` and
    `declare_layout` are for the thread of the training loop, which `leave` is for too, or the exit
    handler; one thread at a time makes and closes groups. A method that waits for the agent or for
    other ranks says so.

    Rank, size, generation and view, and the private fields that say where calls go, change together
    without a lock: on the thread that sees a new view at the commit of a step, or on that of the
    training loop.
    """

    def __init__(self, path: str, job: str, rank: int, token: str) -> None:
        """Join a job by the agent's socket at `path`, and wait for the agent's welcome. `rank` is
        the number of this worker, and `token` its secret, both of the launcher. Raises JoinError.
        """
        self.link = Link(path, job)
        try:
            self._set_up(join(self.link, rank, token), rank)
        except BaseException:
            self.link.close(error_after_leave(job))
            raise
        self._solo_groups = 0  # number of groups of this worker alone that were made
        self._changed: Callable[[], None] = lambda: None  # what `on_change` was given
        self.calls.on_change = self._adopt_view
        # Descriptions of arena arrays by id(array): a steady program describes the same few again
        # and again. Any thread changes it, without a lock: each change is one atomic operation.
        self._described: Dict[int, Tuple["weakref.ref[Any]", Any, Tensor]] = {}
        fork.register(self)

    def _set_up(self, welcome: Welcome, rank: int) -> None:
        """Make what a worker has from the agent's welcome: who it is, its calls, its arena. They
        own the descriptors of the welcome from then on. Called once, by `__init__`.
        """
        self.name, self.host = welcome.job, welcome.host
        self.rank, self.size, self.generation = welcome.rank, welcome.size, welcome.generation
        self.late = welcome.late
        self.view = View(self.generation, self.rank, self.size)
        # Calls on groups numbered from here on do not go to the agent as they are: from 0 on while
        # this worker is a job of one, or while newcomers wait for the state.
        self._redirected_from = 0 if self.late else _SOLO_GROUPS
        self._alone = self.late  # this worker is a job of one: its calls are made in this process
        self._rank_at_join = rank
        self._early = False  # let in while the job is in a later epoch than this worker's program
        self._incumbents: Optional[int] = None  # the group of all members but the newcomers
        self.calls = Calls(
            self.link,
            welcome.block,
            welcome.block_fd,
            welcome.slots,
            welcome.slot_bytes,
            welcome.bells,
            welcome.spin_us,
            None if welcome.crowded else Core(self.rank),
        )
        self.arena = Arena(self.link, self.calls.settle_completed)
        self.results = SharedResults(self.link)
        self.step_timer = StepTimer()
        self._submitter = Submitter(
            self.calls,
            self.arena,
            self.results,
            self.step_timer,
            welcome.piece_bytes,
            welcome.pieces_open,
        )
        self._submitter.elastic = self.late

    def check(self) -> None:
        """Raise what broke the job, if anything did: a lost agent, a fork, the end."""
        self.link.check()

    def describe(self, x: Any, dtype: Optional[str] = None) -> Tensor:
        """Describe an array, and find its place in the arena or in a shared result. Takes no
        lock.
        """
        known = self._described.get(id(x))
        if known is not None and dtype is None:
            ref, numpy_dtype, tensor = known
            alive: Any = ref()
            if (
                alive is x
                and x.dtype is numpy_dtype
                and x.shape == tensor.shape
                and x.flags.writeable is tensor.writable
            ):
                return tensor
        tensor = describe(x, dtype)
        if tensor.contiguous:
            place = self.arena.locate(tensor.address, tensor.nbytes)
            if place is not None and place[1] % tensor.dtype.itemsize == 0:
                tensor.place = place
        if self.results.all and tensor.place is None:
            mark_shared(tensor, self.results)
        if (
            (tensor.place or tensor.shared)
            and dtype is None
            and type(x).__module__ == "numpy"
            and x.base is not None
        ):
            self._remember_description(x, tensor)
        return tensor

    def _remember_description(self, x: Any, tensor: Tensor) -> None:
        """Keep `tensor`, the description of `x`, for the next `describe` of it, and have it let go
        of the array, until that is freed. Any thread may call it; it takes no lock. `x` is a NumPy
        view of the arena or of a shared result: nothing can move its data while it lives, as
        torch's `set_` or a resize can.
        """
        # No function of Python forgets it: a Ctrl-C would be lost there.
        forget = functools.partial(self._described.pop, id(x))
        self._described[id(x)] = weakref.ref(x, forget), x.dtype, tensor
        tensor.array = None  # the description must not keep the array alive

    def new_like(self, x: Any, dtype: DType, shape: Shape) -> Any:
        """A new array in the arena, of the kind that x is. Its elements are whatever the last user
        left. The agent may be asked for memory, and waited for.
        """
        return array_like(x, dtype, shape, self.buffer(element_count(shape) * dtype.itemsize))

    def buffer(self, nbytes: int, lazy: bool = False) -> Any:
        """New arena memory, freed when nothing refers to it; the agent may be asked for it, and
        waited for. `lazy`: its pages are made while others go on.
        """
        return self.arena.buffer(nbytes, lazy)

    def shared(self, group: int, name: str, nbytes: int) -> memoryview:
        """Memory to read that all workers of the host see who give its group and name; memory of
        this worker alone in a job of one. The agent may be asked for it, and waited for.
        """
        self.link.check()  # before the lock, which a forked child may have inherited taken
        result, memory = self.results.find_or_make(group, name, nbytes)
        if not self._alone and group < _SOLO_GROUPS:
            self.results.bind((result, 0), self.generation)
        return memory

    def pin(
        self, address: int, pin: Callable[[int, int], None], unpin: Callable[[int], None]
    ) -> None:
        """Have the arena's segment around an address pinned for a device, once: pin(address, bytes)
        is called now, and unpin(address) before the segment is unmapped.
        """
        self.arena.pin(address, pin, unpin)

    def submit(self, call: Call, held: Any, result: T) -> Handle[T]:
        """Submit a call, from any thread. `held` is kept alive until the agent is done with the
        arrays, and the handle's `wait` returns `result`. It blocks for memory of the arena, for a
        slot, for a commit before a shared result is written again, and of a call that is `at_once`
        perhaps until it is complete.
        """
        self.link.check()
        group, out = call.group, call.out
        self._submitter.wait_for_commit(out)
        if group >= self._redirected_from:
            if self._alone or group >= _SOLO_GROUPS:
                if out is not None and out.shared is not None:
                    out.shared[0].make_private()
                return run_alone(call, result)
            group = group or self._incumbent_group()
        return self._submitter.submit(call, group, held, result, self.generation)

    def open_group(self, ranks: Sequence[int]) -> Tuple[int, int]:
        """Make a group with the other ranks of it, and wait until the agent has it. Returns its id,
        and this worker's rank inside.
        """
        if self._alone:
            return self.new_solo_group(), 0
        request = {"type": "group", "ranks": list(ranks), "view": self.generation}
        reply = self._request(request, "group")
        return int(reply["id"]), int(reply["rank"])

    def close_group(self, number: int) -> None:
        """Tell the agent that this worker makes no more calls of a group, without an answer. The
        agent does not know the groups of this worker alone.
        """
        if number < _SOLO_GROUPS:
            self.link.send({"type": "ungroup", "id": number})

    def on_change(self, changed: Callable[[], None]) -> None:
        """Have `changed` called after each change of the view, before the call that told of it
        returns. It runs on the thread of that call, perhaps with the lock of the slots held, so it
        makes no call and does not block. Called once, by World.
        """
        self._changed = changed

    def _adopt_view(self) -> None:
        """Take over rank, size and generation from the view that the agent has just written, and
        call the function of `on_change`. Runs in the thread that has seen the change, perhaps with
        the lock of the slots held.
        """
        self.view = view = self.calls.read_view()
        self.generation, self._alone = view.generation, view.gone
        outside, self.late = self.late, False
        self._free_incumbent_group()
        if self._alone:
            self.rank, self.size = view.rank if outside else self.rank, 1  # rank 0 is a member
        else:
            # Those who were members before are among themselves until the newcomers have the state.
            self.rank, self.size = view.rank, view.size if view.new else view.size - view.joined
        self._redirected_from = 0 if self._alone or self.size < view.size else _SOLO_GROUPS
        self._changed()

    def new_solo_group(self) -> int:
        """The id of a new group of this worker alone, which needs no agent."""
        self._solo_groups += 1
        return _SOLO_GROUPS + self._solo_groups

    def _incumbent_group(self) -> int:
        """The id of the group of all ranks but the newcomers, who do not make calls yet; made when
        it is first needed, for which it waits for them. For the thread of the training loop.
        """
        if self._incumbents is None:
            self._incumbents, _ = self.open_group(range(self.size))
        return self._incumbents

    def _free_incumbent_group(self) -> None:
        """Close the group of `_incumbent_group`, if it was made, without an answer."""
        if self._incumbents is not None:
            self.close_group(self._incumbents)
            self._incumbents = None

    def admit_newcomers(self) -> None:
        """Count the newcomers as members from now on: they have the state."""
        self.size = self.view.size
        self._redirected_from = _SOLO_GROUPS
        self._free_incumbent_group()
        self._changed()

    @contextlib.contextmanager
    def with_newcomers(self) -> Iterator[None]:
        """Have all members make the calls of the block together: the newcomers make them too,
        before they have the state.
        """
        before = self._redirected_from
        if not self._alone:
            self._redirected_from = _SOLO_GROUPS
        try:
            yield
        finally:
            self._redirected_from = before

    def declare_data(
        self,
        place: Cursor,
        batch: int,
        batch_range: Optional[Tuple[int, int]] = None,
        rate: float = 0.0,
        save: Optional[int] = None,
        sync: DeclaredSync = DeclaredSync(),
        people: Tuple[str, ...] = (),
    ) -> None:
        """Tell the agent what the job trains on, and from which place; every worker says the same.
        `batch` is what the program states, and that of the place may be another in `batch_range`,
        with the factor `rate` of the learning rate. `save` is how many steps were between two
        checkpoints there, where the job may choose that, and 0 where the place does not say; None =
        it may not. A `sync` that is stated opens how workers synchronise, and how often. `people`
        has the parts of the setting that people had set at the place. Waits for the answer. The job
        is elastic from then on.

        A worker may declare a later place before the first step, and where state is lost that of a
        checkpoint. Raises ShoalError where the workers contradict each other.
        """
        self._submitter.elastic = True
        message: Message = {
            "type": "data",
            "samples": place.samples,
            "batch": batch,
            "seed": place.seed,
            "shuffle": place.shuffle,
            "apart": place.apart,
        }
        if place.committed():
            message["cursor"] = base64.b64encode(place.pack()).decode()
        if batch_range is not None:
            message["batch_range"] = list(batch_range)
        if rate:
            message["rate"] = rate
        if save is not None:
            message["save"] = True
        if save:
            message["save_steps"] = save
        if sync.stated:
            message.update(sync=sync.stated, round=sync.round)
        if sync.auto:
            message["auto"] = True
        if sync.now:
            message["synced"] = sync.now
        if people:
            message["people"] = list(people)
        self._request(message, "data")

    def ask_setting(self) -> Setting:
        """Ask the agent for the setting of the job, and wait for its answer."""
        return Setting.of_reply(self._request({"type": "setting"}, "setting"))

    def declare_layout(self, statement: bytes) -> str:
        """Tell the agent how the state of the job lies on its workers, as docs/formats/reshape.md
        says; every worker says the same. Waits for the answer, which is the mesh of the job.

        Raises ShoalError where the statement contradicts itself, the other workers, or what this
        worker holds.
        """
        block = self.arena.copy_in(statement)  # kept until the agent has answered
        reply = self._request({"type": "state", **self.arena.extent(block)}, "state")
        return str(reply.get("mesh", ""))

    def ask_mesh(self) -> MeshStatus:
        """Ask the agent how the state of the job lies now, and what comes next. Waits for its
        answer; what that does not say is "", 0 or b"", as MeshStatus has it.
        """
        reply = self._request({"type": "shape"}, "shape")
        return MeshStatus(
            mesh=str(reply.get("mesh", "")),
            next_mesh=str(reply.get("next_mesh", "")),
            mesh_error=str(reply.get("mesh_error", "")),
            rollback_reason=str(reply.get("rollback_reason", "")),
            nbytes=int(reply.get("bytes", 0)),
            next_nbytes=int(reply.get("next_bytes", 0)),
            unreplicated=str(reply.get("unreplicated", "")),
            writes=base64.b64decode(reply.get("writes", "")),
        )

    def best_bucket_bytes(self, gradient_bytes: int, now_bytes: int, backward_s: float) -> int:
        """Ask the agent for the best size of the buckets, in bytes, for so many bytes of gradients
        that a backward pass of so many seconds makes. `now_bytes` is their size now. 0 = the
        agent does not know. Waits for the answer.
        """
        reply = self._request(
            {"type": "bucket", "bytes": gradient_bytes, "now": now_bytes, "seconds": backward_s},
            "bucket",
        )
        return int(reply.get("bytes", 0))

    def enter(self, epoch: Optional[int] = None) -> bool:
        """Ask to be a member of the next view, and wait for that. A new member asks again when it
        did not get the state.

        With an epoch, this worker can begin in that epoch only. False when the job is beyond it:
        this worker then stays a job of one, or becomes one again, with a rank that is not 0,
        because rank 0 writes the results and is a member. True also where the job has ended
        meanwhile, as `view` says.
        """
        if self._early:
            self._adopt_view()
        else:
            before, handle = self.view, Handle[None](self.calls, None, None)
            self.calls.submit(handle, *_ENTER[:6], 0 if epoch is None else epoch + 1, *_ENTER[7:])
            handle.wait()
            if self.view is before:
                return epoch is None or self._stand_by(self._rank_at_join)
        self._early = (
            epoch is not None
            and bool(self.view.cursor)
            and not self.view.released
            and Cursor.unpack(self.view.cursor).reached > epoch
        )
        return not self._early or self._stand_by(self.view.rank)

    def become_job_of_one(self) -> None:
        """Become a job of one, at the end of the last step of a job that was stopped."""
        self._alone = True
        self.size, self._redirected_from = 1, 0
        self._changed()

    def _stand_by(self, rank: int) -> bool:
        """Become a job of one with this rank until this worker's program is in the epoch of the
        others. Returns False, for `enter` to return.
        """
        self.late = self._alone = True
        self.rank, self.size, self._redirected_from = rank, 1, 0
        self._changed()
        return False

    def _request(self, message: Message, answer: str) -> Message:
        """Send a message to the agent, and wait for its answer. Raises ShoalError if it refuses."""
        try:
            return self.link.request(message, answer)[0]
        except Refused as err:
            raise ShoalError(str(err)) from None

    def hold_calls(self, block: threading.Lock) -> None:
        """Collect the calls that follow, of all threads, as long as `block` is taken."""
        self.calls.hold(block)

    def release_calls(self) -> None:
        """Submit the collected calls as one, if no block is taken."""
        self.calls.release()

    def tell_memory(self, peak_bytes: int, limit_bytes: int) -> None:
        """Tell the agent how many bytes of its GPU this worker has had at most, and can have,
        without an answer.
        """
        self.link.send({"type": "memory", "peak": peak_bytes, "room": limit_bytes})

    def tell_goal(self, steps: int) -> None:
        """Tell the agent how many optimizer steps the training has in all, without an answer."""
        self.link.send({"type": "goal", "steps": steps})

    def reject_sync_change(self, number: int, sync: str, why: str) -> None:
        """Tell the agent that this worker goes on by `sync` after the change of this number, and
        why, without an answer.
        """
        self.link.send({"type": "stay", "number": number, "sync": sync, "why": why})

    def park(self, step: int, problem: str) -> None:
        """Tell the agent which problem there is with the checkpoint of a step; or that there is
        none, and wait for the launcher to end this process.
        """
        message: Message = {"type": "park", "step": step, "problem": problem}
        if problem:
            self.link.send(message)
        else:
            self._request(message, "park")  # which the agent does not answer

    def report(self, metrics: Dict[str, float]) -> None:
        """Send numbers, by name, to the launcher, without an answer."""
        self.link.send(
            {
                "type": "report",
                "metrics": {name: _json_number(value) for name, value in metrics.items()},
            }
        )

    def leave(self) -> None:
        """Leave the job and close the link and its descriptors; nothing where that has happened, or
        the agent is lost. Arrays of the arena stay readable. Waits for the watcher thread, and for
        threads that sleep in a call, which raise ShoalError. Raises ForkError in a forked child.
        """
        if self.link.broken is not None:
            if isinstance(self.link.broken, ForkError):
                self.link.check()
            return
        self.link.close(error_after_leave(self.name), {"type": "leave"})
        self.calls.close()
        fork.unregister(self)

    def after_fork(self) -> None:
        """In a forked child: no more calls, no descriptors, and only private memory. Takes no
        lock. The module `fork` calls it, on the only thread that the child has.
        """
        self.link.disown(
            ForkError(
                f"this process was forked from a worker of job {self.name}, and a job belongs to"
                " the process that joined it: let only the parent call shoal, or start the child"
                " with multiprocessing's 'spawn' or 'forkserver' method"
            )
        )
        self.calls.disown()
        for mapping in self.arena.mappings() + self.results.mappings():
            mapping.make_private()


def _json_number(value: float) -> Union[float, str]:
    """A number as the launcher reads it: JSON has none that are not finite, so these are
    strings.
    """
    if math.isfinite(value):
        return value
    return "NaN" if math.isnan(value) else "+Inf" if value > 0 else "-Inf"
