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


class Failed(AssertionError):
    """The job did not end with 0; the text is what it printed."""


@functools.lru_cache
def server(*modules):
    """Start rank_server.py, once for all tests that want these modules beside torch, and wait until
    it is ready; return the path of its socket. It is killed when pytest's process ends.
    """
    folder = tempfile.TemporaryDirectory()
    path = os.path.join(folder.name, "socket")
    env = dict(os.environ, PYTHONPATH=f"{ROOT / 'python'}", OMP_NUM_THREADS="1")
    process = subprocess.Popen(
        [sys.executable, ROOT / "python/tests/rank_server.py", path, *modules],
        env=env,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
    )

    def stop():
        """End the server, and remove its socket."""
        process.kill()
        process.wait()
        folder.cleanup()

    atexit.register(stop)
    if process.stdout.readline() != b"ready\n":
        raise Failed("rank_server.py does not start")
    return path


def world(n, function, *args, forked=True, modules=()):
    """Call function(*args) on n ranks under `shoal run`, and wait for them; return what the ranks
    return (JSON values), in rank order. The function is one of a test file's own, and `args` are
    JSON values. Raises Failed where the job does, and TimeoutExpired after HANG seconds. With
    `forked` the ranks are forks of `server`, which has imported `modules`; where it matters how a
    rank ends, it must not be forked.
    """
    script = sys.modules[function.__module__].__file__
    with tempfile.TemporaryDirectory() as results:
        env = dict(
            os.environ,
            PYTHONPATH=f"{ROOT / 'python'}",
            RANK_SERVER=server(*modules) if forked else "",
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
            *(["-SE", ROOT / "python/tests/rank.py"] if forked else []),
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
