"""Joining a job, and what a worker does in it besides collectives."""

from __future__ import annotations

import atexit
import contextlib
import os
import threading
from datetime import timedelta
from types import TracebackType
from typing import (
    Any,
    Callable,
    Iterator,
    List,
    Mapping,
    Optional,
    Sequence,
    Tuple,
    Type,
    TypeVar,
    Union,
)

from ._checkpoint.checkpoints import Checkpoints
from ._live.epochs import End
from ._live.object_collectives import map_over_workers, pack, unpack
from ._live.only_first import OnlyFirst
from ._live.step import Step
from ._live.transfer import State
from ._runtime.arguments import as_batch_range, as_integer, wrong_type
from ._runtime.backend import Backend
from ._runtime.launchers import other_launcher
from ._runtime.listeners import LISTENERS
from ._runtime.solo import Solo
from ._runtime.worker import Worker
from .cursor import MAX_ROUND, MAX_SAMPLES, Cursor, Order
from .errors import JoinError, ShoalError
from .mesh import Mesh
from .steps import OWN, Progress, steps_until
from .world import World

T = TypeVar("T")


class Job(World):
    """A job that this process has joined: the group of all its ranks.

    `rank` is the number of this worker, `size` the number of workers, `generation` the number of
    the membership, `name` the job and `host` the machine. In a job that trains in steps, rank, size
    and generation change at the end of a step, and never before. As a context manager, the job is
    left at the end of the block.

    Any thread may make its collectives, in the same order on all ranks, and get memory, submit and
    report; all else is for the thread of the training loop, or for one that it waits for.
    """

    def __init__(self, backend: Backend) -> None:
        """The job of a backend that has joined. It is left when the process exits."""
        super().__init__(backend)
        self._state = State()
        self._progress: Optional[Progress] = None  # None = the job has no loop yet
        self._checkpoints: Optional[Checkpoints] = None  # None = `checkpoint` was not called
        self._goal: Optional[End] = None  # None = shoal.goal was not called
        self._pid = os.getpid()  # the process that joined, which a forked child is not
        atexit.register(self._at_exit)

    def _adopt_view(self) -> None:
        """Take over rank, size and generation, on the thread that sees the new view, and have the
        loop take notice. Makes no call, takes no lock.
        """
        super()._adopt_view()
        if self._progress is not None:
            self._progress.mark_view_changed()

    def steps(
        self,
        samples: int,
        batch: int,
        seed: int = 0,
        epochs: Optional[int] = None,
        shuffle: bool = True,
        steps: Optional[int] = None,
        batch_range: Optional[Tuple[int, int]] = None,
        statistical_epochs: Optional[int] = None,
        local_steps: Optional[int] = None,
    ) -> Iterator[Step]:
        """The steps of a training loop over a data set of `samples` samples, `batch` of them in
        each step over all workers.

            for step in job.steps(len(images), batch=128, epochs=10):
                gradient[:] = f(weights, images[step.indices])
                step.allreduce(gradient)
                weights -= rate * gradient

        Each epoch takes every sample exactly once, in an order of its own that follows from `seed`
        (with shuffle=False in the order of the data set), whatever workers join, leave or are lost.
        Then rank and size change between two steps. Register the arrays of the loop, so that a
        worker that joins gets them.

        The loop ends after so many `epochs`, or so many `steps` of the job. Where neither is given
        it is one epoch, `for epoch in range(10): for step in job.steps(len(images), batch=128):
        ...`, and the n-th loop ends with the n-th epoch of the job. A worker that joins makes no
        step in the loops of epochs that the job has done already; it is a job of one meanwhile,
        with a rank that is not 0. Every worker gives the same arguments. Where the job was made
        smaller, the steps of a worker that is no longer needed end early; job.released says so.

        With batch_range=(64, 1024) the batch may become another one in that range between two
        steps, as by `shoal set JOB batch=512`; step.count is that of a step, and the learning rate
        is for the script to follow. Without it the batch never changes. A sample of a larger batch
        brings less. So with statistical_epochs=10 the loop ends when its samples are worth 10
        epochs of the batch that is stated here; job.statistical_epochs says how many they are
        worth. With a batch that stays these are epochs.

        With local_steps=8 workers average in every eighth step only, where step.ends_round, and
        what they average is for the script to choose: its parameters, say. Each worker makes the
        steps before alone, on its own samples. A worker that is lost meanwhile takes what it has
        learned with it, and its samples of the whole round come again. `shoal set JOB round=4`
        changes the number. The end of the loop, and a checkpoint, come with the end of a round.

            for step in job.steps(len(images), batch=128, local_steps=8):
                weights -= rate * f(weights, images[step.indices])
                if step.ends_round:
                    step.allreduce(weights)

        Raises TypeError and ValueError for arguments that are no such numbers, and ValueError where
        the job trains on another data set already.
        """
        place = self.place(samples, batch, seed, shuffle, batch_range=batch_range)
        if local_steps is not None:
            what = "how many steps workers make on their own, an integer from 1 to 65536"
            place.declare_sync(OWN, as_integer("local_steps", local_steps, 1, what, MAX_ROUND))
        return steps_until(place, End(epochs, steps, statistical_epochs))

    def place(
        self,
        samples: int,
        batch: int,
        seed: int = 0,
        shuffle: bool = True,
        apart: bool = False,
        batch_range: Optional[Tuple[int, int]] = None,
    ) -> Progress:
        """The place of the job in a data set, made by the first call, which waits for the agent:
        for loops of other kinds than `steps`; see `steps` for the arguments and errors. With
        `apart`, the samples of a lost worker are a step of their own, which completes the one
        before.
        """
        samples = as_integer(
            "samples",
            samples,
            1,
            "how many samples the data set has, an integer from 1 to 2**62",
            MAX_SAMPLES,
        )
        batch = as_integer(
            "batch",
            batch,
            1,
            "how many samples a step takes over all workers, an integer from 1 to 2**62",
            MAX_SAMPLES,
        )
        seed = as_integer(
            "seed",
            seed,
            0,
            "what the order of the samples follows from, an integer from 0 to 2**64 - 1",
            (1 << 64) - 1,
        )
        allowed = as_batch_range(batch_range, batch, "batch", MAX_SAMPLES)
        wanted = (samples, batch, seed, bool(shuffle))
        if self._progress is None:
            start = Cursor.start(*wanted, apart=apart)
            self._progress = Progress(self, self._state, start, allowed)
            self._progress.checkpoints = self._checkpoints
            self._progress.state_goal(self._goal)
        have = self._progress.stated_start
        if (have.samples, have.batch, have.seed, have.shuffle) != wanted:
            raise ValueError(
                f"this job trains on {have.samples} samples, {have.batch} a step: a job has one"
                " data set"
            )
        if self._progress.batch_range != allowed:
            raise ValueError(
                f"batch_range={allowed}: this job trains with {self._progress.batch_range}, and all"
                " its loops have the same"
            )
        return self._progress

    def register(
        self, name: str, get: Callable[[], Any], set: Callable[[Any], None], alike: bool = True
    ) -> None:
        """Give workers that join a part of the state: get() on those that have it, set(value) on
        those that need it.

        A value is made of arrays (NumPy, torch), numbers, strings, bytes, None, and lists, tuples
        and dicts of these. Both functions are called between two steps. get() is also called here,
        to see that the value can be sent, and on the new worker before it joins, so that memory is
        ready. With alike=False the value may differ between workers, as random states do; then it
        has no arrays, nor scalars of NumPy, and the new worker gets the value of rank 0. Every
        worker registers the same names.

        Raises ValueError for a name that is registered already, and TypeError for a value that
        cannot be sent.
        """
        if not isinstance(name, str):
            raise wrong_type("name", name, "the name of a part of the state, a text")
        for which, given in (("get", get), ("set", set)):
            if not callable(given):
                raise wrong_type(
                    which,
                    given,
                    "a function; get() returns the value to give, and set(value) takes it over, as"
                    f" in job.register({name!r}, lambda: x, load)",
                )
        if self._state.unused(name) != name:
            raise ValueError(
                f"{name!r} is registered already: give each part of the state a name of its own, as"
                f" job.unused({name!r}) is. To train once more in the same session, without `shoal"
                " run`, job.leave() first, and then shoal.join() is another job"
            )
        self._state.register(name, get, set, alike)

    def checkpoint(
        self,
        folder: Union[str, "os.PathLike[str]"],
        every: "Union[int, timedelta, str]" = timedelta(minutes=10),
        keep: int = 2,
    ) -> None:
        """Write checkpoints of a training loop into a folder, and go on from the newest one that is
        there.

            job.checkpoint("runs/digits", every=500)        # before the loop, on every worker
            for step in job.steps(len(images), batch=128, epochs=10): ...

        A checkpoint is made every `every` steps, or after every `every` of time, and after the last
        step. With every="auto" a job that `shoal run --auto` has started chooses the steps between
        two of them, by what one costs, and `shoal set JOB save=100` does so by hand; until then ten
        minutes are between them. (With a loop for each epoch, loader.epochs says which step is the
        last.) The agents write what is registered, an equal share for each worker, while training
        goes on; training stops only to copy that share. The newest `keep` checkpoints stay.

        A program that is started again, on any number of workers, goes on after the step of the
        newest checkpoint that is whole, and no sample counts twice. With shoal.train each worker
        also writes the tensors of the model that it has, and reads them on any mesh. Errors of
        writing go to the log, and training goes on.

        All hosts of the job need the same folder, or `s3://BUCKET/PREFIX`, which the agents read
        and write. A job of one without an agent writes by itself, to a folder, and needs NumPy.
        Raises ValueError or TypeError for arguments that mean nothing. The loop raises ShoalError
        where nothing can be written there when the job begins, where the checkpoints are of another
        program, and where none of them can be used.
        """
        if self._checkpoints is not None:
            raise ValueError(
                f"this job writes its checkpoints to {self._checkpoints.root} already: it has one"
                " folder"
            )
        if self._progress is not None and self._progress.meshed:
            raise ShoalError(
                "the job trains on a mesh already: call job.checkpoint before shoal.train"
            )
        if not isinstance(folder, (str, bytes, os.PathLike)):
            raise wrong_type("folder", folder, "a path, or s3://BUCKET/PREFIX")
        self._checkpoints = Checkpoints(self, self._state, os.fsdecode(folder), every, keep)
        if self._progress is not None:
            self._progress.checkpoints = self._checkpoints

    def only_first(self, factory: Callable[[], T]) -> T:
        """An object that exists on one worker at a time, the first one, such as a writer of
        metrics.

            writer = job.only_first(lambda: SummaryWriter("runs/digits"))    # on every worker
            for step in job.steps(...):
                ...
                writer.add_scalar("loss", loss, step.number)

        Its methods do nothing on the other workers, and return None there. factory() is called on
        the worker that is the first one now, when a method is called, and again on another worker
        that becomes the first one, because the one before was lost or released: so it opens what
        may be there already. Only methods are passed on; if the object is a function, call it. With
        `if job.rank == 0:` the writer would be gone with the first worker.

        Raises TypeError for what is no function.
        """
        if not callable(factory):
            raise wrong_type(
                "factory",
                factory,
                "a function that makes the object, as in job.only_first(lambda: SummaryWriter())",
            )
        return OnlyFirst(self, factory)  # type: ignore[return-value]

    def evaluate(
        self, samples: int, function: Callable[[Any], Any], batch: Optional[int] = None
    ) -> List[Any]:
        """Deal the numbers of `samples` samples out over the workers, and return what function
        makes of them, on every worker.

            parts = job.evaluate(len(valid), lambda at: [len(at), count_right(valid[at])])
            accuracy = sum(right for _, right in parts) / sum(n for n, _ in parts)

        function gets an int64 array of neighbouring numbers (a list without NumPy), of `batch` at
        most, or else of an equal share, and returns arrays, numbers, strings, None, or lists,
        tuples and dicts of these. The results are in the order of the samples. Every sample is in
        exactly one of them: what a worker had that was lost meanwhile is dealt out again, where a
        sum by job.allreduce would lack its part. All workers call it, between two steps or after
        the average of a step.

        Raises TypeError and ValueError for arguments that mean nothing, and TypeError for a result
        that cannot be sent.
        """
        samples = as_integer("samples", samples, 0, "how many samples are dealt out, an integer")
        if batch is None:
            each = max(-(-samples // self.size), 1)
        else:
            each = as_integer("batch", batch, 1, "how many samples function gets at most")
        if not callable(function):
            raise wrong_type("function", function, "a function of the numbers of some samples")
        order = Order(samples, shuffle=False)

        def make(part: int) -> Any:
            """What `function` makes of one part of the samples, by its number."""
            made = function(order.take([(part * each, min((part + 1) * each, samples))]))
            # The function may fill and return the same array again, as it can with more workers.
            return made if self.size > 1 else unpack(pack(made))

        found = map_over_workers(self, range(-(-samples // each)), make)
        return [found[part] for part in sorted(found)]

    def unused(self, name: str) -> str:
        """The name, or where it is registered already the name with the next free number."""
        return self._state.unused(name)

    def digest(self) -> int:
        """A checksum of the registered state, of 48 bits: equal on all workers as long as their
        states are the same to the last bit.
        """
        return self._state.digest()

    @property
    def elastic(self) -> bool:
        """Whether the job trains in steps, so that its workers can change."""
        return self._progress is not None or self._backend.late

    @property
    def step(self) -> Optional[Step]:
        """The step under way, in the body of a loop over `steps` or shoal.torch.loader; None = no
        step is.
        """
        return None if self._progress is None else self._progress.step

    @property
    def committed(self) -> int:
        """How many steps the job has committed."""
        return 0 if self._progress is None else self._progress.place.step

    @property
    def statistical_epochs(self) -> float:
        """How many epochs of the stated batch the committed steps are worth: as many as there were,
        where the batch has stayed, and fewer where it has grown, since a sample of a larger batch
        brings less. After the average of a step, that step counts.

        The worth of a step follows from the noise of the gradients (AdaScale, Johnson et al., ICML
        2020; AdaptDL has the word): it is the `rate` of the job's setting, which shoal's policies
        set with the batch. Without a rate, samples count alike.
        """
        progress = self._progress
        return 0.0 if progress is None else progress.effective / progress.cursor.samples

    def mesh(self, axes: str) -> Mesh:
        """The ranks of the job on named axes, `"dp=2,tp=4"`, the last the fastest; the degrees
        multiply to the size of the job.

        Every rank calls it with the same text. Raises ValueError for one that does not fit. Its
        groups are those of the members of now: make another when the members have changed.
        """
        return Mesh(self, axes)

    def leave(self) -> None:
        """Leave the job. Later calls raise ShoalError; arrays of the arena stay readable. A process
        that exits leaves its job by itself. A checkpoint that was kept for the end is written
        first, and waited for. What shoal.log.to has made is of this job, and writes of no other.
        """
        global _current
        if self._checkpoints is not None:
            with contextlib.suppress(ShoalError):  # of an agent that is gone, and writes nothing
                self._checkpoints.write_copy()
        self._backend.leave()
        atexit.unregister(self._at_exit)
        if _current is self:
            _current = None
            LISTENERS.clear()

    def _at_exit(self) -> None:
        """Leave the job in the process that joined it, as `leave` does. A forked child inherits the
        exit handlers, and must not leave for its parent. Called at exit, on the main thread, or at
        the end of the `with` block.
        """
        if os.getpid() == self._pid:
            self.leave()

    def __enter__(self) -> Job:
        """The job itself."""
        return self

    def __exit__(
        self,
        kind: Optional[Type[BaseException]],
        err: Optional[BaseException],
        trace: Optional[TracebackType],
    ) -> None:
        """Leave the job."""
        self._at_exit()

    def __repr__(self) -> str:
        """The job, and who this worker is in it."""
        return f"<shoal.Job {self.name!r}: rank {self.rank} of {self.size} on {self.host}>"


# The job that this process has joined; None = none. Set with `_joining` held and read without it;
# `Job.leave` clears it.
_current: Optional[Job] = None
_joining = threading.Lock()  # held while a thread joins, for as long as the agent takes


def join() -> Job:
    """Join the job that the launcher started this process for; the same Job when called again. Any
    thread may call it; the first call waits for the agent.

    Without SHOAL_SOCKET in the environment this process is a job of one: rank 0 of 1, without an
    agent, and every collective is a copy or does nothing. Raises JoinError when the environment is
    not complete, when it says that another launcher has started several such processes, or when the
    agent is not there or refuses.
    """
    global _current
    job = _current  # which another thread may leave meanwhile
    if job is not None:
        job._backend.check()
        return job
    with _joining:
        if _current is None:
            _current = Job(_connect(os.environ))
        return _current


def leave_at_exit() -> None:
    """Leave the job, if this process has joined one, as the process exits: for exit handlers that
    need it to be left.
    """
    if _current is not None:
        _current._at_exit()


def _connect(env: Mapping[str, str]) -> Backend:
    """Join the job that the launcher's environment names, as a Worker, and start its watcher
    thread; a Solo without such names. Raises JoinError where the environment is not complete, or
    the agent refuses.
    """
    path = env.get("SHOAL_SOCKET")
    if not path:
        other = other_launcher(env)
        if other is not None:
            launcher, count = other
            raise JoinError(
                f"{launcher} has started this process as one of several, but shoal has not: each"
                " would train alone, as rank 0 of a job of one. Start the program with `shoal run"
                f" -n {count} -- python3 …` in place of that launcher; if each process is"
                " to be a job of one, unset that variable before shoal.join()"
            )
        return Solo()
    values: List[str] = []
    for name in ("SHOAL_JOB", "SHOAL_RANK", "SHOAL_TOKEN"):
        value = env.get(name)
        if value is None:
            raise JoinError(
                f"SHOAL_SOCKET is set but {name} is not: start the program with `shoal run`, or"
                " unset SHOAL_SOCKET"
            )
        values.append(value)
    job, rank, token = values
    if not (rank.isascii() and rank.isdigit()):
        raise JoinError(f"SHOAL_RANK={rank!r} is not a number: start the program with `shoal run`")
    worker = Worker(path, job, int(rank), token)
    worker.link.start_watcher()
    return worker


def empty(shape: Union[int, Sequence[int]], dtype: Any = "float32") -> Any:
    """A NumPy array with arbitrary elements in the arena of the joined job (joins when nobody has),
    which collectives use in place; dtype is anything that NumPy takes, or "bfloat16". Any thread
    may call it.
    """
    return join().empty(shape, dtype)


def zeros(shape: Union[int, Sequence[int]], dtype: Any = "float32") -> Any:
    """Like `empty`, filled with 0."""
    return join().zeros(shape, dtype)
