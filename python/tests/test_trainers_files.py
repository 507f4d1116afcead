"""Trainers of other people where the workers of a job see other files."""

import dataclasses
import json
import types
from unittest import mock

import pytest

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")
import trainers_common as common
from torch_world import TRAINERS, main, world


def _resume_from_nothing(out):
    """Resume a Trainer whose folder no worker but this one would make; return the error's text.
    Given to `world`.
    """
    from trainers_transformers import Trainer

    import shoal

    arguments = transformers.TrainingArguments(
        output_dir=f"{out}/{shoal.join().rank}", report_to="none", use_cpu=True
    )
    trainer = Trainer(model=common.Net(8), args=arguments, train_dataset=common.Data(8))
    with pytest.raises(ValueError) as refused:
        trainer.train(resume_from_checkpoint=True)
    return str(refused.value)


def test_a_training_resumes_without_a_checkpoint(tmp_path):
    """Every worker says what the Trainer says, not that its folder is not there."""
    for said in world(2, _resume_from_nothing, str(tmp_path), modules=TRAINERS.split(",")):
        assert "No valid checkpoint found in output directory" in said


def test_a_checkpoint_of_a_job_with_shares_is_one_of_the_same_data(tmp_path, capfd):
    """The shares that its workers had say nothing of the samples; another batch does."""
    from shoal._trainers.checkpoints import place_after_updates, write_place
    from shoal.cursor import Cursor

    start = Cursor.start(96, 8, seed=3)
    place = dataclasses.replace(start, shares=(3, 1), epoch=1, step=14, next=16)
    write_place(tmp_path, place)
    assert place_after_updates(str(tmp_path), 14, start, 12) == place
    assert not capfd.readouterr().err
    counted = place_after_updates(str(tmp_path), 14, dataclasses.replace(start, batch=4), 12)
    assert counted.next == 8 and "with other data or batches" in capfd.readouterr().err


@pytest.mark.parametrize("joins, version", [(True, 4), (False, 5)])
def test_the_folder_of_tensorboard(joins, version):
    """A worker that joins, and may become rank 0, goes on in the folder of TensorBoard's files that
    the others have, where it would find that folder and take the next. A job that goes on from its
    checkpoint takes the next one. A logger for CSV, which removes files, keeps its own, and what
    others call a version is not sent: it may be anything.
    """
    pytest.importorskip("lightning")
    from lightning.pytorch import loggers
    from shoal._trainers.saved import Saved

    def saved(version):
        """What a Trainer has whose loggers have this version, without TensorBoard."""
        tensorboard = loggers.TensorBoardLogger.__new__(loggers.TensorBoardLogger)
        tensorboard._version = version
        trainer = mock.MagicMock(callbacks=[], datamodule=None, optimizers=[])
        foreign = types.SimpleNamespace(version=version, _version=object())
        trainer.loggers = [tensorboard, loggers.CSVLogger("", version=version), foreign]
        trainer.lightning_module.on_save_checkpoint = None
        return Saved(trainer, joins), trainer.loggers

    with mock.patch("shoal._trainers.saved.is_overridden", return_value=False):
        there, here = saved(4)[0], saved(5)
        here[0].take(json.loads(json.dumps(there.state())), {}, {})
    assert [logger.version for logger in here[1]] == [version, 5, 5]


def test_a_scheduler_that_a_callback_of_lightning_makes():
    """A worker that joins after StochasticWeightAveraging has begun need not have its scheduler
    before: the state of the callback has it. A scheduler that the script makes so late it lacks.
    """
    pytest.importorskip("lightning")
    from lightning.pytorch.callbacks import StochasticWeightAveraging
    from shoal._trainers.saved import leave_out_schedulers

    import shoal.torch

    with shoal.join() as job:
        shoal.torch.loader(torch.utils.data.TensorDataset(torch.zeros(4, 2)), 2)
        model = shoal.torch.ddp(torch.nn.Linear(2, 1))
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        callback = StochasticWeightAveraging(swa_lrs=0.1)
        leave_out_schedulers(job, mock.Mock(callbacks=[callback]))
        job._state.discover()
        before = set(job._state._entries)
        callback._swa_scheduler = torch.optim.swa_utils.SWALR(optimizer, swa_lr=0.1)
        job._state.discover()
        assert set(job._state._entries) == before
        late = torch.optim.lr_scheduler.StepLR(optimizer, 1)
        job._state.discover()
        assert set(job._state._entries) - before == {"StepLR"}
        del late


if __name__ == "__main__":
    main(globals())
