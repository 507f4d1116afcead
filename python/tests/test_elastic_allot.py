"""Somebody outside says how many workers a job has on each of two hosts, while it trains with
NumPy: every sample exactly once an epoch, and exactly the slots that are asked for are freed.
"""

import collections
import os
import pathlib
import re
import subprocess
import tempfile

import pytest

import running_job

pytest.importorskip("numpy")
WORKER = pathlib.Path(__file__).with_name("elastic_numpy.py")


def resize_hosts(job, **slots):
    """Run `shoal resize --on` for so many workers on each host, and return when they are there; the
    members that the job has then, by host.
    """
    on = ",".join(f"{host}={n}" for host, n in slots.items())
    with job.slowed():
        done = subprocess.run(
            [job._binary, "resize", job.name, "--on", on],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=running_job.HANG,
        )
    assert done.returncode == 0, done.stdout
    members = collections.defaultdict(set)
    for w in job.members():
        members[w["host"]].add(w["worker"])
    return members


@pytest.fixture
def other_host(monkeypatch):
    """Returns join(job, name, slots, token): a host of this name joins a job by an agent beside its
    launcher, and leaves with the job. Its folder of sockets is its own, as on another machine.
    """
    with tempfile.TemporaryDirectory(prefix="allot") as folder:
        (pathlib.Path(folder) / "b").mkdir()
        started = []

        def join(job, name, slots, token):
            """What `other_host` says; return the process of the agent."""
            words = ["agent", "--join", job.status()["join"], "--name", name]
            words += ["--token-file", str(token), "--slots", str(slots)]
            env = {**os.environ, "XDG_RUNTIME_DIR": f"{folder}/b", "XDG_STATE_HOME": f"{folder}/b"}
            env["PYTHONPATH"] = str(WORKER.parents[1])
            env["OMP_NUM_THREADS"] = "1"
            agent = subprocess.Popen(
                [job._binary, *words], env=env, stdout=subprocess.DEVNULL, stderr=subprocess.STDOUT
            )
            started.append(agent)
            return agent

        yield join
        for agent in started:
            agent.kill()
            agent.wait()


def test_slots_are_freed_where_they_are_asked_for(launch, binary, tmp_path, other_host):
    """A job goes from two workers on the host where it began to one there and two on another, back,
    and to others; who is to stay stays, and an agent without slots may go.
    """
    token = tmp_path / "token"
    options = ["--listen", "127.0.0.1:0", "--slots", "3", "--token-file", str(token)]
    options += ["--max", "4", "--name", "allotted"]
    arguments = (700, 32, 2, 3, 0)
    with running_job.running(
        launch, binary, tmp_path / "end", 2, WORKER, *arguments, options=options
    ) as job:
        here = job.status()["head"]
        agent = other_host(job, "h2", 2, token)
        first = {w["worker"] for w in job.members()}

        then = resize_hosts(job, **{here: 1, "h2": 2})
        assert len(then[here]) == 1 and then[here] < first and len(then["h2"]) == 2, then
        job.wait_for_new_step()

        now = resize_hosts(job, **{here: 1, "h2": 1})
        assert now[here] == then[here] and now["h2"] < then["h2"], (then, now)
        job.wait_for_new_step()

        now = resize_hosts(job, **{here: 3, "h2": 1})
        assert then[here] < now[here] and len(now[here]) == 3 and len(now["h2"]) == 1, (then, now)
        job.wait_for_new_step()

        last = resize_hosts(job, **{here: 2})
        assert last[here] < now[here] and len(last[here]) == 2 and not last["h2"], (now, last)
        assert agent.wait(timeout=running_job.HANG) == 0  # its host is vacant
        job.wait_for_new_step()
        output = job.finish()
    ended = running_job.check_results(output)
    assert len(ended) == 2, output
    # one here and two on the other host were let go, one there and one here later
    assert len(re.findall("RELEASED", output)) == 4, output
