"""A job on a mesh over two hosts loses one of them, or leaves it: the losses are those of an
undisturbed training.
"""

import contextlib
import os
import pathlib
import re
import signal
import subprocess
import sys
import tempfile
import threading

import pytest

pytest.importorskip("numpy")

import running_job
from test_live import WORKER, Training, meshes_of


class Hosts:
    """A job of two workers on each of two hosts, which are launchers beside each other. It begins
    on host a; what host b prints is in a file. Made by the fixture `two_hosts`, which ends all of
    it; for the thread of the test.
    """

    def __init__(self, job, head, other, folder):
        """The job, a Training; the launchers of host a and of host b, processes; and the folder of
        their files.
        """
        self.job, self.head, self.other, self._folder = job, head, other, folder

    def shoal(self, host, *words):
        """Run a command of shoal on host "a" or "b", and wait for it; return its exit code, and
        what it says.
        """
        env = {**os.environ, "XDG_RUNTIME_DIR": str(self._folder / host)}
        done = subprocess.run(
            [self.job._binary, *words],
            env=env,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=running_job.HANG,
        )
        return done.returncode, done.stdout

    def wait_for_output_of_b(self, pattern=""):
        """Wait until what host b has printed so far has the pattern, and return all of it. Fails
        when its launcher ends before.
        """
        while not re.search(pattern, said := (self._folder / "b.txt").read_text()):
            assert self.other.poll() is None, said
        return said


@pytest.fixture
def two_hosts(binary, tmp_path, monkeypatch):
    """Returns train(mesh, *options), which begins a job on both hosts with these options of shoal
    run, and returns Hosts; kinds are those of the two hosts. What it starts is killed at the end of
    the test.
    """
    with contextlib.ExitStack() as stack:
        # the path of a socket must be short
        folder = pathlib.Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="hosts")))

        def start(host, *words):
            """Start shoal with these words as the launcher of host "a", whose output is a pipe, or
            "b", whose output is a file.
            """
            (folder / host).mkdir()
            env = {
                **os.environ,
                "PYTHONPATH": str(WORKER.parents[1]),
                "OMP_NUM_THREADS": "1",
                "XDG_RUNTIME_DIR": str(folder / host),
                "XDG_STATE_HOME": str(folder / host),
            }
            with open(folder / f"{host}.txt", "w") as output:
                process = subprocess.Popen(
                    [str(binary), *map(str, words)],
                    env=env,
                    stdout=subprocess.PIPE if host == "a" else output,
                    stderr=subprocess.STDOUT,
                    text=True,
                )
            stack.callback(process.wait)
            stack.callback(process.kill)
            return process

        def train(mesh, *options, kinds=("cpu", "cpu")):
            """Begin a job on both hosts; return it when host b was started, which may be before it
            trains.
            """
            lent = ["--token-file", folder / "token", "--slots", 2]
            head = start(
                "a",
                "run",
                "-n",
                4,
                "--name",
                "train",
                *options,
                "--listen",
                "127.0.0.1:0",
                *lent,
                "--kind",
                kinds[0],
                "--",
                sys.executable,
                WORKER,
                mesh,
                1 << 20,
            )
            stack.callback(head.stdout.close)
            hang = threading.Timer(running_job.HANG, head.terminate)
            hang.start()
            stack.callback(hang.cancel)
            job = Training(str(binary), head, tmp_path / "end")
            other = start(
                "b",
                "agent",
                "--join",
                job.read_until(r"shoal agent --join (\S+) ")[1],
                "--name",
                "b",
                *lent,
                "--kind",
                kinds[1],
            )
            monkeypatch.setenv("XDG_RUNTIME_DIR", str(folder / "a"))
            return Hosts(job, head, other, folder)

        yield train


def test_a_lost_host_costs_no_state_of_a_redundant_job(two_hosts):
    """Each host begins with both replicas of a part of the state. After the first step they are on
    two hosts, so everything on one can be killed.
    """
    hosts = two_hosts("tp=2,dp=2", "--redundant")
    job = hosts.job
    job.read_until("the workers take other ranks of mesh tp=2,dp=2")
    job.read_until("STEP [2-9] on tp=2,dp=2")
    plan = job.reshape("dp=2,tp=1", "--dry-run")
    assert "alone          0 bytes on one host only" in plan, plan
    for pid in [hosts.other.pid, *(w["pid"] for w in job.members() if w["host"] == "b")]:
        os.kill(pid, signal.SIGKILL)
    job.read_until("STEP [0-9]+ on tp=2,dp=1 ")
    assert job.stop() == ["tp=2,dp=2", "tp=2,dp=1"]
    assert "only lost ones had" not in job.output


def test_ranks_are_on_hosts_of_the_kinds_that_the_mesh_names(two_hosts):
    """They come there at the start, with a reshape, and not at all where a kind lacks workers; a
    host that is lost takes only the kinds of its axis with it.
    """
    hosts = two_hosts("dp=2(on=v100/a100),tp=2", kinds=("a100", "v100"))
    job = hosts.job

    def kinds_by_rank():
        """The kind of the host of each rank."""
        code, said = hosts.shoal("a", "ps", "train")
        assert code == 0 and "b (v100)" in said and " (a100)" in said, said
        at = sorted((w["rank"], w["host"]) for w in job.members())
        return ["v100" if host == "b" else "a100" for _, host in at]

    job.read_until(r"ranks are on hosts of other kinds .* ranks of mesh dp=2\(on=v100/a100\),tp=2")
    job.read_until(r"STEP [2-9] on dp=2\(on=v100/a100\),tp=2 ")
    assert kinds_by_rank() == ["v100", "v100", "a100", "a100"]
    job.reshape("dp=2,tp=2(on=a100/v100)")
    assert kinds_by_rank() == ["a100", "v100", "a100", "v100"]
    for option in ([], ["--dry-run"]):
        wanted = ["reshape", "train", "--mesh", "dp=4(on=a100/v100/v100/v100),tp=1"]
        code, said = hosts.shoal("a", *wanted, *option)
        assert code == 1 and "kind a100: 1, v100: 3; there are a100: 2, v100: 2" in said, said
    job.reshape("dp=2(on=a100/v100),tp=2")
    assert kinds_by_rank() == ["a100", "a100", "v100", "v100"]
    for pid in [hosts.other.pid, *(w["pid"] for w in job.members() if w["host"] == "b")]:
        os.kill(pid, signal.SIGKILL)
    job.read_until("STEP [0-9]+ on dp=1,tp=2 ")
    assert job.stop() == [
        "dp=2(on=v100/a100),tp=2",
        "dp=2,tp=2(on=a100/v100)",
        "dp=2(on=a100/v100),tp=2",
        "dp=1,tp=2",
    ]


def test_a_mesh_for_which_the_hosts_lack_slots_is_waited_for(two_hosts):
    """Who asks for it is told what it lacks, and how another host joins; the job trains on."""
    hosts = two_hosts("tp=2,dp=2")
    job = hosts.job
    job.read_until("STEP [2-9] on tp=2,dp=2 ")
    code, said = hosts.shoal("a", "reshape", "train", "--mesh", "tp=2,dp=3", "--no-wait")
    lacks = "shoal: no host has a free slot for 2 workers, since the hosts have 4 slots in all; the"
    assert code == 0 and f"\n{lacks} job goes on, and starts them when a host joins" in said, said
    job.wait_for_new_step()
    assert job.stop() == ["tp=2,dp=2"]


@pytest.mark.parametrize(
    "mesh, then, ask", [("tp=2,dp=2", "tp=2,dp=1", "SIGTERM"), ("dp=1,tp=4", "dp=1,tp=2", "drain")]
)
def test_a_host_is_left(two_hosts, mesh, then, ask):
    """A part of the state is on the host that is left and on no other. Nothing is lost with it, and
    no step made again.
    """
    hosts = two_hosts(mesh)
    job = hosts.job
    job.read_until(f"STEP [2-9] on {mesh} ")
    if ask == "drain":
        code, said = hosts.shoal("a", "drain", "train", "b")
        assert code == 0 and "released when those on other hosts have the state" in said, said
    else:
        hosts.other.send_signal(signal.SIGTERM)
    job.read_until(f"STEP [0-9]+ on {then} ")
    assert hosts.other.wait(running_job.HANG) == 0, hosts.wait_for_output_of_b()
    job.wait_for_new_step()
    assert job.stop() == [mesh, then]
    assert (
        f"the job leaves b; from mesh {mesh} to {then}" in job.output and "void" not in job.output
    )


def test_the_host_that_leads_is_left(two_hosts):
    """When the host that leads leaves, the other one leads, and no step is made again."""
    hosts = two_hosts("dp=2,tp=2")
    hosts.job.read_until("STEP [2-9] on dp=2,tp=2 ")
    hosts.head.send_signal(signal.SIGTERM)
    hosts.wait_for_output_of_b("STEP [0-9]+ on dp=1,tp=2 ")
    output = hosts.job.output + hosts.head.stdout.read()
    assert hosts.head.wait() == 0 and "it goes on on host b" in output, output
    assert hosts.shoal("b", "stop", "train")[0] == 0
    assert hosts.other.wait(running_job.HANG) == 0
    output += hosts.wait_for_output_of_b()
    assert "void" not in output and "Traceback" not in output, output
    # a line can be shown by both
    lines = {line for line in re.findall(r"STEP \d+ on \S+ loss \S+", output)}
    assert meshes_of("\n".join(sorted(lines, key=lambda line: int(line.split()[1])))) == [
        "dp=2,tp=2",
        "dp=1,tp=2",
    ]


def test_hosts_that_the_job_needs_are_kept(two_hosts):
    """A host is kept where the others could not hold a mesh of as many ranks as the job must have.
    All who ask are told, and the job trains on.
    """
    hosts = two_hosts("dp=2,tp=2", "--min", 3)
    job, why = (
        hosts.job,
        (
            "without it the mesh has 2 ranks, and the job's minimum is 3 workers. Have more workers"
            " on other hosts first"
        ),
    )
    job.read_until("STEP [2-9] on ")
    code, said = hosts.shoal("a", "drain", "train", "b")
    assert code == 1 and f"host b keeps its workers: the job needs b: {why}" in said, said
    hosts.other.send_signal(signal.SIGTERM)
    job.read_until(f"host b asks to leave .*{why}")
    hosts.wait_for_output_of_b(f"this host cannot leave: the job needs b: {why}")
    hosts.head.send_signal(signal.SIGTERM)
    job.read_until(f"this host cannot leave: .*{why}")
    job.wait_for_new_step()
    assert job.stop() == ["dp=2,tp=2"]
