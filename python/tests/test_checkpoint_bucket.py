"""Checkpoints in a bucket: the agent writes and fetches them, and the program stays the same."""

import json
import os
import pathlib
import re
import signal
import subprocess

import pytest

pytest.importorskip("numpy")

import running_job
from bucket_double import Store
from test_live import WORKER as MESHED
from test_live import training  # noqa: F401  (a fixture)
from test_live_checkpoint import check_steps, expected_random, ranks

import shoal

WORKER = pathlib.Path(__file__).with_name("checkpoint_numpy.py")
URL = "s3://models/runs/a"


@pytest.fixture
def store(tmp_path, monkeypatch):
    """A store in memory, named by the environment until the end of the test."""
    it = Store()
    for name, value in {"TMPDIR": tmp_path, "HOME": tmp_path, **it.env}.items():
        monkeypatch.setenv(name, str(value))
    yield it
    it.close()


@pytest.fixture
def train(launch, store):
    """Returns train(n, more environment): trains checkpoint_numpy.py on n workers to the end, or to
    the kill, and returns what was printed.
    """

    def run(n, folder=URL, keep=2, more=1, **env):
        """Start a job, and return what it printed, however it ended. `folder` is that of its
        checkpoints, of which `keep` stay; `more` is how many float64 more the state has.
        """
        process = launch.start(
            n, WORKER, folder, 300, 16, 4, 5, keep, more, env={k: str(v) for k, v in env.items()}
        )
        output, _ = process.communicate(timeout=running_job.HANG)
        return output

    return run


def results(output):
    """What each worker that finished printed as RESULT, by rank; fails where any raised an
    error.
    """
    assert "Traceback" not in output, output
    return {r[0]: r[1:] for r in map(json.loads, re.findall("RESULT (.*)", output))}


def test_the_same_number_of_workers_ends_with_the_same_bits(train, store, tmp_path):
    """A job that was killed goes on from the bucket as if nothing had happened."""
    whole = results(train(2, tmp_path / "undisturbed"))
    train(2, STOP=31)
    output = train(2)
    begun = int(re.search(r"FROM (\d+)", output)[1])
    assert (
        f"goes on from the checkpoint of step {begun} in {URL}, of 2 workers, with 2" in output
    ), output
    assert begun in range(5, 32) and results(output) == whole, output
    assert (
        store.steps()[0] == 76
        and len(store.steps()) == 2
        and len(store.objects) == 2 * 4
        and not store.uploads
    )
    assert not list(tmp_path.glob("shoal-fetched-*"))


def test_another_number_of_workers_takes_every_sample_once(train):
    """Other numbers of workers go on from the bucket."""
    train(1, STOP=23, more=6_000_000)  # in several parts of an upload
    output = train(3, more=6_000_000)
    assert int(re.search(r"FROM (\d+)", output)[1]) >= 5 and len(results(output)) == 3, output


def test_a_damaged_one_is_passed_over_and_kept(train, store):
    """The one before a damaged checkpoint is used, and the damaged one is marked."""
    train(2)
    newest, older = store.steps()
    shard = next(k for k in store.objects if f"{newest:012d}-" in k and "shard-00002" in k)
    store.objects[shard] = store.objects[shard][:-1] + bytes([store.objects[shard][-1] ^ 1])
    output = train(3)
    assert (
        f"checkpoint of step {newest} cannot be used" in output and "not as it was sealed" in output
    ), output
    assert (
        f"goes on from the checkpoint of step {older} " in output and len(results(output)) == 3
    ), output
    assert shard in store.objects and shard.rsplit("/", 1)[0] + "/.damaged" in store.objects


def test_a_store_that_is_away_when_the_job_begins_ends_it(train, store):
    """A job does not begin anew because the store does not answer."""
    store.refuse = 403
    output = train(2)
    assert (
        "looking for checkpoints" in output and "AccessDenied" in output and "FROM" not in output
    ), output


def test_a_job_on_a_mesh_starts_again_on_any_other(launch, store, tmp_path):
    """A job goes on from a bucket on another mesh, with the random numbers of its rank 0; the
    bucket then has the newest two checkpoints, and nothing half done.
    """
    at = 0
    for mesh in ["dp=2,tp=2", "tp=3", "dp=1"]:
        steps, said = check_steps(launch(ranks(mesh), MESHED, mesh, at + 6, URL, 4))
        assert steps == [(at + i, mesh) for i in range(6)] and said[at, 0] == expected_random(0, at)
        at += 6
    assert (
        store.steps() == [18, 16]
        and not store.uploads
        and not list(tmp_path.glob("shoal-fetched-*"))
    )


def test_a_job_on_a_mesh_goes_back_by_itself(training, store, binary, tmp_path):  # noqa: F811
    """State that is lost with its only worker comes from the bucket."""
    with training(4, "dp=2,tp=2", URL, 5) as job:
        job.read_until(f"checkpoint of step [1-9][0-9]* in {URL} is sealed")
        pids = job.workers()
        for rank in (0, 2):
            os.kill(pids[rank], signal.SIGKILL)
        job.read_until("STEP [0-9]+ on dp=1,tp=2 ")
        subprocess.run([binary, "stop", job.name], check=True, timeout=running_job.HANG)
        output = job.finish()
    back = int(
        re.search(
            r"went back from step \d+ to the checkpoint of step (\d+), on mesh dp=1,tp=2,", output
        )[1]
    )
    after = [n for n, mesh in check_steps(output)[0] if mesh == "dp=1,tp=2"]
    assert back and after == list(range(back, back + len(after))), output
    assert not list(tmp_path.glob("shoal-fetched-*"))


def test_a_job_of_one_without_an_agent_says_what_to_do(monkeypatch):
    """A bucket without an agent is refused with how to start one."""
    monkeypatch.delenv("SHOAL_SOCKET", raising=False)
    with (
        shoal.join() as job,
        pytest.raises(
            shoal.ShoalError,
            match="the agent, and there is none: start the program with `shoal run",
        ),
    ):
        job.checkpoint(URL)
