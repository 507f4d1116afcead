"""Which checkpoints a job sets aside when it goes on from one: those whose bytes are proved to be
wrong, and no others.
"""

import errno
import hashlib
import json
import os
import pathlib
import re
import shutil

import pytest

pytest.importorskip("numpy")
import numpy as np
from test_checkpoint import results, steps, train  # noqa: F401  (a fixture)

import shoal
from shoal._checkpoint import commit, shards
from shoal._checkpoint.commit import Sealed

SHARD = "shard-00001-of-00001.safetensors"


def go_on(folder, until):
    """Train to a step as a job of one without an agent, with a checkpoint of every step."""
    with shoal.join() as job:
        weights = np.zeros(1000)
        job.register("weights", lambda: weights, lambda value: np.copyto(weights, value))
        job.checkpoint(folder, every=1, keep=5)
        for step in job.steps(4, batch=1, steps=until):
            step.allreduce(np.zeros(1))


def write_version(folder, version):
    """Give the newest checkpoint in a folder another version of the format, sealed as such."""
    path = pathlib.Path(commit.sealed_checkpoints(str(folder))[0].path)
    state = json.loads((path / commit.STATE).read_text())
    text = json.dumps({**state, "shoal": version, "what": "is new"}).encode()
    (path / commit.STATE).write_bytes(text)
    manifest = json.loads((path / commit.MANIFEST).read_text())
    for file in manifest["files"]:
        if file["name"] == commit.STATE:
            file.update(size=len(text), sha256=[hashlib.sha256(text).hexdigest()])
    (path / commit.MANIFEST).write_text(json.dumps(manifest))


@pytest.mark.parametrize(
    "error, advice",
    [
        (OSError(errno.EMFILE, "Too many open files"), "Raise `ulimit -n`"),
        (OSError(errno.ENOMEM, "Cannot allocate memory"), "more memory"),
        (MemoryError(), "more memory"),
        (PermissionError(errno.EACCES, "Permission denied"), "Let the user"),
        (OSError(errno.EIO, "Input/output error"), "It stays as it is"),
    ],
    ids=repr,
)
def test_what_the_system_refuses_is_no_damage(tmp_path, monkeypatch, error, advice):
    """Where the newest checkpoint cannot be read, it stays, and the job says what to do."""
    go_on(tmp_path, 2)

    def refuse(*_):
        """Refuse to read."""
        raise error

    monkeypatch.setattr(shards.ShardReader, "read", refuse)
    with pytest.raises(shoal.ShoalError, match="step 2 in .* cannot be read") as raised:
        go_on(tmp_path, 4)
    assert advice in str(raised.value), raised.value
    assert steps(tmp_path) == [2, 1] and not list(tmp_path.glob("damaged-*"))


def test_another_version_is_no_damage(tmp_path):
    """A checkpoint of a newer shoal stays, and the job does not begin at an older one."""
    go_on(tmp_path, 2)
    write_version(tmp_path, "job/2")
    with pytest.raises(shoal.ShoalError, match="is of version 'job/2'.* or a newer one"):
        go_on(tmp_path, 4)
    assert steps(tmp_path) == [2, 1]


def test_a_manifest_out_of_sight_is_no_damage(tmp_path):
    """Where the folder is another one than the lister saw, nothing is said of damage."""
    go_on(tmp_path, 1)
    os.unlink(tmp_path / "step-000000000001" / commit.MANIFEST)
    with pytest.raises(FileNotFoundError):
        Sealed(str(tmp_path), 1).compare()


def test_a_checkpoint_that_nobody_may_look_at_is_no_reason_for_an_older_one(tmp_path, monkeypatch):
    """What cannot be looked at counts as sealed, so that the job meets the error."""
    go_on(tmp_path, 2)
    look = os.stat

    def refuse(path, *more, **options):
        """Refuse to look into the newest checkpoint."""
        if "step-000000000002" in str(path):
            raise PermissionError(errno.EACCES, "Permission denied", path)
        return look(path, *more, **options)

    monkeypatch.setattr(os, "stat", refuse)
    assert steps(tmp_path) == [2, 1]


@pytest.mark.parametrize("name", [commit.STATE, commit.MANIFEST, SHARD])
@pytest.mark.parametrize("how", ["torn", "changed at its end", "changed at its start"])
def test_wrong_bytes_are_damage(tmp_path, name, how):
    """A checkpoint with wrong bytes in any file is set aside, and the one before is used."""
    go_on(tmp_path, 2)
    path = tmp_path / "step-000000000002" / name
    text = bytearray(path.read_bytes())
    if how == "torn":
        text = text[: len(text) // 2]
    else:
        text[-2 if how == "changed at its end" else 0] ^= 1
    path.write_bytes(text)
    go_on(tmp_path, 4)
    assert list(tmp_path.glob("damaged-step-000000000002-*")) and steps(tmp_path)[-1] == 1


def test_a_copy_is_none_of_the_checkpoints(tmp_path):
    """Who keeps a copy, with its step in fewer digits, has as many checkpoints beside it."""
    go_on(tmp_path, 2)
    shutil.copytree(tmp_path / "step-000000000002", tmp_path / "step-2")
    go_on(tmp_path, 3)
    assert steps(tmp_path) == [3, 2, 1]


def test_a_missing_file_is_damage(tmp_path):
    """A checkpoint without one of its files is set aside."""
    go_on(tmp_path, 2)
    (tmp_path / "step-000000000002" / SHARD).unlink()
    go_on(tmp_path, 4)
    assert list(tmp_path.glob("damaged-step-000000000002-*"))


def test_a_step_that_is_damaged_again(tmp_path):
    """A checkpoint of a step of which another one was set aside before is set aside too."""
    for _ in range(2):
        go_on(tmp_path, 2)
        (tmp_path / "step-000000000002" / SHARD).unlink()
    go_on(tmp_path, 2)
    assert len(list(tmp_path.glob("damaged-step-000000000002-*"))) == 2
    assert steps(tmp_path) == [2, 1]


@pytest.mark.parametrize("refused", [0, 1])
def test_what_one_worker_cannot_read_ends_the_job(train, tmp_path, refused):  # noqa: F811
    """All workers end when one cannot read the newest checkpoint, and nothing is renamed."""
    train(2)
    folder = tmp_path / "checkpoints"
    before = sorted(os.listdir(folder))
    output = train(2, REFUSED=refused)
    assert "FROM" not in output and "Raise `ulimit -n`" in output, output
    assert re.search("cannot be read: another worker says why", output), output
    assert sorted(os.listdir(folder)) == before
    assert "FROM" not in train(2) and len(results(train(2))) == 2


def test_state_of_another_program(tmp_path):
    """A checkpoint of a program that has registered something else is named, and what to do."""

    def train(name):
        """Train to the end with a state of that name."""
        with shoal.join() as job:
            job.register(name, lambda: 1, lambda _: None)
            job.checkpoint(tmp_path / "checkpoints", every=1)
            for step in job.steps(4, batch=1, steps=2):
                step.allreduce(np.zeros(1))

    train("total")
    with pytest.raises(
        shoal.ShoalError,
        match=r"^the checkpoint of step 2 in .*checkpoints: its workers had registered"
        r" \['total', .*\], and this one has \['other', .*\]: name another folder",
    ):
        train("other")


def test_latest_goes_with_the_last_checkpoint(tmp_path):
    """Where no checkpoint is left, `latest` leads nowhere, and is removed; a link that somebody has
    made to something else stays.
    """
    sealed, latest = tmp_path / "step-000000000005", tmp_path / "latest"
    sealed.mkdir()
    (sealed / commit.MANIFEST).write_text("{}")
    commit.update_latest(str(tmp_path))
    assert latest.is_dir()
    Sealed(str(tmp_path), 5).quarantine()
    commit.update_latest(str(tmp_path))
    assert not latest.is_symlink()
    latest.symlink_to(tmp_path)
    commit.update_latest(str(tmp_path))
    assert latest.is_symlink()
