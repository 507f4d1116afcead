"""Pools: many jobs that share hosts. docs/guide/pool.md has the commands.

    import shoal
    from datetime import timedelta

    pool = shoal.Pool()                     # the one of this host; shoal.Pool("lab") by name
    job = pool.submit(["python3", "train.py"], workers=(1, 4), name="big",
                      deadline=timedelta(hours=6))
    job.wait()
    print(job.state, job.workers, job.changes[-1].because)

All calls ask the keeper of the pool on this host, and block until it answers. Any thread may make
them.
"""

from __future__ import annotations

import dataclasses
import datetime
import getpass
import glob
import json
import operator
import os
import socket
import time
import urllib.parse
from typing import Any, Dict, List, Mapping, Optional, Sequence, Tuple, Union

from .errors import PoolError

_PREFIX, _SUFFIX = "pool-", ".sock"
# States in which a job has come to its end.
_OVER = ("ended", "failed", "stopped")
# For how many seconds an answer of the keeper is waited for.
_ANSWER_TIME = 60.0


def _folder() -> str:
    """The folder of the sockets of this user, as the launchers find it."""
    runtime = os.environ.get("XDG_RUNTIME_DIR", "")
    if os.path.isabs(runtime) and os.path.isdir(runtime):
        return os.path.join(runtime, "shoal")
    return os.path.join(os.environ.get("TMPDIR") or "/tmp", f"shoal-{os.getuid()}")


def _http_request(path: str, request: str, body: str) -> Tuple[int, bytes]:
    """Send an HTTP request to the socket at `path`, whose answer is a status and a text. `request`
    is its method and what it asks for, as "GET /v1/queue".
    """
    text = body.encode()
    with socket.socket(socket.AF_UNIX) as link:
        link.settimeout(_ANSWER_TIME)
        link.connect(path)
        head = f"{request} HTTP/1.0\r\nHost: pool\r\nContent-Length: {len(text)}\r\n\r\n"
        link.sendall(head.encode() + text)
        answer = b"".join(iter(lambda: link.recv(1 << 16), b""))
    head_lines, _, rest = answer.partition(b"\r\n\r\n")
    return int(head_lines.split()[1]), rest


def _datetime_of(milliseconds: int) -> Optional[datetime.datetime]:
    """A time of the keeper in the zone of this host; None = it is not known."""
    if not milliseconds:
        return None
    return datetime.datetime.fromtimestamp(milliseconds / 1000).astimezone()


@dataclasses.dataclass(frozen=True)
class Change:
    """Another number of workers of a job: when it was decided, from how many to how many, why, and
    when it had come, None as long as it has not. `outcome` says what became of it if it never came.
    """

    at: datetime.datetime
    before: int
    after: int
    because: str
    done: Optional[datetime.datetime]
    outcome: str


class PoolJob:
    """A job of a pool. Its properties ask the pool each time."""

    def __init__(self, pool: Pool, name: str) -> None:
        """The job of `pool` that is called `name` there. Made by `Pool`."""
        self.pool = pool
        self.name = name

    def __repr__(self) -> str:
        return f"<shoal job {self.name} of pool {self.pool.name}>"

    def view(self) -> Dict[str, Any]:
        """All that the pool says of the job, as `shoal queue --json` prints it. PoolError if the
        pool does not know the job any more: it keeps the last 1000 that are over.
        """
        name = urllib.parse.quote(self.name, safe="")
        return dict(self.pool._call(f"/v1/job?name={name}")["job"])

    @property
    def state(self) -> str:
        """What it does: waiting, starting, running, resizing, parking, parked, stopping, ended,
        failed or stopped.
        """
        return str(self.view()["state"])

    @property
    def workers(self) -> int:
        """The number of slots in which workers of it may be."""
        return int(self.view()["workers"])

    @property
    def because(self) -> str:
        """Why it has what it has, or waits."""
        return str(self.view()["because"])

    @property
    def expected_end(self) -> Optional[datetime.datetime]:
        """When it should end; None = that is not known."""
        return _datetime_of(self.view()["expect"]["end"])

    @property
    def changes(self) -> List[Change]:
        """The last changes of its size, the newest last."""
        return [
            Change(
                datetime.datetime.fromtimestamp(c["at"] / 1000).astimezone(),
                c["from"],
                c["to"],
                c["because"],
                _datetime_of(c["done"]),
                c["outcome"],
            )
            for c in self.view()["changes"]
        ]

    def wait(self, timeout: Optional[float] = None) -> str:
        """Wait until the job is over, and return its state, "ended" or "stopped". PoolError if it
        has failed, with the reason; TimeoutError after `timeout` seconds, None = never.
        """
        end = None if timeout is None else time.monotonic() + timeout
        while True:
            view = self.view()
            if view["state"] == "failed":
                raise PoolError(f"job {self.name} has failed: {view.get('error', '')}")
            if view["state"] in _OVER:
                return str(view["state"])
            if end is not None and time.monotonic() > end:
                raise TimeoutError(
                    f"job {self.name} is {view['state']} after {timeout} s: {view['because']}"
                )
            time.sleep(0.1)

    def stop(self, now: bool = False) -> None:
        """Ask for its end: when its step ends, or at once. Does not wait for it."""
        self.pool._call("/v1/stop", {"job": self.name, "who": _user_at_host(), "now": now})

    def park(self) -> None:
        """Ask for its end at a checkpoint when its step ends, from which it goes on after `resume`.
        It has no slots until then. Does not wait; one that cannot be parked goes on.
        """
        self.pool._call("/v1/park", {"job": self.name, "who": _user_at_host()})

    def resume(self) -> None:
        """Let it go on when the pool has slots for it. PoolError if nobody has parked it."""
        self.pool._call("/v1/resume", {"job": self.name, "who": _user_at_host()})


def _user_at_host() -> str:
    """USER@HOST of this process, which ledgers name."""
    try:
        user = getpass.getuser()
    except (KeyError, OSError, ImportError):  # a container whose user has no name
        user = str(os.getuid())
    return f"{user}@{socket.gethostname()}"


def _check_text(what: str, name: Any, value: Any = "") -> None:
    """Raise a PoolError that names a text which is no UTF-8, or has a value that is none: it came
    from the system so, and JSON would change it."""
    try:
        f"{name}{value}".encode()
    except UnicodeEncodeError:
        raise PoolError(
            f"{what} {str(name)!a} has bytes that are no UTF-8, and a pool keeps no others: give it"
            " another name or value, or leave it out"
        ) from None


def _least_and_most(workers: Union[int, Tuple[int, int]]) -> Tuple[int, int]:
    """The least and the largest number of workers that `workers` of `Pool.submit` says."""
    given: Any = workers
    try:
        try:
            least = most = operator.index(given)
        except TypeError:
            least, most = map(operator.index, given)
    except (TypeError, ValueError):
        raise TypeError(
            f"workers={workers!r}: give a number, or the least and the largest, such as (1, 4)"
        ) from None
    if least < 1:
        raise ValueError(f"workers={workers!r}: a job has 1 worker or more")
    if least > most:
        raise ValueError(
            f"workers={workers!r}: the least number is above the largest; write ({most}, {least})"
        )
    return least, most


class Pool:
    """A pool that is kept on this host: the one called `name`, or the only one there is. PoolError
    if there is none, or there are several.
    """

    def __init__(self, name: Optional[str] = None) -> None:
        """Find the pool, and ask it whether it answers."""
        names = [name] if name is not None else self._names()
        if not names:
            raise PoolError("no pool is kept on this host: start one with shoal pool start")
        if len(names) > 1:
            raise PoolError(
                f"several pools are kept on this host, {' and '.join(names)}: name the one that "
                f'you mean, such as shoal.Pool("{names[0]}")'
            )
        self.name = names[0]
        self._state()

    def __repr__(self) -> str:
        return f"<shoal pool {self.name}>"

    @staticmethod
    def _names() -> List[str]:
        """The pools that answer on this host."""
        found = []
        pattern = os.path.join(glob.escape(_folder()), f"{_PREFIX}*{_SUFFIX}")
        for path in sorted(glob.glob(pattern)):
            probe = socket.socket(socket.AF_UNIX)
            try:
                probe.connect(path)
                found.append(os.path.basename(path)[len(_PREFIX) : -len(_SUFFIX)])
            except OSError:
                pass  # its keeper was killed
            finally:
                probe.close()
        return found

    def _call(self, path: str, body: Optional[Mapping[str, Any]] = None) -> Dict[str, Any]:
        """Ask the keeper, and return its answer. PoolError says what it refuses."""
        at = os.path.join(_folder(), f"{_PREFIX}{self.name}{_SUFFIX}")
        request = f"GET {path}" if body is None else f"POST {path}"
        try:
            status, text = _http_request(at, request, "" if body is None else json.dumps(body))
            answer = json.loads(text)
        except socket.timeout:
            raise PoolError(
                f"the keeper of the pool {self.name} has not answered for {_ANSWER_TIME:.0f} s, as "
                "where it is stopped, or cannot write its record; what it was asked may be done: "
                "see shoal queue when it answers again"
            ) from None
        except (OSError, IndexError, ValueError) as error:
            raise PoolError(
                f"no pool called {self.name} answers on this host ({error}): start it with shoal "
                f"pool start {self.name}"
            ) from None
        if status != 200:
            raise PoolError(str(answer.get("error", answer)))
        return dict(answer)

    def _state(self, over: bool = False) -> Dict[str, Any]:
        """The pool as it is now, also with jobs that are `over`."""
        return self._call("/v1/queue?all" if over else "/v1/queue")

    def jobs(self, over: bool = False) -> List[PoolJob]:
        """The jobs that have slots or wait for some, and with `over` those that have ended."""
        return [PoolJob(self, job["job"]) for job in self._state(over)["jobs"]]

    def submit(
        self,
        command: Sequence[Union[str, "os.PathLike[str]"]],
        workers: Union[int, Tuple[int, int]] = 1,
        name: Optional[str] = None,
        priority: int = 0,
        deadline: Optional[datetime.timedelta] = None,
        preempt: Optional[str] = None,
        steps: Optional[int] = None,
        tenant: Optional[str] = None,
        env: Optional[Mapping[str, str]] = None,
        directory: Optional[str] = None,
    ) -> PoolJob:
        """Give the pool a job, and return it when the pool has it in its record.

        workers: how many it has, or (least, most): the pool then decides, and changes that while
            the job trains
        name: what it is called; one that is taken gets a number. None = after the command
        priority: a job of a higher one goes first
        deadline: how long from now on it should have ended
        preempt: what may be done to it for other jobs: "never", "shrink" or "park". None = "shrink"
        steps: how many optimizer steps the training has, for a program that does not say it
        tenant: whose job it is, for policies that share by that
        env: variables of its workers beside those of this process
        directory: where the command runs. None = the folder of this process

        PoolError if the pool refuses it, with the reason.
        """
        if isinstance(command, (str, bytes)):
            raise TypeError(
                f"command={command!r}: give a list of its words, such as ['python3', 'train.py']"
            )
        if deadline is not None and not isinstance(deadline, datetime.timedelta):
            raise TypeError(
                f"deadline={deadline!r}: give a datetime.timedelta, such as timedelta(hours=6)"
            )
        least, most = _least_and_most(workers)
        words = [os.fspath(word) if isinstance(word, os.PathLike) else word for word in command]
        spec: Dict[str, Any] = {"command": words, "workers": most}
        if least != most:
            spec.update(min=least, max=most)
        if name is not None:
            spec["name"] = name
        if env:
            spec["env"] = dict(env)
        schedule: Dict[str, Any] = {}
        if priority:
            schedule["priority"] = priority
        if deadline is not None:
            schedule["deadline"] = f"{deadline.total_seconds():.3f}s"
        if preempt is not None:
            schedule["preempt"] = preempt
        if steps is not None:
            schedule["steps"] = steps
        if tenant is not None:
            schedule["tenant"] = tenant
        if schedule:
            spec["schedule"] = schedule
        directory = os.path.abspath(directory or os.getcwd())
        _check_text("the folder", directory)
        for word in words:
            _check_text("the word", word)
        for key, value in [*(env or {}).items(), *os.environ.items()]:
            _check_text("the variable", key, value)
        answer = self._call(
            "/v1/submit",
            {
                "spec": json.dumps(spec, default=operator.index),  # integers of NumPy
                "dir": directory,
                "env": [f"{key}={value}" for key, value in os.environ.items()],
                "who": _user_at_host(),
            },
        )
        if answer["state"] == "failed":
            raise PoolError(f"job {answer['job']} is refused: {answer.get('error', '')}")
        return PoolJob(self, answer["job"])
