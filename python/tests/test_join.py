"""Joining, and everything that an agent can answer wrongly."""

import json
import os
import pathlib
import socket
import subprocess
import sys

import pytest

import shoal
from shoal._runtime.link import Link
from shoal.job import _connect


def environment(agent, **changes):
    """The environment of a worker of this agent, an AgentDouble, with changes; None removes a
    variable.
    """
    env = {
        "SHOAL_SOCKET": agent.path,
        "SHOAL_JOB": "double",
        "SHOAL_RANK": "0",
        "SHOAL_SIZE": "1",
        "SHOAL_TOKEN": "token",
        **changes,
    }
    return {name: value for name, value in env.items() if value is not None}


def test_join_and_leave(agent):
    """A worker joins, is who the agent says, reports numbers, also those that JSON does not have,
    and leaves, twice without harm; then every call fails.
    """
    job = agent.join()
    assert (job.name, job.host, job.rank, job.size, job.generation) == ("double", "here", 0, 1, 1)
    request = agent.requests[0]
    assert request == {
        "type": "join",
        "serial": 1,
        "protocol": 3,
        "version": shoal.__version__,
        "client": "python",
        "rank": 0,
        "token": "token",
        "pid": os.getpid(),
    }
    job.report(step=3, loss=0.5, grown=float("inf"), shrunk=-float("inf"), lost=float("nan"))
    job.report({"a/b": 1})
    job.leave()
    job.leave()
    with pytest.raises(shoal.ShoalError, match="was left"):
        job.barrier()
    with pytest.raises(shoal.ShoalError, match="was left"):
        job.empty(3)
    agent.wait_for_request("leave")
    words = {"grown": "+Inf", "shrunk": "-Inf", "lost": "NaN"}  # JSON has no numbers for these
    assert [r.get("metrics") for r in agent.requests] == [
        None,
        {"step": 3, "loss": 0.5, **words},
        {"a/b": 1},
        None,
    ]


@pytest.mark.parametrize(
    "changes, message",
    [
        ({"SHOAL_RANK": None}, "SHOAL_RANK is not"),
        ({"SHOAL_TOKEN": None}, "SHOAL_TOKEN is not"),
        ({"SHOAL_RANK": "one"}, "SHOAL_RANK='one' is not a number"),
        ({"SHOAL_RANK": "-1"}, "is not a number"),
        ({"SHOAL_SOCKET": "/nowhere/agent"}, "No such file.*still running"),
    ],
)
def test_a_broken_environment(agent, changes, message):
    """A missing or wrong variable is named."""
    with pytest.raises(shoal.JoinError, match=message):
        _connect(environment(agent, **changes))


def joined(**changes):
    """The agent's right answer to a join, with changes, as bytes."""
    reply = {
        "type": "joined",
        "job": "j",
        "host": "h",
        "rank": 0,
        "size": 1,
        "generation": 1,
        "slots": 8,
        "slot_bytes": 1024,
        "spin_us": 0,
    }
    return json.dumps({**reply, **changes}).encode()


@pytest.mark.parametrize(
    "answer, message",
    [
        (b"", "is gone"),
        (b"garbage", "cannot be read"),
        (b"\xff\xfe", "cannot be read"),
        (b"[1]", "cannot be read"),
        (b'{"type":"segment","id":1}', "'segment' to 'join'"),
        (
            b'{"type":"error","error":"the agent speaks protocol 3: install the same version"}',
            "refused rank 0.*install the same version",
        ),
        (b'{"type":"error"}', "no reason"),
        (b'{"type":"joined"}', "makes no sense.*KeyError"),
        (joined(), "with 0 descriptors"),
        (joined(rank="x"), "makes no sense"),
        (joined(rank=5), "makes no sense"),
        (joined(slot_bytes=7), "makes no sense"),
    ],
)
def test_a_wrong_welcome(agent, answer, message):
    """A welcome that cannot be is refused with its reason."""
    agent.answer = lambda request: answer
    before = set(os.listdir("/proc/self/fd"))
    with pytest.raises(shoal.JoinError, match=message):
        _connect(environment(agent))
    assert len(os.listdir("/proc/self/fd")) <= len(before) + 1  # the double's own end


@pytest.mark.parametrize("field", ["magic", "protocol", "slots", "rank"])
def test_a_control_block_that_does_not_match(agent, field):
    """A control block with other numbers than the welcome is refused."""
    at = {"magic": 0, "protocol": 8, "slots": 12, "rank": 20}[field]
    true = agent._reply

    def spoiled(rank, request):
        """Answer with a control block of which one field is wrong."""
        reply, fds = true(rank, request)
        agent.sessions[0].block[at] ^= 1
        return reply, fds

    agent._reply = spoiled
    with pytest.raises(shoal.JoinError, match="control block that starts with"):
        _connect(environment(agent))


def test_wrong_answers_later(agent):
    """Wrong answers to later requests raise errors that say what came."""
    job = agent.join()
    for answer, error, message in (
        (b'{"type":"error","error":"arena: no memory left"}', shoal.ArenaError, "no memory left"),
        (b'{"type":"segment","id":1,"bytes":4096}', shoal.ArenaError, "is not a segment"),
        (b'{"type":"segment"}', shoal.ArenaError, "is not a segment"),
        (b'{"type":"freed"}', shoal.ShoalError, "different versions"),
        (b"{", shoal.ShoalError, "cannot be read"),
    ):
        agent.answer = lambda request: answer
        with pytest.raises(error, match=message):
            job.empty(10)
    agent.answer = None
    assert job.allreduce(job.zeros(3)).sum() == 0, "the next request gets its own answer"


def test_a_timeout_for_the_sockets_of_the_program(tmp_path):
    """A worker waits for its agent as long as it takes, whatever timeout its sockets have."""
    path = str(tmp_path / "agent")
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as agent:
        agent.bind(path)
        agent.listen()
        socket.setdefaulttimeout(1)
        try:
            link = Link(path, "train")
        finally:
            socket.setdefaulttimeout(None)
        assert link.socket.gettimeout() is None
        link.close(shoal.ShoalError("over"))


def test_the_real_agent_refuses_a_wrong_token_and_another_version(launch):
    """The agent refuses who has another token, rank or protocol, or joins twice, and says why."""
    output = launch(
        1,
        """
import json, os, socket
import shoal._runtime.handshake, shoal._runtime.protocol
from shoal.job import _connect
for change in ({"SHOAL_TOKEN": "wrong"}, {"SHOAL_RANK": "1"}):
    try:
        _connect({**os.environ, **change})
    except shoal.JoinError as err:
        print(err)
shoal._runtime.handshake.PROTOCOL = 1
try:
    _connect(os.environ)
except shoal.JoinError as err:
    print(err)
shoal._runtime.handshake.PROTOCOL = shoal._runtime.protocol.PROTOCOL
shoal.join()
try:
    _connect(os.environ)
except shoal.JoinError as err:
    print(err)
""",
    )
    assert "multiprocessing has started this process" not in output, output
    for text in (
        "token: ",
        "rank: 1 is no worker",
        "speaks protocol 1, the agent (shoal ",
        "joined already",
    ):
        assert text in output


def test_a_spawned_process_that_joins_again_is_told_what_it_is(launch):
    """A process that multiprocessing spawns runs the script of its parent, where that is not under
    a check of __name__, and joins again there, as a function that it is given may do: the error
    says where the process comes from.
    """
    output = launch(
        1,
        """
import multiprocessing, sys
import shoal

def joins():
    try:
        shoal.join()
    except shoal.JoinError as err:
        print("in a function:", err)

if __name__ == "__main__":
    shoal.join()
    child = multiprocessing.get_context("spawn").Process(target=joins)
    child.start()
    child.join()
else:
    try:
        shoal.join()
    except shoal.JoinError as err:
        print("in the script:", err)
""",
    )
    for where in ("in the script", "in a function"):
        (said,) = (line for line in output.splitlines() if where in line)
        assert "joined already" in said, output
        assert "multiprocessing has started this process" in said, output


def test_a_stopped_launcher_is_named(tmp_path):
    """Where nobody listens, the error names the socket."""
    env = {
        "PYTHONPATH": str(pathlib.Path(shoal.__file__).parents[1]),
        "SHOAL_SOCKET": str(tmp_path / "agent"),
        "SHOAL_JOB": "j",
        "SHOAL_RANK": "0",
        "SHOAL_TOKEN": "t",
    }
    ran = subprocess.run(
        [sys.executable, "-c", "import shoal; shoal.join()"],
        env=env,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert ran.returncode == 1 and "JoinError: cannot reach the agent" in ran.stderr
