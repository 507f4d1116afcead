"""Trainers of other people where the workers of a job see other files."""

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


if __name__ == "__main__":
    main(globals())
