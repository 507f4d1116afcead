"""Runs a function of a test file on every rank of a job: `world` is called by the test, and starts
the file as a script on each rank, where `main` calls the function.

def _ranks(x):                      # runs on each rank, with torch and shoal imported there
    return shoal.join().rank + x

def test_it():
    assert world(2, _ranks, 40) == [40, 41]

if __name__ == "__main__":
    main(globals())
"""

import atexit
import functools
import json
import os
import pathlib
import subprocess
import sys
import tempfile

from running_job import HANG

ROOT = pathlib.Path(__file__).resolve().parents[2]
SHOAL = ROOT / "bin" / "shoal"


# What the trainers of other people import, a value of --prefork.
TRAINERS = "accelerate,lightning.pytorch,transformers.trainer"
SERVERS = []  # the process ids of those that `start_server` has started


class Failed(AssertionError):
    """The job did not end with 0; the text is what it printed."""


@functools.lru_cache
def start_server(*modules):
    """Start rank_server.py, once for all tests that want these modules beside torch, and wait until
    it is ready; return the path of its socket. It is killed when pytest's process ends. A server
    with modules is a fork of the one without, so that torch is imported once.
    """
    folder = tempfile.TemporaryDirectory()
    path = os.path.join(folder.name, "socket")
    tests = ROOT / "python/tests"
    env = dict(os.environ, PYTHONPATH=f"{ROOT / 'python'}:{tests}", OMP_NUM_THREADS="1")
    command = [sys.executable, "-c", "from rank_server import main; main()", path]
    if modules:
        env["RANK_SERVER"] = start_server()
        words = [tests / "rank.py", tests / "rank_server.py", path, *modules]
        command = [sys.executable, "-SE", *words]
    process = subprocess.Popen(
        command, env=env, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, text=True
    )

    def stop():
        """End the server, and remove its socket."""
        process.kill()
        process.wait()
        folder.cleanup()

    atexit.register(stop)
    for line in process.stdout:  # what is imported may print lines before
        ready, _, pid = line.partition(" ")
        if ready == "ready":
            SERVERS.append(int(pid))
            return path
    raise Failed("rank_server.py does not start")


def processor_seconds():
    """The processor seconds of the servers and of all their forks that have ended."""
    fields = (pathlib.Path(f"/proc/{pid}/stat").read_text().split() for pid in SERVERS)
    return sum(sum(map(int, each[13:17])) for each in fields) / os.sysconf("SC_CLK_TCK")


def template_words(modules):
    """The words of `shoal run` before the program, with which a job has its workers forked as with
    --prefork, whose value is `modules`: torch, or what imports it too. The template process is
    itself a fork of `start_server`, which is started at the first call, and so imports nothing
    anew. The workers are processes as those of any job, and may be killed.
    """
    return ["--prefork", modules, "--", str(interpreter(modules))]


def interpreter(modules):
    """The path of a Python that does not import these modules anew, which are as for
    `template_words`: `start_server` forks what runs a program, and what is the template of a job.
    Where a rank is started so without a template, it is two processes.
    """
    socket = start_server(*(m for m in modules.split(",") if m != "torch"))
    python = pathlib.Path(socket).with_name("python3")
    rank = ROOT / "python/tests/rank.py"
    if not python.exists():
        python.write_text(
            f'#!/bin/sh\nRANK_SERVER={socket} exec {sys.executable} -SE {rank} "$@"\n'
        )
        python.chmod(0o700)
    return python


def world(n, function, *args, modules=()):
    """Call function(*args) on n ranks under `shoal run`, and wait for them; return what the ranks
    return (JSON values), in rank order. The function is one of a test file's own, and `args` are
    JSON values. Raises Failed where the job does, and TimeoutExpired after HANG seconds. The ranks
    are forks of `start_server`, which has imported `modules`.
    """
    script = sys.modules[function.__module__].__file__
    with tempfile.TemporaryDirectory() as results:
        env = dict(
            os.environ,
            PYTHONPATH=f"{ROOT / 'python'}",
            RANK_SERVER=start_server(*modules),
            RESULTS=results,
            OMP_NUM_THREADS="1",
        )
        command = [
            str(SHOAL),
            "run",
            "-n",
            str(n),
            "--",
            sys.executable,
            "-SE",
            ROOT / "python/tests/rank.py",
            script,
            function.__name__,
            json.dumps(args),
        ]
        ran = subprocess.run(
            command,
            env=env,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=HANG,
        )
        if ran.returncode != 0:
            raise Failed(f"exit code {ran.returncode}\n{ran.stdout[-6000:]}")
        return [json.loads((pathlib.Path(results) / str(rank)).read_text()) for rank in range(n)]


def main(functions):
    """Run one rank's part of a test file, which was started as a script by `world`: the command
    line names one of these functions, the globals of the file, and its arguments. Write its result
    where `world` reads it.
    """
    name, args = sys.argv[1], json.loads(sys.argv[2])
    result = functions[name](*args)
    (pathlib.Path(os.environ["RESULTS"]) / os.environ["SHOAL_RANK"]).write_text(json.dumps(result))
