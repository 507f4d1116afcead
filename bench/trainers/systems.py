"""The systems that are compared: how each starts a training, orders a worker, and ends."""

from __future__ import annotations

import contextlib
import json
import os
import pathlib
import signal
import socket
import subprocess
import sys
import time

import shape
import turns

HERE = pathlib.Path(__file__).resolve().parent
TORCHFT = turns.ROOT / "build" / "tools" / "torchft"  # made by `scripts/setup torchft`
PREFORK = ("--prefork", "torch,transformers")
FOREVER = 1_000_000  # steps; a training here is ended, and does not end
# How long torchrun waits for more hosts once it has enough. Its default of 30 s would be in each of
# its figures.
LAST_CALL_S = 1
# Without it, a host that joins a running training waits for 60 s for the address of its store,
# which rank 0 tells only once, and then all fail (PyTorch 2.15, next_rendezvous in
# dynamic_rendezvous.py).
NO_SHARING = {"TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1"}
# The options of torchft's own examples.
LIGHTHOUSE = ("--min_replicas", "1", "--quorum_tick_ms", "100", "--join_timeout_ms", "10000")
SAVE = 10  # steps between two checkpoints, of what restarts from them


def free_port() -> int:
    """Returns a port of 127.0.0.1 on which nobody listens now. Another process can take it before
    the caller does.
    """
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return found.getsockname()[1]


class Training:
    """A training of some workers under way. One thread uses it, and ends it by end()."""

    worker = "worker.py"  # the program of a worker, in this folder
    save = 0  # steps between two checkpoints; 0 = none

    def __init__(self, folder: pathlib.Path, model: str, workers: int, limit_s: float) -> None:
        """Start a training of a model of shape.SHAPES in an empty folder, which is the caller's.
        `workers` is how many there are to be after order(), `limit_s` how long until() waits.
        """
        self.folder, self.model, self.workers = folder, model, workers
        self._limit_s = limit_s
        self._processes: list[subprocess.Popen] = []  # what run has started, none forgotten
        self._killed: set[int] = set()  # process ids, whose end is no failure
        self._log = open(folder / "output.txt", "w")
        self.start()

    # Each system has its own start and order, and may have its own stop.

    def start(self) -> None:
        """Start one worker fewer than there are to be. Does not wait for them."""
        raise NotImplementedError

    def order(self) -> None:
        """Order the worker that is missing. Does not wait for it."""
        raise NotImplementedError

    def stop(self) -> None:
        """Ask all processes that run has started to end. Does not wait for it."""
        for process in self._processes:
            process.terminate()

    # What they have in common.

    def command(self, **more: object) -> list[str]:
        """Returns the command of a worker, whose configuration is this training's with `more`."""
        config = dict(out=str(self.folder), shape=self.model, steps=FOREVER, save=self.save)
        return [sys.executable, str(HERE / self.worker), json.dumps({**config, **more})]

    def run(self, *command: str, **env: str) -> None:
        """Start a process in a session of its own, with `env` added to the environment and its
        output in the log of this training. Does not wait for it; end() ends it.
        """
        paths = [str(turns.ROOT / "python"), *filter(None, [env.pop("PYTHONPATH", "")])]
        full = dict(
            os.environ,
            PYTHONPATH=":".join(paths),
            OMP_NUM_THREADS="1",
            GLOO_SOCKET_IFNAME="lo",
            **env,
        )
        self._processes.append(
            subprocess.Popen(
                command,
                env=full,
                stdin=subprocess.DEVNULL,
                stdout=self._log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        )

    def until(self, found, what: str):
        """Returns what found(lines) returns, as soon as that is not None; lines are the notes so
        far. Blocks for limit_s seconds at most, and raises Failure then, or when a process has
        failed that was not killed here. `what` says in the failure what was waited for.
        """
        end = time.monotonic() + self._limit_s
        while True:
            result = found(shape.read_notes(self.folder))
            if result is not None:
                return result
            left = (p for p in self._processes if p.pid not in self._killed)
            over = [p for p in left if p.poll() not in (None, 0)]
            if over or time.monotonic() > end:
                why = f"exit code {over[0].returncode}" if over else f"{self._limit_s:.0f} s"
                words = (self.folder / "output.txt").read_text()[-3000:]
                raise turns.Failure(f"{type(self).__name__}: {why} without {what}\n{words}")
            time.sleep(0.002)

    def kill(self, pid: int) -> None:
        """Kill a worker by its process id. Does not wait for its end."""
        self._killed.add(pid)
        os.kill(pid, signal.SIGKILL)

    def end(self) -> None:
        """End all processes of this training, with 20 s each to stop by themselves, and return when
        those are gone that run has started. Nothing may be called after it.
        """
        self.stop()
        for process in self._processes:
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(20)
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
        for pid in {line["pid"] for line in shape.read_notes(self.folder)}:
            # torchrun starts its workers in sessions of their own
            with contextlib.suppress(OSError):
                if self.worker in pathlib.Path(f"/proc/{pid}/cmdline").read_text():
                    os.kill(pid, signal.SIGKILL)
        self._log.close()


class Shoal(Training):
    """The Trainer of transformers on shoal. The launcher is one process of run, and so is each
    order.
    """

    options: tuple[str, ...] = ()

    def start(self) -> None:
        """Start one worker fewer than there are to be."""
        self._name = f"bench-{os.getpid()}-{time.monotonic_ns()}"
        n = ("-n", str(self.workers - 1), "--min", "1", "--name", self._name)
        command = self.command(trainer="shoal", batch=self.workers)
        logs = ("--log-dir", str(self.folder / "run"))
        self.run(turns.SHOAL, "run", *n, *logs, *self.options, "--", *command)

    def order(self) -> None:
        """Order the worker that is missing, by shoal resize."""
        self.run(turns.SHOAL, "resize", self._name, str(self.workers))


class Prefork(Shoal):
    """The same with `--prefork torch,transformers`."""

    options = PREFORK


class Torchrun(Training):
    """The Trainer of transformers on torchrun, which restarts all workers from a checkpoint."""

    save = SAVE

    def start(self) -> None:
        """Start one worker fewer than there are to be."""
        self._port = free_port()
        self._agent(self.workers - 1)

    def order(self) -> None:
        """Start another torchrun with one worker, as on another host."""
        self._agent(1)

    def _agent(self, workers: int) -> None:
        """Start a torchrun with so many workers, as a host of the training."""
        options = (
            "--nnodes=1:2",
            f"--nproc-per-node={workers}",
            "--rdzv-backend=c10d",
            f"--rdzv-endpoint=127.0.0.1:{self._port}",
            f"--rdzv-id={self.folder.name}",
            f"--rdzv-conf=last_call_timeout={LAST_CALL_S}",
            "--max-restarts=100",
        )
        command = self.command(trainer="transformers", batch=1)[1:]
        self.run(sys.executable, "-m", "torch.distributed.run", *options, *command, **NO_SHARING)


class Torchft(Training):
    """A loop of its own on torchft: each worker is a replica group, beside a lighthouse."""

    worker = "worker_torchft.py"

    def start(self) -> None:
        """Start the lighthouse, and one worker fewer than there are to be."""
        port = free_port()
        self._lighthouse = f"http://127.0.0.1:{port}"
        bind = ("--bind", f"127.0.0.1:{port}")
        program = str(TORCHFT / "bin" / "torchft_lighthouse")
        self.run(sys.executable, program, *LIGHTHOUSE, *bind, PYTHONPATH=str(TORCHFT))
        self._started = 0
        for _ in range(self.workers - 1):
            self.order()

    def order(self) -> None:
        """Start a worker more; its number makes its name and its data."""
        command = self.command(batch=1, number=self._started)
        self.run(*command, PYTHONPATH=str(TORCHFT), TORCHFT_LIGHTHOUSE=self._lighthouse)
        self._started += 1


SYSTEMS = {
    "shoal": Shoal,
    "shoal --prefork": Prefork,
    "torchrun": Torchrun,
    "torchft": Torchft,
}
