"""A process that has imported what workers import, and forks workers from itself.

    python3 [options] -c "from shoal._runtime.template import main; main()" MODULES WORD [WORD …]

The launcher starts one on each host for `shoal run --prefork MODULES -- python3 [options] WORD …`,
since to import torch takes seconds of a processor, and to fork a process that has it takes a
hundredth of one. Descriptor 3 is a Unix socket on which the launcher asks for workers. A request is
a line of JSON, {"environment", "processors"}, and comes with three descriptors: the worker's stdout
and stderr, and a socket for the answers. In the environment a character stands for each byte. The
answers are lines too: {"pid", "bound"} when the worker runs, and {"code"} or {"signal"} when it has
ended. It stays a zombie until the launcher closes the socket of answers, so that its number is not
another process's while the launcher may signal it. If the launcher closes the socket earlier, the
worker is killed.

A worker finds all as a process would that has just started: its files, its environment, no other
thread, other random numbers, its own command line. Where what was imported has left something that
a fork would share or lose, the template ends with a line that says so, and workers are started
without it. The workers of a template that has ended go on.

All of this runs on the main thread, the only one that the process has: `become_worker`,
`show_command_line` and `run_program` in the worker, everything else in the template.
"""

from __future__ import annotations

import array
import builtins
import contextlib
import ctypes
import gc
import importlib
import importlib.machinery
import json
import os
import runpy
import select
import signal
import socket
import sys
import types
from typing import (
    Any,
    Collection,
    Dict,
    List,
    Mapping,
    NamedTuple,
    NoReturn,
    Optional,
    Set,
    Tuple,
)

# What is imported besides a package that has been imported: what a script with shoal imports beside
# torch, and its optimizers; and what a package imports only when it is used first.
_BESIDE = (
    ("torch", "shoal.torch"),
    ("torch", "torch._dynamo"),
    ("transformers", "transformers.trainer"),
    ("transformers", "deepspeed"),  # each Trainer does where it is installed, in seconds
    ("lightning", "lightning.pytorch"),
)
# With 1 in this variable, torch finds out whether there are GPUs without beginning CUDA, which
# DeepSpeed asks when it is imported.
_COUNTS_BY_NVML = "PYTORCH_NVML_BASED_CUDA_CHECK"
Change = Tuple[Optional[str], Optional[str]]  # values of a variable; None = it is not set
_REQUESTS = 3  # the descriptor on which requests come
_CHUNK = 1 << 18  # bytes of a request that are read at a time


class Request(NamedTuple):
    """What the launcher asks for: the worker's environment, the processors that it may use (none =
    all), its stdout and stderr, and the socket for the answers.
    """

    environment: Dict[str, str]
    processors: List[int]
    files: List[int]
    answers: socket.socket


class ForkedWorker:
    """A worker that was forked here and is not reaped yet. The template has one thread, which uses
    it; only `close` waits for the worker.
    """

    def __init__(self, pid: int, answers: socket.socket) -> None:
        """`pid` is a child of this process; answers about it go to `answers`."""
        self.process = os.pidfd_open(pid)  # owned: `close` closes it
        # Owned: `serve` closes it when the launcher has; None = that has happened.
        self.answers: Optional[socket.socket] = answers
        self.ended = False  # the worker has ended, and is a zombie until `close`

    def tell(self, **answer: Any) -> None:
        """Send an answer to the launcher, as one line of JSON; nothing where the launcher has
        closed the socket.
        """
        if self.answers is not None:
            with contextlib.suppress(OSError):
                self.answers.sendall(json.dumps(answer).encode() + b"\n")

    def kill(self) -> None:
        """Kill the worker, if it has not ended."""
        signal.pidfd_send_signal(self.process, signal.SIGKILL)

    def close(self) -> None:
        """Give the worker's number back to the kernel. Blocks until the worker has ended."""
        os.waitid(os.P_PIDFD, self.process, os.WEXITED)
        os.close(self.process)


def main() -> None:
    """Import the modules, and fork workers for those who ask until the launcher is gone. In each
    worker, run the program; its end is that of the interpreter, as usual.
    """
    modules, *argv = sys.argv[1:]
    requests = socket.socket(fileno=_REQUESTS)
    before = dict(os.environ)
    files = _open_files()
    sys.argv[:] = argv
    _set_import_path(argv)
    os.environ.setdefault(_COUNTS_BY_NVML, "1")
    _import(modules.split(","))
    if _COUNTS_BY_NVML not in before:
        os.environ.pop(_COUNTS_BY_NVML, None)
    reason = why_not_forked(files)
    if reason:
        _give_up(reason)
    gc.collect()
    gc.freeze()  # what is here now stays in pages that all workers share
    request, changes = serve(requests), environment_changes(before)
    inherited = set(map(int, files)) - {_REQUESTS}
    become_worker(request, changes, find_standard_copies(files), inherited)
    show_command_line(argv)
    run_program(argv)


def _set_import_path(argv: List[str]) -> None:
    """Have sys.path begin as it does for the program: with the folder where its file really is, or
    for -m with the current one; with neither where the options of Python say so (-P, -I).
    """
    if getattr(sys.flags, "safe_path", sys.flags.isolated):
        return
    sys.path[0] = os.getcwd() if argv[0] == "-m" else os.path.dirname(os.path.realpath(argv[0]))


def _import(modules: List[str]) -> None:
    """Import modules, and what _BESIDE has for them; end this process with a line where one of the
    modules cannot be imported.
    """
    for module in modules:
        try:
            importlib.import_module(module)
        except (Exception, SystemExit) as error:
            _give_up(f"cannot import {module}: {type(error).__name__}: {error}")
    for package, module in _BESIDE:
        if package in sys.modules:
            # One may lack, as torch._dynamo in torch 1, or fail: the program did not ask for it.
            with contextlib.suppress(Exception):
                importlib.import_module(module)


def _give_up(reason: str) -> NoReturn:
    """End this process, with a line that the launcher shows as the reason."""
    print(" ".join(reason.split()), file=sys.stderr, flush=True)
    os._exit(1)


def _open_files() -> Set[str]:
    """The numbers of the open descriptors of this process, as texts."""
    # without that of the listing, which is closed now
    return {f for f in os.listdir("/proc/self/fd") if os.path.lexists(f"/proc/self/fd/{f}")}


def _cannot_use_gpus() -> bool:
    """In a fork, whether torch knows that it can use no GPU here, as CUDA was begun before."""
    torch = sys.modules.get("torch")
    asks = getattr(getattr(torch, "cuda", None), "_is_in_bad_fork", None)
    return bool(asks and asks())


def _finds_gpus() -> bool:
    """Whether torch finds a GPU here. Begins CUDA where it has not begun."""
    return bool(sys.modules["torch"].cuda.device_count())


def why_not_forked(files: Set[str]) -> Optional[str]:
    """Why what was imported cannot be forked; None = it can. `files` are the descriptors that were
    open before.

    A library that knows forks, as OpenBLAS does, ends its threads for one, so a fork that ends at
    once comes first: the threads that are left then would be missing in a worker.
    """
    try:
        os.close(os.pidfd_open(os.getpid()))
    except OSError as error:
        return f"the kernel gives no descriptor of a process (Linux 5.3 does): {error.strerror}"
    with open(f"/proc/self/task/{os.getpid()}/children") as children:
        if children.read().strip():
            return "what was imported has started processes, which a fork would not have"
    pid = os.fork()
    if pid == 0:
        os._exit(_cannot_use_gpus())
    if os.waitpid(pid, 0)[1] and _finds_gpus():
        return "what was imported has begun CUDA, and no fork could use a GPU"
    threads = [t for t in os.listdir("/proc/self/task") if int(t) != os.getpid()]
    if threads:
        started = _describe_threads(threads)
        return f"what was imported has started {started}, which a fork would not have"
    copies = find_standard_copies(files)
    for descriptor in sorted(map(int, _open_files() - files)):
        if descriptor not in copies:
            path = os.readlink(f"/proc/self/fd/{descriptor}")
            return f"what was imported has opened {path}, which all workers would share"
    return None


def find_standard_copies(files: Set[str]) -> Dict[int, int]:
    """The open descriptors besides `files` that are copies of a standard one, each with the number
    of that, 0 to 2. Nothing is closed. DeepSpeed leaves a copy of stderr.
    """
    return {
        descriptor: standard
        for descriptor in map(int, _open_files() - files)
        for standard in range(3)  # the last that is the same counts
        if os.path.sameopenfile(descriptor, standard)
    }


def _describe_threads(numbers: List[str]) -> str:
    """Threads of this process, by their numbers, in words: how many, and their names."""
    names = set()
    for number in numbers:
        try:
            with open(f"/proc/self/task/{number}/comm") as comm:
                names.add(comm.read().strip())
        except FileNotFoundError:
            names.add("one that has ended")
    count = "a thread" if len(numbers) == 1 else f"{len(numbers)} threads"
    return f"{count} ({', '.join(sorted(names))})"


def environment_changes(before: Dict[str, str]) -> Dict[str, Change]:
    """What imports have changed in the environment: by name the values before and after."""
    changes = {n: (before.get(n), os.environ.get(n)) for n in before.keys() | os.environ.keys()}
    return {n: change for n, change in changes.items() if change[0] != change[1]}


def serve(requests: socket.socket) -> Request:
    """Fork a worker for each request, and return in each worker, with the request; when the
    launcher is gone, kill the workers and end this process.
    """
    # By their descriptors, both that of the process and the socket.
    workers: Dict[int, ForkedWorker] = {}
    poll = select.poll()
    poll.register(requests, select.POLLIN)
    while True:
        for descriptor, _ in poll.poll():
            if descriptor == requests.fileno():
                request = receive_request(requests)
                if request is None:
                    for worker in workers.values():
                        worker.kill()
                    os._exit(0)
                pid = os.fork()
                if pid == 0:
                    requests.detach()  # become_worker closes it, and then its number is another's
                    return request
                worker = _set_up_worker(pid, request)
                for each in (worker.process, request.answers.fileno()):
                    workers[each] = worker
                    poll.register(each, select.POLLIN)
                continue
            poll.unregister(descriptor)
            worker = workers.pop(descriptor)
            if descriptor == worker.process:
                worker.ended = True
                worker.tell(**exit_status(worker.process))
            elif worker.answers is not None:  # the launcher knows the end, or wants it
                worker.answers.close()
                worker.answers = None
                worker.kill()
            if worker.ended and worker.answers is None:
                worker.close()


def _set_up_worker(pid: int, request: Request) -> ForkedWorker:
    """The worker of a request, which has just been forked as `pid`, with a process group of its own
    and its processors; tells the launcher. Closes the template's copies of the request's files, and
    the worker owns the socket of answers from now on.
    """
    for file in request.files:
        os.close(file)
    with contextlib.suppress(OSError):  # the worker does so too, and may have ended
        os.setpgid(pid, pid)
    bound = False
    if request.processors:
        with contextlib.suppress(OSError):  # then it runs unbound
            os.sched_setaffinity(pid, request.processors)
            bound = True
    worker = ForkedWorker(pid, request.answers)
    worker.tell(pid=pid, bound=bound)
    return worker


def exit_status(process: int) -> Dict[str, int]:
    """How a process has ended, {"code": N} or {"signal": N}; it stays a zombie. Blocks until
    then.
    """
    status = os.waitid(os.P_PIDFD, process, os.WEXITED | os.WNOWAIT)
    assert status is not None  # as WNOHANG is not set
    return {"code" if status.si_code == os.CLD_EXITED else "signal": status.si_status}


def receive_request(requests: socket.socket) -> Optional[Request]:
    """The next request, whose descriptors the caller owns; None when the launcher is gone. Blocks
    until it is whole.
    """
    files = array.array("i")
    text = b""
    while not text.endswith(b"\n"):
        size = 3 * files.itemsize
        part, ancillary, _, _ = requests.recvmsg(_CHUNK, socket.CMSG_SPACE(size))
        if not part:
            return None
        text += part
        for _, _, content in ancillary:
            files.frombytes(content)
    asked = json.loads(text)
    *standard, answers = files
    environment = {
        os.fsdecode(name.encode("latin-1")): os.fsdecode(value.encode("latin-1"))
        for name, value in asked["environment"].items()
    }
    return Request(environment, asked["processors"], standard, socket.socket(fileno=answers))


def become_worker(
    request: Request,
    changes: Mapping[str, Change],
    copies: Mapping[int, int],
    inherited: Collection[int] = (),
) -> None:
    """Give this fork what a process has that has just started: a process group, its own standard
    files, its environment, and random numbers of its own. `changes` are what imports have done to
    the environment; a variable that the worker has from elsewhere stays. `copies` are the
    descriptors that imports have left, each with the number of the standard one that it copies.
    Of others it has those of `inherited`, as that by which the keeper of a pool knows that it runs.
    """
    with contextlib.suppress(OSError):  # the template may have done it
        os.setpgid(0, 0)
    for standard, file in enumerate(request.files, 1):
        os.dup2(file, standard)
    request.answers.detach()
    for descriptor in map(int, _open_files()):
        if descriptor > 2 and descriptor not in inherited:
            os.close(descriptor)
    for copy, standard in copies.items():
        os.dup2(standard, copy, inheritable=False)
    os.environ.clear()
    os.environ.update(request.environment)
    for name, (before, after) in changes.items():
        if request.environment.get(name) != before:
            continue
        if after is None:
            del os.environ[name]
        else:
            os.environ[name] = after
    if "numpy.random" in sys.modules:  # the random module does so itself
        sys.modules["numpy.random"].seed()


def show_command_line(argv: List[str]) -> None:
    """Have process listings show the command line of the program, in place of the template's, which
    is longer.
    """
    with open("/proc/self/cmdline", "rb") as cmdline:
        own = cmdline.read().split(b"\0")
    line = b"\0".join([*own[: own.index(b"-c")], *map(os.fsencode, argv), b""])
    with open("/proc/self/stat") as stat:
        fields = stat.read().rpartition(") ")[2].split()
    start, end = int(fields[45]), int(fields[46])  # arg_start and arg_end of proc(5)
    if 0 < start and len(line) <= end - start:
        ctypes.memmove(start, line.ljust(end - start, b"\0"), end - start)


def run_program(argv: List[str]) -> None:
    """Run the program as the interpreter does: a script, or a module after -m. `argv` is its
    command line, without Python. Raises SystemExit where the program fails.
    """
    main = types.ModuleType("__main__")
    main.__dict__.update(__builtins__=builtins, __annotations__={}, __cached__=None)
    sys.modules["__main__"] = main
    if argv[0] == "-m":
        sys.argv[:] = ["-m", *argv[2:]]
        runpy._run_module_as_main(argv[1])  # type: ignore[attr-defined]  # as the interpreter does
        return
    path = os.path.abspath(argv[0])
    main.__file__ = path
    main.__loader__ = importlib.machinery.SourceFileLoader("__main__", path)
    try:
        with open(path, "rb") as file:
            # without what `from __future__` has imported here
            code = compile(file.read(), path, "exec", dont_inherit=True)
        exec(code, main.__dict__)
    except SystemExit:
        raise
    except BaseException as error:
        # as if nobody had called the program
        trace = error.__traceback__ = error.__traceback__ and error.__traceback__.tb_next
        # What runs at exit finds there that the program has failed.
        failed = {"type": type(error), "value": error, "traceback": trace, "exc": error}
        vars(sys).update({f"last_{name}": value for name, value in failed.items()})
        sys.excepthook(type(error), error, error.__traceback__)
        raise SystemExit(130 if isinstance(error, KeyboardInterrupt) else 1) from None
