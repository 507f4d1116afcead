"""Ctrl-C is heard at once, wherever a thread waits; and no worker outlives its launcher."""

import contextlib
import os
import select
import signal
import struct
import subprocess
import sys
import threading

import pytest

import shoal
from agent_double import AgentDouble
from conftest import ROOT
from shoal._runtime.arena import POOL_BYTES

HANG_MS = 60_000  # milliseconds; reached only by a hang


@pytest.fixture(autouse=True)
def hears_ctrl_c():
    """Have Ctrl-C raise KeyboardInterrupt during a test: a process that was started in the
    background of a script ignores SIGINT, and Python then leaves it ignored.
    """
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


def interrupt_when(condition):
    """Start a thread that sends Ctrl-C to this process, once, as soon as condition() is true, which
    it asks all the time; return the thread, which the test joins.
    """

    def run():
        """Wait for the condition, and send the signal."""
        while not condition():
            os.sched_yield()
        os.kill(os.getpid(), signal.SIGINT)

    thread = threading.Thread(target=run)
    thread.start()
    return thread


def parked(agent):
    """Whether the worker of rank 0 of an AgentDouble says that it sleeps."""
    return struct.unpack_from("<I", agent.sessions[0].block, 192)[0] == 1


def test_ctrl_c_while_sleeping_on_the_bell(agent):
    """A wait that sleeps on the bell ends by Ctrl-C; the worker is not parked any more then, and
    the call can be waited for again.
    """
    job = agent.join()
    agent.going.clear()
    handle = job.barrier_async()
    interrupter = interrupt_when(lambda: parked(agent))
    with pytest.raises(KeyboardInterrupt):
        handle.wait()
    interrupter.join()
    assert not parked(agent) and not handle.done()
    agent.going.set()
    handle.wait()
    job.barrier()


class DeafPoll:
    """A poll that a signal comes just before: it does not end this sleep."""

    def __init__(self, poll):
        self.real = poll

    def poll(self, milliseconds):
        """Sleep for so long; the signal is heard at the end."""
        assert milliseconds is not None, "a sleep without end"
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
        signal.pthread_kill(threading.get_ident(), signal.SIGINT)
        events = self.real.poll(milliseconds)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})
        return events


def test_ctrl_c_just_before_sleeping_on_the_bell(agent):
    """A sleep that began when the signal had come ends by itself, and the signal is heard."""
    job = agent.join()
    agent.going.clear()
    handle = job.barrier_async()
    calls = job._backend.calls
    real, calls._poll = calls._poll, DeafPoll(calls._poll)
    with pytest.raises(KeyboardInterrupt):
        handle.wait()
    calls._poll = real
    agent.going.set()
    handle.wait()


def test_the_handler_of_a_signal_leaves_the_job(agent):
    """A handler may leave the job while this thread sleeps on the bell: the wait then says so."""
    job = agent.join()
    agent.going.clear()
    signal.signal(signal.SIGINT, lambda *_: job.leave())
    handle = job.barrier_async()
    interrupter = interrupt_when(lambda: parked(agent))
    with pytest.raises(shoal.ShoalError, match="job double was left"):
        handle.wait()
    interrupter.join()
    with pytest.raises(shoal.ShoalError, match="job double was left"):
        job.barrier()


def test_ctrl_c_while_looking(monkeypatch):
    """A wait that polls, and never sleeps, ends by Ctrl-C, and can be made again."""
    looks = set()
    monkeypatch.setattr("shoal._runtime.calls._sched_yield", lambda: looks.add(1))
    with AgentDouble(spin_us=600_000_000) as agent:  # never sleeps
        job = agent.join()
        agent.going.clear()
        handle = job.barrier_async()
        interrupter = interrupt_when(lambda: looks)
        with pytest.raises(KeyboardInterrupt):
            handle.wait()
        interrupter.join()
        agent.going.set()
        handle.wait()


def test_ctrl_c_while_another_thread_sleeps_on_the_bell(agent):
    """A wait that sleeps because another thread sleeps on the bell ends by Ctrl-C, and the other
    thread goes on.
    """
    job = agent.join()
    agent.going.clear()
    first, second = job.barrier_async(), job.barrier_async()
    leader = threading.Thread(target=first.wait)
    leader.start()
    while not parked(agent):
        os.sched_yield()
    interrupter = interrupt_when(lambda: job._backend.calls._sleepers)
    with pytest.raises(KeyboardInterrupt):
        second.wait()
    interrupter.join()
    agent.going.set()
    second.wait()
    leader.join()


def test_ctrl_c_where_a_sleeping_thread_is_woken(agent):
    """A Ctrl-C in any function of Python that a thread enters when the one that sleeps on the bell
    wakes it ends its wait, and no other error does.
    """
    job = agent.join()
    agent.going.clear()
    first, second = job.barrier_async(), job.barrier_async()
    leader = threading.Thread(target=first.wait)
    leader.start()
    while not parked(agent):
        os.sched_yield()

    def set_going():
        """Have the calls completed once the other thread sleeps."""
        while not job._backend.calls._sleepers:
            os.sched_yield()
        agent.going.set()

    def interrupt(frame, event, _):
        """Raise KeyboardInterrupt where the module threading goes on from a sleep."""
        if event == "call" and frame.f_code.co_name == "_acquire_restore":
            raise KeyboardInterrupt

    setter = threading.Thread(target=set_going)
    setter.start()
    sys.setprofile(interrupt)
    try:
        with contextlib.suppress(KeyboardInterrupt):
            second.wait()
    finally:
        sys.setprofile(None)
    setter.join()
    leader.join()
    job.barrier()


def test_ctrl_c_of_a_request_does_not_mix_up_the_answers(agent):
    """The answer to an interrupted request is not taken for that to the next one."""
    job = agent.join()
    release = threading.Event()

    def slow(request):
        """Hold back the answer to a request for a group until `release` is set."""
        if request["type"] == "group":
            release.wait()

    agent.answer = slow
    true = agent._reply
    agent._reply = lambda rank, r: (
        ({"type": "group", "id": 9, "rank": 0, "size": 1}, [])
        if r["type"] == "group"
        else true(rank, r)
    )
    interrupter = interrupt_when(lambda: agent.requests[-1]["type"] == "group")
    with pytest.raises(KeyboardInterrupt):
        job.group([0])
    interrupter.join()
    release.set()
    assert job.allreduce(job.zeros(3)).sum() == 0


def test_memory_whose_request_was_interrupted_goes_back(agent):
    """A segment that comes after a Ctrl-C has ended the request for it is given back."""
    job, release = agent.join(), threading.Event()

    def slow(request):
        """Hold back the answer to a request for a segment until `release` is set."""
        if request["type"] == "segment":
            release.wait()

    agent.answer = slow
    interrupter = interrupt_when(lambda: agent.requests[-1]["type"] == "segment")
    with pytest.raises(KeyboardInterrupt):
        job.zeros(3)
    interrupter.join()
    release.set()
    x = job.zeros(3)
    large = job.zeros(POOL_BYTES, "uint8")  # its request comes after that which gives back
    assert agent.sessions[0].freed == [1] and list(agent.sessions[0].segments) == [2, 3]
    assert job.allreduce(x).sum() == 0 and len(large) == POOL_BYTES


class Interrupted:
    """A socket that raises KeyboardInterrupt at one place of its next call of that kind, before or
    after it.
    """

    def __init__(self, true, kind, done):
        """Interrupt the next call of this kind, after it with `done`, of the socket `true`."""
        self.true, self.kind, self.done = true, kind, done

    def __getattr__(self, name):
        """The attribute of the socket, or in its place the call that is interrupted."""

        def call(*args):
            """Raise KeyboardInterrupt, after the true call with `done`, and leave all later calls
            alone.
            """
            self.kind = None
            if self.done:
                true(*args)
            raise KeyboardInterrupt

        true = getattr(self.true, name)
        return call if name == self.kind else true


@pytest.mark.parametrize(
    "kind, done", [("send", False), ("send", True), ("recvmsg", False), ("recvmsg", True)]
)
def test_ctrl_c_at_any_place_of_a_request_does_not_mix_up_the_answers(agent, kind, done):
    """The answer to a request that was interrupted before or after a call on the socket is not
    taken for that to the next one.
    """
    job = agent.join()
    true = agent._reply
    agent._reply = lambda rank, r: (
        ({"type": "group", "id": 9, "rank": 0, "size": 1}, [])
        if r["type"] == "group"
        else true(rank, r)
    )
    link = job._backend.link
    link.socket = Interrupted(link.socket, kind, done)
    with pytest.raises(KeyboardInterrupt):
        job.group([0])
    assert job.allreduce(job.zeros(3)).sum() == 0


@pytest.mark.parametrize(
    "kind, done", [("send", False), ("send", True), ("recvmsg", False), ("recvmsg", True)]
)
def test_a_group_that_ctrl_c_has_ended_is_asked_for_again(agent, kind, done):
    """A request for a group that was interrupted is made again with its number, by which the agent
    knows it; the next one for the same ranks has another.
    """
    job = agent.join()
    true = agent._reply
    agent._reply = lambda rank, r: (
        ({"type": "group", "id": r["serial"], "rank": 0, "size": 1}, [])
        if r["type"] == "group"
        else true(rank, r)
    )
    link = job._backend.link
    link.socket = Interrupted(link.socket, kind, done)
    with pytest.raises(KeyboardInterrupt):
        job.group([0])
    first = link._serial
    assert job.allreduce(job.zeros(3)).sum() == 0
    again, next_one = job.group([0]), job.group([0])
    assert again.id == first < next_one.id
    asked = [r["serial"] for r in agent.requests if r["type"] == "group"]
    assert asked[-2:] == [again.id, next_one.id]
    assert job.allreduce(job.zeros(3)).sum() == 0


class InterruptedLock:
    """A lock that raises KeyboardInterrupt where it is taken for the n-th time, as one that a
    thread waits for does, or, with `done`, after that.
    """

    def __init__(self, true, number, done):
        """Interrupt the n-th use of the lock `true`."""
        self.true, self.left, self.done = true, number, done

    def __enter__(self):
        """Take the lock."""
        self.left -= 1
        if not self.left and not self.done:
            raise KeyboardInterrupt
        self.true.acquire()

    def __exit__(self, *_):
        """Let go of it."""
        self.true.release()
        if not self.left:
            raise KeyboardInterrupt


@pytest.mark.parametrize("number", [1, 2])
@pytest.mark.parametrize("done", [False, True])
def test_ctrl_c_where_a_group_begins_or_ends(agent, number, done):
    """A group of calls that was interrupted anywhere is over: the calls after it are submitted."""
    job = agent.join()
    calls = job._backend.calls
    true = calls._lock
    calls._lock = InterruptedLock(true, number, done)
    with pytest.raises(KeyboardInterrupt), job.grouped():
        pass
    calls._lock = true
    handle = job.barrier_async()
    assert calls._published == handle.ticket
    with job.grouped():
        handle = job.barrier_async()
        assert calls._published < handle.ticket
    assert calls._published == handle.ticket


def test_a_blocking_call_that_ctrl_c_has_ended_is_taken_back(agent):
    """The agent is asked to take back a blocking call that a Ctrl-C has ended, which nobody can
    wait for again, and not one whose handle the program has.
    """
    job = agent.join()
    agent.going.clear()
    for wait, asked in ((job.barrier, 1), (job.barrier_async().wait, 1)):
        interrupter = interrupt_when(lambda: parked(agent))
        with pytest.raises(KeyboardInterrupt):
            wait()
        interrupter.join()
        assert [r["ticket"] for r in agent.requests if r["type"] == "withdraw"] == [2] * asked
    agent.going.set()
    job.barrier()


COMPUTE = "x = 0\nwhile True: x += 1"
WAIT = "job.recv(job.zeros(1), source=1)"
CATCH = f"""
try: {WAIT}
except shoal.LostError: print("caught", flush=True)
{COMPUTE}
"""


@pytest.mark.parametrize("options", [(), ("--prefork", "json")], ids=["anew", "forked"])
@pytest.mark.parametrize("doing", [COMPUTE, WAIT])
def test_workers_end_when_the_launcher_is_killed(launch, doing, options):
    """Workers end at once, whatever they are doing, also those that were forked."""
    program = f"""
import os, shoal
job = shoal.join()
job.barrier()
print("pid", os.getpid(), flush=True)
if job.rank == 0: {WAIT}
{COMPUTE}
"""
    launcher = launch.start(2, program, options=options)
    pids = []
    try:
        for line in launcher.stdout:
            if "pid" in line.split():
                pids.append(int(line.split()[-1]))
            if len(pids) == 2:
                break
        watched = [os.pidfd_open(pid) for pid in pids]
    finally:
        launcher.kill()
    launcher.wait()
    for pid, fd in zip(pids, watched):
        assert select.select([fd], [], [], HANG_MS / 1000)[0], f"worker {pid} is still there"
        os.close(fd)
    launcher.stdout.close()


@pytest.mark.parametrize(
    "doing, status, said", [(COMPUTE, -9, ""), (WAIT, 1, ""), (CATCH, -9, "caught\n")]
)
def test_a_worker_ends_when_its_agent_is_gone(doing, status, said):
    """A worker gets LostError, or is killed after a moment where it computes."""
    with AgentDouble(size=2) as agent:
        program = f"import shoal\njob = shoal.join()\nprint('joined', flush=True)\n{doing}"
        env = {
            **os.environ,
            "PYTHONPATH": str(ROOT / "python"),
            "SHOAL_SOCKET": agent.path,
            "SHOAL_JOB": "double",
            "SHOAL_RANK": "0",
            "SHOAL_TOKEN": "t",
        }
        pipe = subprocess.PIPE
        with subprocess.Popen(
            [sys.executable, "-c", program], env=env, stdout=pipe, stderr=pipe, text=True
        ) as worker:
            assert worker.stdout.readline() == "joined\n"
            while doing != COMPUTE and not parked(agent):
                os.sched_yield()
            agent.hang_up()
            output, errors = worker.communicate(timeout=HANG_MS / 1000)
        assert (worker.returncode, output) == (status, said), errors
        assert ("the agent of job double is gone; this worker ends" in errors) == (status == -9)
        assert ("LostError: the agent of job double is gone" in errors) == (status == 1)


def test_a_worker_that_is_killed_ends_the_job(launch):
    """The job of a killed worker fails, and the output names its rank."""
    output = launch(
        2,
        "import os, shoal\njob = shoal.join()\nif job.rank: os.kill(os.getpid(), 9)\njob.barrier()",
        code=1,
    )
    assert "rank 1" in output


def test_an_exception_in_one_rank_ends_the_job(launch):
    """The job of a worker that exits with a code fails, and the output names its rank."""
    output = launch(
        2,
        "import shoal\njob = shoal.join()\nif job.rank: raise SystemExit(3)\njob.barrier()",
        code=1,
    )
    assert "rank 1" in output


LEFT_IN_MEMORY = """
import multiprocessing, os, signal, sys, time
from multiprocessing import shared_memory

if __name__ == "__main__":
    context = multiprocessing.get_context("spawn")
    lock, memory = context.Lock(), shared_memory.SharedMemory(create=True, size=100)
    context.Process(target=time.sleep, args=(1000,)).start()
    print("NAMES sem." + lock._semlock.name[1:], memory.name, "END", flush=True)
    if sys.argv[1] == "killed":
        os.kill(os.getpid(), signal.SIGKILL)
    os._exit(3)
"""


@pytest.mark.parametrize("how", ["killed", "failed"])
def test_no_memory_is_left_over(launch, how):
    """Python removes the semaphores and the shared memory of a program that was killed, or fails,
    while its processes still have them.
    """
    output = launch(1, LEFT_IN_MEMORY, how, code=1)
    names = output.partition("NAMES ")[2].partition(" END")[0].split()
    assert len(names) == 2
    assert [name for name in names if os.path.exists(f"/dev/shm/{name}")] == []
