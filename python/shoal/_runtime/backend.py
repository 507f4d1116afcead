"""What a group of ranks needs from below: a Worker with an agent, or a Solo without one."""

from __future__ import annotations

import threading
from typing import (
    Any,
    Callable,
    ContextManager,
    Dict,
    Mapping,
    NamedTuple,
    Optional,
    Protocol,
    Sequence,
    Tuple,
    TypeVar,
)

from ..cursor import Cursor
from .handle import Handle
from .protocol import DType
from .step_timer import StepTimer
from .tensor import Shape, Tensor
from .view import MeshStatus, View

T = TypeVar("T")


class Call(NamedTuple):
    """A collective, or one side of a message between two ranks; docs/formats/arena.md, section 3.

    A tuple, because every step makes some: to make one costs less than to make an object.
    """

    kind: int  # one of protocol.KINDS
    inp: Optional[Tensor]  # None = this rank gives nothing
    out: Optional[Tensor]  # None = this rank gets nothing
    op: int = 0  # the reduction; 0 = none
    group: int = 0  # 0 = all ranks of the job
    peer: int = 0  # the root or the partner, a rank inside the group; -1 = any sender
    # Of a message: sender and receiver give the same. Of an all-to-all the size of the group, 0 =
    # not told.
    tag: int = 0
    weight: float = 1.0  # weight of this rank in a mean
    counts: Optional[Sequence[int]] = None  # elements for each rank of an all-to-all
    shape: Optional[Shape] = None  # on which the ranks must agree; None = that of the arrays
    flags: int = 0  # MORE, STEP and so on, of the module protocol
    at_once: bool = False  # the caller waits for this call next


class Setting(NamedTuple):
    """What a worker follows of the setting of its job, beside the batch."""

    rate: float = 0.0  # factor of the learning rate; 0 = the setting says nothing of it
    save: int = 0  # steps between two checkpoints; 0 = the setting says nothing of it
    sync: str = ""  # how workers synchronise; "" = as the program states
    number: int = 0  # of the newest change; 0 = there was none
    people: Tuple[str, ...] = ()  # the parts that people have set, and a checkpoint keeps

    @classmethod
    def of_reply(cls, reply: Mapping[str, Any]) -> Setting:
        """The setting of which the agent tells."""
        return cls(
            float(reply.get("rate", 0)),
            int(reply.get("save", 0)),
            str(reply.get("sync", "")),
            int(reply.get("number", 0)),
            tuple(map(str, reply.get("people", ()))),
        )


class DeclaredSync(NamedTuple):
    """How workers synchronise, as a program states it and as its job has it."""

    stated: str = ""  # such as "diloco:lr=0.7"; "" = nothing: gradients are averaged in every step
    round: int = 0  # steps from one commit to the next, as the program states; 0 = it does not
    now: str = ""  # as the checkpoint has it from which the job goes on; "" = as stated
    auto: bool = False  # the program leaves both to the job


class Backend(Protocol):
    """One rank of a job, with its agent (Worker) or without one (Solo).

    Any thread may describe arrays, make and collect calls, get memory, ask the agent and report.
    What changes the members is for the thread of the training loop: `enter`, `become_job_of_one`,
    `admit_newcomers`, `with_newcomers`. One thread at a time makes groups, in the same order on all
    ranks. A method that waits for the agent or for other ranks says so.
    """

    name: str  # of the job
    host: str  # name of this machine
    rank: int
    size: int  # number of members that make calls
    generation: int  # number of the membership
    late: bool  # started when the job already ran, and not a member yet: a job of one
    view: View
    step_timer: StepTimer  # what the agent learns of each step

    def check(self) -> None:
        """Raise what broke the job, if anything did: a lost agent, a fork, the end."""

    def describe(self, x: Any, dtype: Optional[str] = None) -> Tensor:
        """Describe an array, and find where it lies in the arena or in a shared result. `dtype`
        names the elements where the array's own type cannot.
        """

    def new_like(self, x: Any, dtype: DType, shape: Shape) -> Any:
        """A new array of the kind that x is, in memory that collectives use in place."""

    def buffer(self, nbytes: int, lazy: bool = False) -> Any:
        """New memory of nbytes that collectives use in place, freed when nothing refers to it; the
        agent may be asked for it, and waited for. `lazy`: its pages need not be there yet.
        """

    def shared(self, group: int, name: str, nbytes: int) -> memoryview:
        """Memory to read, which all workers of the host see who give its group and name. The agent
        may be asked for it, and waited for.
        """

    def pin(
        self, address: int, pin: Callable[[int, int], None], unpin: Callable[[int], None]
    ) -> None:
        """Have the arena memory around an address pinned for a device, once: pin(address, bytes) is
        called now, and unpin(address) before it is unmapped.
        """

    def submit(self, call: Call, held: Any, result: T) -> Handle[T]:
        """Submit a call, from any thread. `held` is kept alive until the call is complete, and the
        handle's `wait` returns `result`. It may wait for earlier calls, whose slot or commit it
        needs, and for a call that is `at_once`.
        """

    def on_change(self, changed: Callable[[], None]) -> None:
        """Have `changed` called after each change of `view`, before the call that told of it
        returns. It runs on the thread that made that call, perhaps with the lock of the calls held:
        so it makes no call, and does not block.
        """

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
        """Tell the agent what the job trains on, from which place, with how many samples a step as
        the program states, and what these may become; None = they stay. `rate` is the factor of the
        learning rate at the place, 0 = it has none, and `save` how many steps were between two
        checkpoints there, 0 = it does not say; None = the job may not choose. `sync` says how
        workers synchronise, and `people` which parts of the setting people had set at the place.
        Waits for its answer.
        """

    def ask_setting(self) -> Setting:
        """Ask the agent for the setting of the job, and wait for its answer."""

    def declare_layout(self, statement: bytes) -> str:
        """Tell the agent how the state of the job lies on its workers. Waits for its answer, which
        is the mesh of the job; "" = the one that was told.
        """

    def ask_mesh(self) -> MeshStatus:
        """Ask the agent how the state of the job lies now, and what comes next. Waits for its
        answer.
        """

    def best_bucket_bytes(self, gradient_bytes: int, now_bytes: int, backward_s: float) -> int:
        """Ask the agent for the best size of gradient buckets, and wait for its answer; 0 = it does
        not know.
        """

    def enter(self, epoch: Optional[int] = None) -> bool:
        """Ask to be a member of the next view, and wait for that; with an `epoch` in that one only:
        False when the job is beyond it. True also where the job has ended meanwhile, as `view`
        says.
        """

    def become_job_of_one(self) -> None:
        """Become a job of one, at the end of the last step of a job that was stopped: until then
        its workers can call each other.
        """

    def admit_newcomers(self) -> None:
        """Count the newcomers as members from now on: they have the state."""

    def with_newcomers(self) -> ContextManager[None]:
        """A block whose calls on all ranks the newcomers make too, before they have the state."""

    def open_group(self, ranks: Sequence[int]) -> Tuple[int, int]:
        """Make a group of these ranks of the job, together with them, and wait until the agent has
        it; returns its id, and this worker's rank in it.
        """

    def new_solo_group(self) -> int:
        """The id of a new group of this worker alone, which needs no agent."""

    def close_group(self, number: int) -> None:
        """Say that this rank makes no more calls of a group; nobody answers."""

    def hold_calls(self, block: threading.Lock) -> None:
        """Collect the calls that follow, as long as `block` is taken; `release_calls` comes
        then.
        """

    def release_calls(self) -> None:
        """Submit the collected calls as one, if no block of `hold_calls` is taken."""

    def tell_memory(self, peak_bytes: int, limit_bytes: int) -> None:
        """Tell the agent how many bytes of its GPU this worker has had at most, and can have;
        nobody answers.
        """

    def tell_goal(self, steps: int) -> None:
        """Tell the agent how many optimizer steps the training has in all; nobody answers."""

    def reject_sync_change(self, number: int, sync: str, why: str) -> None:
        """Tell the agent that this worker goes on by `sync`, as an earlier setting has it, and not
        by what the newest change names, which has this number, and why; nobody answers.
        """

    def park(self, step: int, problem: str) -> None:
        """Tell the agent that the checkpoint of a step is sealed, and wait until this process is
        ended; or which problem there is with it, and return.
        """

    def report(self, metrics: Dict[str, float]) -> None:
        """Send numbers to the launcher, by name; nobody answers."""

    def leave(self) -> None:
        """Leave the job: later calls raise ShoalError. For the thread of the training loop, or the
        exit handler.
        """
