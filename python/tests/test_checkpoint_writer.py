"""What a worker does with a checkpoint that cannot be written, or is given up."""

import os
import shutil
import types

import shoal
from shoal._checkpoint import writer
from shoal._checkpoint.commit import Unsealed


def test_what_is_abandoned_is_renamed_before_it_is_removed(tmp_path, monkeypatch):
    """Who still writes a part finds the folder gone, and cannot seal it half removed."""
    attempt = Unsealed(str(tmp_path), 3, 7)
    os.makedirs(attempt.path)
    removed = []
    monkeypatch.setattr(shutil, "rmtree", lambda path, **_: removed.append(os.path.exists(path)))
    attempt.abandon()
    assert removed == [True] and not os.path.exists(attempt.path)


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
