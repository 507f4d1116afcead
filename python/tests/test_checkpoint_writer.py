"""What a worker does with a checkpoint that cannot be written, or is given up."""

import errno
import os
import shutil
import threading
import types
from unittest import mock

import pytest

import shoal
from shoal._checkpoint import writer
from shoal._checkpoint.commit import STATE, Unsealed, recover, sealed_checkpoints
from shoal._runtime.protocol import HUGE_PAGE


def test_what_is_abandoned_is_renamed_before_it_is_removed(tmp_path, monkeypatch):
    """Who still writes a part finds the folder gone, and cannot seal it half removed."""
    attempt = Unsealed(str(tmp_path), 3, 7)
    os.makedirs(attempt.path)
    removed = []
    monkeypatch.setattr(shutil, "rmtree", lambda path, **_: removed.append(os.path.exists(path)))
    attempt.abandon()
    assert removed == [True] and not os.path.exists(attempt.path)


@pytest.mark.parametrize("wrong", [b"", b"[]", b"{}", b'{"files":[],"sums":[]}', b"\xff"])
@pytest.mark.parametrize("name", [STATE, ".part-00000-of-00001.json"])
def test_parts_that_cannot_be_read_are_void(tmp_path, capfd, name, wrong):
    """What earlier workers left damaged is removed, and no reason not to begin."""
    attempt = Unsealed(str(tmp_path), 3, 7)
    attempt.make_folder()
    state = b'{"tensors":[{"name":"w","dtype":"U8","shape":[1],"bytes":1}]}'
    attempt.write_receipt(0, 1, [attempt.write_file(STATE, state, memoryview(b""))], {0: 1})
    with open(os.path.join(attempt.path, name), "wb") as file:
        file.write(wrong)
    recover(str(tmp_path), 2)
    assert not os.listdir(tmp_path) and "step 3 in" in capfd.readouterr().err


def test_what_cannot_be_cleaned_up_is_no_hindrance(tmp_path, capfd):
    """A receipt that cannot be read keeps no other checkpoint from being removed, or made."""
    for step in (3, 5):
        Unsealed(str(tmp_path), step, 7).make_folder()
    os.mkdir(os.path.join(Unsealed(str(tmp_path), 3, 7).path, ".part-00000-of-00001.json"))
    recover(str(tmp_path), 2)
    assert os.listdir(tmp_path) == [".staging-000000000003-0000000000000007"]
    assert "stays there" in capfd.readouterr().err


def test_what_cannot_be_removed_is_not_said_to_be_abandoned(tmp_path, capfd, monkeypatch):
    """The log says that it stays, and why. One that another has removed meanwhile is not named."""
    for step, failing in ((3, PermissionError(errno.EPERM, "no")), (5, FileNotFoundError())):
        Unsealed(str(tmp_path), step, 7).make_folder()
        with monkeypatch.context() as patched:
            patched.setattr(os, "rename", mock.Mock(side_effect=failing))
            recover(str(tmp_path), 2)
        said = capfd.readouterr().err
        assert "abandoned" not in said and said.count("stays there: [Errno 1] no") == (step == 3)
        Unsealed(str(tmp_path), step, 7).abandon()
        assert not os.listdir(tmp_path)


def test_what_is_removed_is_what_was_renamed(tmp_path):
    """A folder of somebody stays, though its name begins like those that are being removed."""
    attempt = "staging-000000000005-00000000000000ab-17"
    for name in ("notes", "step-000000000005-17", attempt, f".{attempt}"):
        (tmp_path / f".old-{name}").mkdir()
    recover(str(tmp_path), 2)
    assert os.listdir(tmp_path) == [".old-notes"]


def test_an_arena_without_room_for_the_texts_costs_a_checkpoint_alone(capfd):
    """What is written beside the arrays needs memory of the agent too."""

    class Full:
        """An arena without memory."""

        def copy_in(self, _):
            """Refuse it."""
            raise shoal.ArenaError("the job has no more")

    cramped = writer.AgentWriter(types.SimpleNamespace(arena=Full()))
    shard = writer.Shard(Unsealed("there", 3, 7), 0, 1, 1, b"{}", {}, [], [], memoryview(b""))
    cramped.write(shard)
    said = capfd.readouterr().err
    assert "step 3 in there is abandoned" in said and "the job has no more" in said, said


@pytest.mark.parametrize("keep, fewer", [(1, ""), (2, ", or keep fewer")])
def test_a_full_disk_asks_for_fewer_where_there_are_several(capfd, monkeypatch, keep, fewer):
    """With one checkpoint that is kept there can be no fewer."""

    def full(*_, **__):
        """Have no room."""
        raise OSError(errno.ENOSPC, "no space")

    monkeypatch.setattr(writer, "recover", full)
    shard = writer.Shard(Unsealed("there", 3, 7), 0, 1, keep, b"{}", {}, [], [], memoryview(b""))
    writer._write_shard(shard)
    said = capfd.readouterr().err
    assert f"; make room there for the next one{fewer}" in said, said


def test_a_system_without_threads_costs_no_checkpoint(tmp_path, monkeypatch):
    """Where no thread can be started, what it would do is done without it."""
    numpy = pytest.importorskip("numpy")

    def refuse(_):
        """Start no thread, as where a user has as many as may be."""
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", refuse)
    large = numpy.zeros(HUGE_PAGE, "uint8")
    with shoal.join() as job:
        job.register("large", lambda: large, lambda value: numpy.copyto(large, value))
        job.checkpoint(tmp_path, every=2, keep=9)
        for step in job.steps(5, batch=1):
            step.allreduce(numpy.zeros(1))
    assert [found.step for found in sealed_checkpoints(str(tmp_path))] == [5, 4, 2]


def test_no_tensor_has_the_name_of_the_metadata(tmp_path):
    """State may have any name: that under which a file has its metadata is one of them."""
    numpy = pytest.importorskip("numpy")
    for until in (1, 2):
        count = numpy.zeros(1)
        with shoal.join() as job:
            job.register("__metadata__", lambda: count, lambda value: numpy.copyto(count, value))
            job.checkpoint(tmp_path, every=1)
            for step in job.steps(8, batch=1, steps=until):
                step.allreduce(numpy.zeros(1))
                count += 1
    assert count == 2
