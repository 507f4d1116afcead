"""The programs that are compared: each runs on all hosts of a network and returns a line a size."""

from __future__ import annotations

import contextlib
import json
import os
import pathlib
import shlex
import signal
import subprocess
import tempfile
import time

from network import Network
from turns import BUILD, PYTHON, ROOT, SHOAL, Failure

PORT = "7077"  # at which the first host listens
PRIORITY = -10  # a nice value, of all programs alike: what else this machine does disturbs less


class Processes:
    """What a program runs as. All of its processes are killed at the end of the with statement, and
    their folder is removed. One thread uses it.
    """

    def __init__(self, limit_s: float) -> None:
        """Nothing yet; what is started may run for so many seconds from now."""
        self._folder = tempfile.TemporaryDirectory()
        self.folder = pathlib.Path(self._folder.name)
        self._end = time.monotonic() + limit_s
        self._all: list[subprocess.Popen] = []

    def start(self, command: list[str], **env: str) -> None:
        """Starts a process, with these variables in its environment, and its output in the file
        `said` and its number, from 0 on, in self.folder. Does not wait for it.
        """
        with open(self.folder / f"said{len(self._all)}", "w") as said:
            self._all.append(
                subprocess.Popen(
                    command,
                    env={**os.environ, "PYTHONPATH": str(ROOT / "python"), **env},
                    stdout=said,
                    stderr=subprocess.STDOUT,
                    start_new_session=True,
                )
            )
        # a scheduler that shares the processors out over sessions looks at these, not at processes
        with contextlib.suppress(OSError):
            pathlib.Path(f"/proc/{self._all[-1].pid}/autogroup").write_text(str(os.nice(0)))

    def process(self, number: int) -> subprocess.Popen:
        """Returns a process by its number, which leads a process group of its own."""
        return self._all[number]

    def running(self) -> bool:
        """Waits for a moment, and returns whether the first process still runs; raises Failure if
        that does not end well or in time.
        """
        code = self._all[0].poll()
        if code or code is None and time.monotonic() > self._end:
            words = "\n".join(
                (self.folder / f"said{i}").read_text()[-1000:] for i in range(len(self._all))
            )
            raise Failure(
                f"{'no end' if code is None else f'exit {code}'}:"
                f" {shlex.join(self._all[0].args)}\n{words}"
            )
        time.sleep(0.02)
        return code is None

    def results(self) -> list[dict]:
        """Waits until the first process ends, and returns the JSON lines that it has printed;
        raises Failure as running does.
        """
        while self.running():
            pass
        return json_lines((self.folder / "said0").read_text())

    def __enter__(self) -> Processes:
        """Nothing is started here."""
        return self

    def __exit__(self, *_: object) -> None:
        """Kills the processes with all that they have started, and waits for them."""
        for p in self._all:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(p.pid, signal.SIGKILL)
            p.wait()
        self._folder.cleanup()


def compile_openmpi() -> None:
    """Compiles the measuring program of OpenMPI into BUILD; raises CalledProcessError if that
    fails.
    """
    BUILD.mkdir(parents=True, exist_ok=True)
    source = ROOT / "bench" / "peers" / "allreduce_mpi.c"
    subprocess.run(
        [
            "mpicc.openmpi",
            "-O3",
            "-march=native",
            "-Wall",
            "-o",
            BUILD / "allreduce_openmpi",
            source,
        ],
        check=True,
    )


def json_lines(text: str) -> list[dict]:
    """Returns the lines of a text that are JSON objects."""
    return [
        json.loads(line)
        for line in text.splitlines()
        if line.startswith("{") and line.endswith("}")
    ]


def shoal(net: Network, workers: int, sizes: list[int], limit_s: float, *flags: str) -> list[dict]:
    """Runs shoal run on the first host and shoal agent on the others, with so many workers on each
    host, and returns the lines, one a size in bytes. These also say what the busiest host sent for
    a call: sent_bytes. Raises Failure if it fails or takes longer than limit_s, as all programs
    here.
    """
    with Processes(limit_s) as all_:
        home, token = str(all_.folder), all_.folder / "token"
        env = {"XDG_RUNTIME_DIR": home, "XDG_STATE_HOME": home}
        place = ["--slots", str(workers), "--token-file", str(token), "--log-dir", home]
        job = ["-n", str(len(net.hosts) * workers), "--name", "bench", *flags]
        all_.start(
            net.command(
                0,
                SHOAL,
                "run",
                *job,
                "--listen",
                f"{net.address[0]}:{PORT}",
                *place,
                "--",
                SHOAL,
                "bench",
                "allreduce-worker",
                *map(str, sizes),
            ),
            **env,
        )
        while not token.exists() and all_.running():
            pass
        for h in net.hosts[1:]:
            all_.start(
                net.command(h, SHOAL, "agent", "--join", f"{net.address[0]}:{PORT}", *place), **env
            )
        lines: list[dict] = []
        before, running = net.sent_bytes(), True
        while running:
            running = all_.running()
            told = [
                line["metrics"]
                for path in all_.folder.glob("*/metrics.jsonl")
                for line in json_lines(path.read_text())
            ]
            if len(told) > len(lines):
                sent = net.sent_bytes()
                line = told[len(lines)]
                lines.append(
                    dict(line, sent_bytes=max(b - a for a, b in zip(before, sent)) / line["calls"])
                )
                before = sent
    return lines


def shoal_plain(net: Network, workers: int, sizes: list[int], limit_s: float) -> list[dict]:
    """Runs shoal without encryption of tensors, as the others are."""
    return shoal(net, workers, sizes, limit_s, "--unencrypted-data")


def shoal_fixed(net: Network, workers: int, sizes: list[int], limit_s: float) -> list[dict]:
    """Runs shoal with routes that follow the lengths alone, whatever is measured."""
    return shoal(net, workers, sizes, limit_s, "--fixed-routes")


def gloo(net: Network, workers: int, sizes: list[int], limit_s: float) -> list[dict]:
    """Runs torch.distributed's all-reduce, every rank a process with one torch thread."""
    ranks = len(net.hosts) * workers
    with Processes(limit_s) as all_:
        for rank in range(ranks):
            all_.start(
                net.command(
                    rank // workers,
                    PYTHON,
                    str(ROOT / "bench" / "peers" / "allreduce_gloo.py"),
                    str(ranks),
                    *map(str, sizes),
                ),
                GLOO_RANK=str(rank),
                GLOO_STORE=str(all_.folder / "store"),
                GLOO_SOCKET_IFNAME="eth0",
                OMP_NUM_THREADS="1",
            )
        return all_.results()


def openmpi(net: Network, workers: int, sizes: list[int], limit_s: float) -> list[dict]:
    """Runs MPI_Allreduce over OpenMPI's TCP between the hosts, and its shared memory inside one;
    ranks yield, as all share one machine.
    """
    with Processes(limit_s) as all_:
        enter = all_.folder / "enter"  # mpirun's way to other hosts, in place of ssh
        cases = "".join(
            f'{net.address[h]}) exec {shlex.join(net.command(h, "sh", "-c"))} "$*";;\n'
            for h in net.hosts
        )
        enter.write_text(f"#!/bin/sh\nat=$1; shift\ncase $at in\n{cases}esac\n")
        enter.chmod(0o755)
        settings = {
            "plm_rsh_agent": str(enter),
            "btl": "tcp,self,vader",
            "btl_tcp_if_include": "eth0",
            "oob_tcp_if_include": "eth0",
            "mpi_yield_when_idle": "1",
        }
        all_.start(
            net.command(
                0,
                "mpirun.openmpi",
                "--allow-run-as-root",
                "--bind-to",
                "none",
                *(word for name, value in settings.items() for word in ("--mca", name, value)),
                "--host",
                ",".join(f"{address}:{workers}" for address in net.address),
                "-np",
                str(len(net.hosts) * workers),
                str(BUILD / "allreduce_openmpi"),
                *map(str, sizes),
            )
        )
        return all_.results()


PROGRAMS = {
    "shoal": shoal,
    "shoal-plain": shoal_plain,
    "shoal-fixed": shoal_fixed,
    "gloo": gloo,
    "openmpi": openmpi,
}
