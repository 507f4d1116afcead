"""What an agent takes comes back: its descriptors and its memory, after workers were killed, beside
many short jobs, and under connections that nobody goes on with.

A few of each; with SECONDS in the environment (make soak PY=1) hundreds, and then ps is also timed.
"""

import collections
import contextlib
import json
import os
import pathlib
import random
import re
import signal
import socket
import statistics
import subprocess
import sys
import time

import pytest

import running_job

np = pytest.importorskip("numpy")

WORKER = pathlib.Path(__file__).with_name("soak_worker.py")
DROPPER = WORKER.with_name("drop_connections.py")
LONG = bool(os.environ.get("SECONDS"))
KILLS, JOBS, HALF_OPEN, SECONDS = (500, 2000, 3000, 30) if LONG else (8, 6, 300, 1)
# Before the agent is measured: it keeps the output of the 64 workers that ended last, and what its
# launcher knows of them, and its heap grows to 4 MB before garbage is first collected.
FIRST_KILLS, FIRST_JOBS, FIRST_SECONDS = (100, 200, 10) if LONG else (3, 1, 0.1)
SLACK = 0 if LONG else 4096  # kB by which the memory may differ besides a tenth
READINGS = 15 if LONG else 1  # of the memory, which changes with each collection of garbage
PS = 0.1  # seconds in which ps answers
MORE_PENDING = "more connections are pending than may be"
SETTLE = 120  # seconds that the garbage collector has to give memory back


class AgentUsage:
    """The agent of a job under way, a Running, and what it takes of the host, read from /proc. For
    the thread of the test; `slowest` has the seconds that each ps of `time_ps` took.
    """

    def __init__(self, job, binary):
        """Find the agent of the job in what ps lists."""
        self.job, self.binary = job, str(binary)
        (listed,) = [j for j in self.jobs() if j["job"] == job.name]
        self.pid, self.join = listed["pid"], listed.get("join")
        self.slowest = []

    def jobs(self, *words):
        """What `shoal ps --json` lists, a dict each: the jobs, or the workers of the named one."""
        command = [self.binary, "ps", "--json", *words]
        printed = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True).stdout
        return list(map(json.loads, printed.splitlines()))

    def time_ps(self):
        """Run `shoal ps` for the job, and keep how many seconds that took."""
        began = time.monotonic()
        self.jobs(self.job.name)
        self.slowest.append(time.monotonic() - began)

    def descriptors(self):
        """The number of open descriptors of the agent."""
        return len(os.listdir(f"/proc/{self.pid}/fd"))

    def open_files(self):
        """The number of open descriptors of the agent of each kind, by what they refer to, without
        its numbers: for messages.
        """
        found = collections.Counter()
        for entry in os.scandir(f"/proc/{self.pid}/fd"):
            with contextlib.suppress(OSError):
                found[re.sub(r"\d+", "N", os.readlink(entry.path))] += 1
        return dict(found.most_common())

    def anonymous(self):
        """The anonymous memory of the agent in kB, as the system counts it: the median of READINGS,
        between which the agent answers `shoal ps` and steps are made.
        """
        readings = []
        for _ in range(READINGS):
            self.jobs(self.job.name)
            self.job.wait_for_new_step()  # reads the output, or the launcher blocks with it
            status = pathlib.Path(f"/proc/{self.pid}/status").read_text()
            readings.append(int(re.search(r"RssAnon:\s+(\d+)", status)[1]))
        return statistics.median_low(readings)

    def wait_until_settled(self, before):
        """Wait until descriptors and memory are within a tenth of what they were; fail when that
        takes more than SETTLE seconds. `before` is (descriptors, kB of memory). The runtime gives
        memory back when it has time.
        """
        until = time.monotonic() + SETTLE
        while True:
            self.time_ps()
            now = self.descriptors(), self.anonymous()
            message = f"descriptors and kB: {before} before, {now} after"
            if now[0] <= 1.1 * before[0] + 2 and now[1] <= 1.1 * before[1] + SLACK:
                print(message)
                return
            assert time.monotonic() < until, f"{message}; {self.open_files()}"


@pytest.fixture
def watched(launch, binary, tmp_path):
    """The AgentUsage of a job of four workers that writes checkpoints, and takes other hosts. At
    the end of the test the job is finished, which must raise no error, and its newest checkpoint
    checked.
    """
    folder = tmp_path / "checkpoints"
    options = ["--listen", "127.0.0.1:0", "--token-file", str(tmp_path / "token"), "--slots", "4"]
    end = tmp_path / "end"
    hang = 6 * running_job.HANG if LONG else running_job.HANG
    with running_job.running(
        launch, binary, end, 4, WORKER, 0, folder, options=options, seconds=hang
    ) as job:
        job.read_until(r"STEP 200$")  # the first checkpoint is under way
        yield AgentUsage(job, binary)
        assert "Traceback" not in job.finish()
    check = [str(binary), "state", "check", str(max(folder.glob("step-*"), key=step_of))]
    subprocess.run(check, check=True, stdout=subprocess.PIPE)


def step_of(path):
    """The step in the name of a checkpoint's folder, a path."""
    return int(path.name.rpartition("-")[2])


def kill_and_replace(watched):
    """Kill a worker of the watched job at random, order another one, and wait for a new step."""
    ranks = watched.job.workers()
    watched.job.kill(random.choice(sorted(ranks)))
    watched.job.resize(4)
    watched.job.wait_for_new_step()


def test_descriptors_come_back_after_kills(watched):
    """Workers that are killed and replaced leave no descriptors or memory in the agent."""
    for _ in range(FIRST_KILLS):
        kill_and_replace(watched)
    before = watched.descriptors(), watched.anonymous()
    for _ in range(KILLS):
        kill_and_replace(watched)
        watched.time_ps()
    watched.wait_until_settled(before)
    report_ps_times(watched)


def test_short_jobs_leave_nothing(watched, launch, tmp_path):
    """Short jobs beside it on the host leave no descriptors or memory in the agent, and are not
    listed any more.
    """

    def run_jobs(count):
        """Run so many short jobs to their ends, one after the other."""
        with watched.job.slowed():  # else they wait most of the time for two processors
            for i in range(count):
                output = launch(2, WORKER, 1, "-", tmp_path / "never")
                assert output.count("RESULT") == 2
                watched.time_ps()
                if i % 50 == 0:
                    watched.job.wait_for_new_step()

    run_jobs(FIRST_JOBS)
    before = watched.descriptors(), watched.anonymous()
    run_jobs(JOBS)
    watched.wait_until_settled(before)
    left = [j["job"] for j in watched.jobs() if j.get("requested_name") == "soak-worker"]
    assert left == [watched.job.name], "a job that has ended is listed"
    report_ps_times(watched)


def test_connections_that_are_left_open_or_dropped(watched):
    """Connections that are left open or dropped without a word leave no descriptors or memory in
    the agent, and training goes on.
    """
    with watched.job.slowed():  # what is timed is the answer, not a queue for two processors
        leave_connections_open(watched)
        drop_connections(watched, FIRST_SECONDS)
        before = watched.descriptors(), watched.anonymous()
        leave_connections_open(watched)
        drop_connections(watched, SECONDS)
    watched.job.wait_for_new_step()
    watched.wait_until_settled(before)
    report_ps_times(watched)


def leave_connections_open(watched):
    """Open HALF_OPEN connections to the agent, say nothing on them, and close them all after a new
    step was made. Fails where more stay open in the agent than may be.
    """
    host, _, port = watched.join.rpartition(":")
    before = watched.descriptors()
    with contextlib.ExitStack() as stack:
        for i in range(HALF_OPEN):
            with contextlib.suppress(OSError):  # it may refuse
                stack.enter_context(socket.create_connection((host, int(port)), timeout=5))
            if i % 50 == 0:
                watched.time_ps()
        watched.job.wait_for_new_step()
        assert watched.descriptors() < before + 600, MORE_PENDING


def drop_connections(watched, seconds):
    """Have connections to the agent opened and dropped without end, by another process, for so many
    seconds. Fails where more stay open in the agent than may be.
    """
    host, _, port = watched.join.rpartition(":")
    before = watched.descriptors()
    dropper = subprocess.Popen([sys.executable, DROPPER, host, port], stdin=subprocess.PIPE)
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        watched.time_ps()
        assert watched.descriptors() < before + 600, MORE_PENDING
    dropper.communicate()
    assert dropper.returncode == 0


def report_ps_times(watched):
    """Print how long the calls of `time_ps` took; with LONG, fail where one took more than PS
    seconds.
    """
    times = sorted(watched.slowest)
    print(f"ps: median {times[len(times) // 2] * 1e3:.0f} ms, slowest {times[-1] * 1e3:.0f} ms")
    assert not LONG or times[-1] <= PS, f"ps took {times[-1]:.3f} s"
