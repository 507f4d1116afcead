"""Workers that are forked from a process which has imported their modules (shoal run --prefork)."""

import json
import os
import pathlib
import re
import signal
import subprocess
import sys

import pytest
import running_job
from conftest import ROOT

WORKER = pathlib.Path(__file__).with_name("soak_worker.py")

# What a program finds when it starts, as a line of JSON.
FOUND = """
import json, os, signal, sys, threading
loaded = "marked" in sys.modules
import marked
import random
import shoal
job = shoal.join()
try:
    import numpy.random
    drawn = numpy.random.random()
except ImportError:
    drawn = None
main = sys.modules["__main__"]
def double(number: int): return 2 * number
print("FOUND", json.dumps({
    "loaded": loaded,
    "argv": sys.argv,
    "path": sys.path,
    "name": [__name__, __file__, str(__spec__ and __spec__.name), __package__],
    "main": main.__dict__ is globals(),
    "annotation": repr(double.__annotations__["number"]),
    "environment": {k: v for k, v in os.environ.items() if k not in (
        "SHOAL_TOKEN", "SHOAL_SOCKET", "SHOAL_RUN", "SHOAL_JOB", "SHOAL_JOB_RUN",
        "MASTER_PORT")},
    "folder": os.getcwd(),
    "threads": len(os.listdir("/proc/self/task")) - 1,  # the client has one
    "group": os.getpgrp() == os.getpid(),
    "signals": [str(signal.getsignal(s)) for s in (2, 13, 15, 17)],
    "input": sys.stdin.read(),
    "files": [os.readlink(f"/proc/self/fd/{f}").split(":")[0] for f in "012"],
    "copy": os.path.sameopenfile(marked.copy, 2),
    "command": [w for w in open("/proc/self/cmdline").read().split("\\0") if w],
    "random": [random.random(), drawn],
}), flush=True)
"""
MARKED = """
import os
copy = os.dup(2)
os.environ["MARKED"] = "by an import"
os.environ["RANK_OF_NOBODY"] = os.environ.get("RANK", "none")
"""


def run_job(launch, options, program, *arguments, code=0, env=None):
    """Run a job of two workers to its end, which must have exit code `code`, and return its output;
    `options` are those of shoal run.
    """
    process = launch.start(2, program, *arguments, options=options, env=env)
    output, _ = process.communicate(timeout=running_job.HANG)
    assert process.returncode == code, output
    return output


def parse_found(output):
    """What the ranks that ran FOUND have found, by their output: a dict each, in rank order."""
    lines = [json.loads(line) for line in re.findall(r"FOUND (.*)", output)]
    return sorted(lines, key=lambda one: one["environment"]["SHOAL_RANK"])


def test_a_fork_finds_what_a_new_process_finds(launch, tmp_path):
    """A fork finds what a new process finds, but for what it saves time with: the modules are there
    already. The program is a link: what it imports is beside its file.
    """
    (tmp_path / "program.py").write_text(FOUND)
    (tmp_path / "marked.py").write_text(MARKED)
    (tmp_path / "links").mkdir()
    program = tmp_path / "links" / "program.py"
    program.symlink_to(tmp_path / "program.py")
    options = ["--env", "LEVEL=3", "--prefork"]
    forked = parse_found(run_job(launch, [*options, "marked"], program, "--epochs", "3"))
    anew = parse_found(run_job(launch, options[:-1], program, "--epochs", "3"))
    assert [one.pop("loaded") for one in forked + anew] == [True, True, False, False]
    drawn = [one.pop("random") for one in forked + anew]
    assert len({draw[0] for draw in drawn}) == 4, "two workers draw the same"
    assert len({draw[1] for draw in drawn}) in (1, 4), "two workers draw the same from NumPy"
    for one in forked + anew:  # an import that asks for the rank gets none in the template
        one["environment"].pop("RANK_OF_NOBODY")
    assert forked == anew
    assert forked[0]["environment"]["MARKED"] == "by an import"


def test_a_module_is_run_as_the_interpreter_does(binary, tmp_path):
    """With --prefork `python3 -m` gives a module the names and arguments that the interpreter gives
    it.
    """
    (tmp_path / "program.py").write_text(FOUND)
    (tmp_path / "marked.py").write_text(MARKED)
    command = [str(binary), "run", "--prefork", "marked", "--", sys.executable]
    command += ["-m", "program", "x"]
    env = {**os.environ, "PYTHONPATH": str(ROOT / "python")}
    ran = subprocess.run(command, cwd=tmp_path, env=env, stdout=subprocess.PIPE, text=True)
    (one,) = parse_found(ran.stdout)
    assert one["loaded"] and one["argv"] == [str(tmp_path / "program.py"), "x"]
    assert one["name"] == ["__main__", str(tmp_path / "program.py"), "program", ""]


def test_how_a_fork_ends_is_known(launch, tmp_path):
    """The launcher tells the exit code or the signal of a fork, whose traceback begins with the
    program. What runs at exit knows of the error too, as in a new process.
    """
    program = (
        "import atexit, os, sys\n"
        "atexit.register(lambda: print('ENDED BY', repr(sys.last_value), file=sys.stderr))\n"
        "if len(sys.argv) > 1: os.kill(os.getpid(), 9)\n"
        "1 / 0\n"
    )
    (tmp_path / "program.py").write_text(program)
    program = tmp_path / "program.py"
    output = run_job(launch, ["--prefork", "json"], program, code=1)
    assert "exited with code 1" in output
    first = re.search(r"^\[[01]\] ", output, re.M)  # the other one may be ended before it fails
    assert first, output
    lines = [line[4:] for line in output.splitlines() if line.startswith(first.group())]
    assert lines[:2] == [
        "Traceback (most recent call last):",
        f'  File "{program}", line 4, in <module>',
    ], output
    assert "] ENDED BY ZeroDivisionError('division by zero')\n" in output, output
    assert "was killed by SIGKILL" in run_job(
        launch, ["--prefork", "json"], program, "kill", code=1
    )


UNSAFE = {
    "import threading, time\n"
    "threading.Thread(target=time.sleep, args=(1000,), daemon=True).start()\n": (
        r"what was imported has started a thread \(.*\), which a fork would not have"
    ),
    "import os\nkept = open('/etc/passwd')\n": (
        "what was imported has opened /etc/passwd, which all workers would share"
    ),
    "import subprocess\nchild = subprocess.Popen(['sleep', '1000'])\n": (
        "what was imported has started processes, which a fork would not have"
    ),
    # As torch does where CUDA was begun, though no tensor is on a GPU yet.
    "import os, sys, types\n"
    "here = os.getpid()\n"
    "sys.modules['torch'] = types.SimpleNamespace(cuda=types.SimpleNamespace(\n"
    "    _is_in_bad_fork=lambda: os.getpid() != here, device_count=lambda: 1))\n": (
        "what was imported has begun CUDA, and no fork could use a GPU"
    ),
    "import no_such_module\n": (
        "cannot import unsafe: ModuleNotFoundError: No module named 'no_such_module'"
    ),
    "raise RuntimeError('no data:\\n  give a folder')\n": (
        "cannot import unsafe: RuntimeError: no data: give a folder"
    ),
    "raise SystemExit(3)\n": "cannot import unsafe: SystemExit: 3",
}


@pytest.mark.parametrize(
    "source", UNSAFE, ids=["thread", "file", "process", "cuda", "error", "lines", "exit"]
)
def test_what_cannot_be_forked_is_said(launch, tmp_path, source):
    """The user is told what was imported that cannot be forked, and workers are started anew."""
    (tmp_path / "unsafe.py").write_text(source)
    program = tmp_path / "program.py"
    program.write_text("import shoal\nprint('SIZE', shoal.join().size, flush=True)\n")
    output = run_job(launch, ["--prefork", "unsafe"], program)
    assert re.search(
        f"shoal: workers are started without --prefork from now on: {UNSAFE[source]}", output
    ), output
    assert output.count("SIZE 2") == 2


# As torch on a machine without a GPU, where a library has asked for one, as DeepSpeed does.
WITHOUT_GPU = """
import os, sys, types
here, asked = os.getpid(), os.environ.get("PYTORCH_NVML_BASED_CUDA_CHECK")
sys.modules["torch"] = types.SimpleNamespace(cuda=types.SimpleNamespace(
    _is_in_bad_fork=lambda: os.getpid() != here, device_count=lambda: 0))
"""


def test_where_no_gpu_is_who_asks_for_one_can_be_forked(launch, tmp_path, monkeypatch):
    """Imports are asked to find GPUs without CUDA; where there is none, to have begun it does no
    harm. The program's environment says nothing of it.
    """
    monkeypatch.delenv("PYTORCH_NVML_BASED_CUDA_CHECK", raising=False)
    (tmp_path / "marked.py").write_text(WITHOUT_GPU)
    program = tmp_path / "program.py"
    program.write_text(
        "import os, sys\nprint('ASKED', sys.modules['marked'].asked,"
        " os.environ.get('PYTORCH_NVML_BASED_CUDA_CHECK'), flush=True)\n"
    )
    output = run_job(launch, ["--prefork", "marked"], program)
    assert output.count("ASKED 1 None") == 2, output


def template_of(job):
    """The process id of the template of a Running that has one: the parent of its first worker."""
    return parent_of(min(job.workers().values()))


def test_the_loss_of_a_template_costs_nothing(launch, binary, tmp_path):
    """A killed fork is replaced by another. When the template is killed its workers go on, and
    later ones are started anew.
    """
    options = ["--prefork", "numpy"]
    pytest.importorskip("numpy")
    end = tmp_path / "end"
    with running_job.running(launch, binary, end, 2, WORKER, 0, "-", options=options) as job:
        template = template_of(job)
        job.kill(1)
        job.resize(2)
        assert all(template == parent_of(pid) for pid in job.workers().values())
        before = set(job.workers().values())
        os.kill(template, signal.SIGKILL)
        job.read_until("workers are started without --prefork from now on: their template process")
        job.wait_for_new_step()
        job.resize(3)
        assert before < set(job.workers().values())
        output = job.finish()
    assert "was killed by SIGKILL" in output and output.count("RESULT") == 3


def parent_of(pid):
    """The process id of a process's parent."""
    with open(f"/proc/{pid}/stat") as stat:
        return int(stat.read().rpartition(") ")[2].split()[1])
