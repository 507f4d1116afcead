"""Joining a job, and what a worker does in it besides the collectives."""

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
    Iterable,
    Iterator,
    List,
    Mapping,
    Optional,
    Sequence,
    Type,
    Union,
)

from ._checkpoint.checkpoints import Checkpoints
from ._live.transfer import State
from ._runtime.arguments import whole, wrong
from ._runtime.backend import Port
from ._runtime.handle import Handle
from ._runtime.protocol import KINDS, OPS
from ._runtime.solo import Solo
from ._runtime.tensor import dense, elements, ndarray
from ._runtime.worker import Worker
from .cursor import MAX_SAMPLES
from .errors import JoinError, ShoalError
from .group import Group
from .mesh import Mesh
from .steps import End, Progress, Step
from .steps import steps as steps_until


class Job(Group):
    """A job that this process has joined: the group of all its ranks.

    `rank` and `size` number the workers, `generation` numbers the memberships, `name` names the job
    and `host` the machine. In a job that trains in steps, these change with the members: at the end
    of a step, and never before. A context manager: leaving the block leaves the job.
    """

    def __init__(self, port: Port) -> None:
        super().__init__(port, 0, port.rank, range(port.size))
        self.name = port.name
        self.host = port.host
        self.generation = port.generation
        self._state = State()
        self._progress: Optional[Progress] = None
        self._checkpoints: Optional[Checkpoints] = None
        port.follow(self._follow)
        self._pid = os.getpid()
        atexit.register(self._at_exit)

    def _follow(self) -> None:
        port = self._port
        self.rank, self.size, self.ranks, self.generation = (
            port.rank,
            port.size,
            tuple(range(port.size)),
            port.generation,
        )
        if self._progress is not None:
            self._progress.changed()

    def steps(
        self,
        samples: int,
        batch: int,
        seed: int = 0,
        epochs: Optional[int] = None,
        shuffle: bool = True,
        steps: Optional[int] = None,
    ) -> Iterator[Step]:
        """The steps of a training loop over a data set of `samples` samples, `batch` of them in
        each step over all workers.

            for step in job.steps(len(images), batch=128, epochs=10):
                gradient[:] = f(weights, images[step.indices])
                step.allreduce(gradient)
                weights -= rate * gradient

        Every sample is taken exactly once an epoch, in an order of its own (the samples' own with
        shuffle=False), whatever workers join, leave or are lost. Then rank and size change between
        two steps; register the arrays of the loop, so that a worker that joins gets them. The loop
        ends after so many `epochs`, or so many `steps` of the job. Where neither is given it is one
        epoch, `for epoch in range(10): for step in job.steps(len(images), batch=128): ...`: the
        n-th loop ends with the n-th epoch of the job. A worker that joins goes through those that
        the job has behind it without a step, as a job of one that is not rank 0. Every worker gives
        the same arguments. Where the job was made smaller, the steps of a worker that is no longer
        needed end early; job.released tells.
        """
        return steps_until(self.place(samples, batch, seed, shuffle), End(epochs, steps))

    def place(self, samples: int, batch: int, seed: int = 0, shuffle: bool = True) -> Progress:
        """The place of the job in a data set, for loops of other kinds than `steps`."""
        samples = whole(
            "samples",
            samples,
            1,
            "how many samples the data set has, an integer from 1 to 2**62",
            MAX_SAMPLES,
        )
        batch = whole(
            "batch",
            batch,
            1,
            "how many samples a step takes over all workers, an integer from 1 to 2**62",
            MAX_SAMPLES,
        )
        seed = whole(
            "seed",
            seed,
            0,
            "what the order of the samples follows from, an integer from 0 to 2**64 - 1",
            (1 << 64) - 1,
        )
        wanted = (samples, batch, seed, bool(shuffle))
        if self._progress is None:
            self._progress = Progress(self, self._state, samples, batch, seed, bool(shuffle))
            self._progress.checkpoints = self._checkpoints
        have = self._progress.cursor
        if (have.samples, have.batch, have.seed, have.shuffle) != wanted:
            raise ValueError(
                f"this job trains on {have.samples} samples, {have.batch} a step: a job has one"
                " data set"
            )
        return self._progress

    def register(
        self, name: str, get: Callable[[], Any], set: Callable[[Any], None], alike: bool = True
    ) -> None:
        """Give workers that join a part of the state: get() on those that have it, set(value) on
        those that need it.

        A value is made of arrays (NumPy, torch), numbers, strings, bytes, None, and lists, tuples
        and dicts of these. Both are called between two steps, and get() on the new worker before it
        joins, to have the memory ready. With alike=False the value may differ between workers, as
        random states do; then it has no arrays, and the new worker gets that of rank 0. Every
        worker registers the same names.

        Raises ValueError for a name that is registered already: two parts of the state under one
        would be one of them. TypeError for what cannot travel.
        """
        if not isinstance(name, str):
            raise wrong("name", name, "the name of a part of the state, a text")
        for which, given in (("get", get), ("set", set)):
            if not callable(given):
                raise wrong(
                    which,
                    given,
                    "a function; get() returns the value to give, and set(value) takes it over, as"
                    f" in job.register({name!r}, lambda: x, load)",
                )
        if self._state.unused(name) != name:
            raise ValueError(
                f"{name!r} is registered already: give each part of the state a name of its own, as"
                f" job.unused({name!r}) is. To train once more in the same session, job.leave()"
                " first, and then shoal.join() is another job"
            )
        self._state.register(name, get, set, alike)

    def checkpoint(
        self,
        folder: Union[str, "os.PathLike[str]"],
        every: "Union[int, timedelta]" = timedelta(minutes=10),
        keep: int = 2,
    ) -> None:
        """Write checkpoints of a training loop into a folder, and go on from the newest one that is
        there.

            job.checkpoint("runs/digits", every=500)        # before the loop, on every worker
            for step in job.steps(len(images), batch=128, epochs=10): ...

        `every` so many steps, or every timedelta, and behind the last step (with a loop for each
        epoch, where loader.epochs says which is the last), the agents write what is registered, an
        equal share for each worker, while training goes on; it stops only to copy that share. The
        newest `keep` checkpoints stay. A program that is started again, on any number of workers,
        goes on at the next step of the newest checkpoint that is whole, and no sample counts twice.
        With shoal.train the tensors of the model are written too, by each worker what it has, and
        read on any mesh. What cannot be written is said in the log, and training goes on. All hosts
        of the job need the same folder, or `s3://BUCKET/PREFIX`, where the agents read and write. A
        job of one without an agent writes by itself, in a folder, and needs NumPy. The loop begins
        with ShoalError when there are checkpoints of another program, or none that can be used.
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
            raise wrong("folder", folder, "a path, or s3://BUCKET/PREFIX")
        self._checkpoints = Checkpoints(self, self._state, os.fsdecode(folder), every, keep)
        if self._progress is not None:
            self._progress.checkpoints = self._checkpoints

    def unused(self, name: str) -> str:
        """The name, or one with a number where it is registered already."""
        return self._state.unused(name)

    def digest(self) -> int:
        """A checksum of the registered state, of 48 bits: equal on all workers as long as their
        states are the same to the last bit.
        """
        return self._state.digest()

    @property
    def elastic(self) -> bool:
        """Whether the job trains in steps, so that its workers can change."""
        return self._progress is not None or self._port.late

    @property
    def outside(self) -> bool:
        """Whether this worker came when the job already ran, and is no member yet."""
        return self._port.late

    @property
    def step(self) -> Optional[Step]:
        """The step under way, in the body of a loop over `steps` or shoal.torch.loader."""
        return None if self._progress is None else self._progress.step

    @property
    def released(self) -> bool:
        """Whether the job goes on without this worker, or was stopped: it keeps its rank, and every
        collective is one of a job of one.
        """
        return self._port.view.released

    @property
    def committed(self) -> int:
        """How many steps the job has committed."""
        return 0 if self._progress is None else self._progress.place.step

    def group(self, ranks: Sequence[int]) -> Group:
        """The sub-group of these ranks of the job, numbered in this order. Called by its members,
        and by no other rank.

        Raises ValueError when the list has a repetition, a rank outside the job, or not this rank.
        """
        self._port.check()
        if isinstance(ranks, str) or not isinstance(ranks, Iterable):
            raise wrong("ranks", ranks, "a list of ranks of the job, as [0, 1]")
        members = [self._member(r, "rank") for r in ranks]
        if len(set(members)) != len(members):
            raise ValueError(f"group({members}) names a rank twice: name each once")
        if self.rank not in members:
            raise ValueError(
                f"rank {self.rank} is not in group({members}): call it on its members only"
            )
        number, rank = self._port.open_group(members)
        return Group(self._port, number, rank, members)

    def mesh(self, axes: str) -> Mesh:
        """The ranks of the job on named axes, `"dp=2,tp=4"`, the last the fastest; the degrees
        multiply to the size of the job.

        Every rank calls it with the same text. Raises ValueError for one that does not fit. Its
        groups are those of the members of now: make another when the members have changed.
        """
        return Mesh(self, axes)

    def alone(self) -> Group:
        """A group of this rank alone, as its rank 0. It needs nobody, whatever becomes of the
        job.
        """
        return Group(self._port, self._port.own_group(), 0, [self.rank])

    @contextlib.contextmanager
    def grouped(self) -> Iterator[None]:
        """Submit the asynchronous calls of the block as one, at its end: one signal to the agent
        for all of them.

        A `wait` inside the block submits what was collected so far.
        """
        self._port.hold()
        try:
            yield
        finally:
            self._port.release()

    def empty(self, shape: Union[int, Sequence[int]], dtype: Any = "float32") -> Any:
        """A NumPy array in the arena, aligned to 64 bytes; collectives on it copy nothing. Its
        elements are arbitrary.

        dtype is anything that NumPy takes, or "bfloat16" (needs ml_dtypes). Raises ArenaError when
        the agent has no memory.
        """
        kind, dims = dense(shape, dtype)
        return ndarray(kind, dims, self._port.buffer(elements(dims) * kind.itemsize))

    def zeros(self, shape: Union[int, Sequence[int]], dtype: Any = "float32") -> Any:
        """Like empty, filled with 0."""
        x = self.empty(shape, dtype)
        x.fill(0)
        return x

    def buffer(self, nbytes: int) -> Any:
        """Arena memory of nbytes, with the buffer protocol, freed when nothing refers to it: for
        torch.frombuffer and the like.
        """
        return self._port.buffer(whole("nbytes", nbytes, 0, "how many bytes, an integer from 0 on"))

    def submit(
        self,
        kind: str,
        inp: Any,
        out: Any,
        *,
        dtype: Optional[str] = None,
        op: str = "none",
        group: int = 0,
        peer: int = 0,
        tag: int = 0,
        weight: float = 1.0,
        counts: Optional[Sequence[int]] = None,
        shape: Optional[Sequence[int]] = None,
    ) -> Handle[Any]:
        """Submit a call as docs/formats/arena.md describes it; the handle's `wait` returns `out`.

        kind and op are names of its tables. inp and out are arrays or None. `dtype` names the
        elements where the arrays cannot ("bf16" in int16 memory). `peer` is the root or partner, a
        rank inside the group; -1 in a recv is any rank, and the handle's `source` then says which.
        `counts` are the elements for each rank of an all_to_all. `shape` overrides the shape that
        the ranks must agree on.
        """
        if kind not in KINDS or op not in OPS:
            raise ValueError(
                f"kind={kind!r}, op={op!r}: kinds are {', '.join(KINDS)}; ops are {', '.join(OPS)}"
            )
        source = None if inp is None else self._port.describe(inp, dtype)
        if out is inp:
            target = source
        else:
            target = None if out is None else self._port.describe(out, dtype)
            if (
                source is not None
                and target is not None
                and (source.address, source.count) == (target.address, target.count)
            ):
                target = source
        if target is not None and not target.writable:
            raise ValueError(f"the result cannot be written to this read-only {type(out).__name__}")
        dims = None if shape is None else tuple(shape)
        return self._port.call(
            KINDS[kind],
            source,
            target,
            (inp, out),
            out,
            OPS[op],
            group,
            peer,
            tag,
            weight,
            counts,
            dims,
        )

    def report(self, metrics: Optional[Mapping[str, float]] = None, **more: float) -> None:
        """Send numbers to the launcher, for example report(step=12, loss=0.3); it keeps them in the
        run's metrics.jsonl.
        """
        if metrics is not None and not isinstance(metrics, Mapping):
            raise wrong(
                "metrics",
                metrics,
                "numbers by name, as in report(loss=0.3) or report({'loss': 0.3})",
            )
        self._port.report(
            {name: _number(name, value) for name, value in {**(metrics or {}), **more}.items()}
        )

    def leave(self) -> None:
        """Leave the job. Later calls raise; arrays of the arena stay readable. Happens by itself
        when the process exits.
        """
        global _current
        self._port.leave()
        atexit.unregister(self._at_exit)
        if _current is self:
            _current = None

    def _at_exit(self) -> None:
        # A forked child inherits the exit handlers, and must not sign off for its parent.
        if os.getpid() == self._pid:
            self.leave()

    def __enter__(self) -> Job:
        return self

    def __exit__(
        self,
        kind: Optional[Type[BaseException]],
        err: Optional[BaseException],
        trace: Optional[TracebackType],
    ) -> None:
        self._at_exit()

    def __repr__(self) -> str:
        return f"<shoal.Job {self.name!r}: rank {self.rank} of {self.size} on {self.host}>"


def _number(name: str, value: Any) -> float:
    try:
        number = float(value)
    except (TypeError, ValueError, OverflowError):
        raise TypeError(
            f"report({name}={value!r}): a metric is a number that a float64 can hold"
        ) from None
    return value if type(value) is int else number


_current: Optional[Job] = None
_joining = threading.Lock()


def join() -> Job:
    """Join the job that the launcher started this process for; the same Job when called again.

    Without SHOAL_SOCKET in the environment it is a job of one: rank 0 of 1, no agent, every
    collective a no-op or a copy. Raises JoinError when the environment is not whole, or the agent
    is not there or refuses.
    """
    global _current
    if _current is not None:
        _current._port.check()
        return _current
    with _joining:
        if _current is None:
            _current = Job(_connect(os.environ))
        return _current


def leave_at_exit() -> None:
    """Leave the job as the process exits, for exit handlers that need it to be left."""
    if _current is not None:
        _current._at_exit()


def _connect(env: Mapping[str, str]) -> Port:
    path = env.get("SHOAL_SOCKET")
    if not path:
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
    worker.link.watch()
    return worker


def empty(shape: Union[int, Sequence[int]], dtype: Any = "float32") -> Any:
    """A NumPy array in the arena of the joined job (joins when nobody has); see Job.empty."""
    return join().empty(shape, dtype)


def zeros(shape: Union[int, Sequence[int]], dtype: Any = "float32") -> Any:
    """Like empty, filled with 0."""
    return join().zeros(shape, dtype)
