"""The Trainer of transformers, started again after it has stopped early."""

from unittest import mock

import pytest

pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")
import trainers_common as common
from torch_world import TRAINERS, main, world


def test_a_training_that_had_stopped_early(tmp_path):
    """A training that has stopped early makes no step where it is started again, and says so."""
    modules = TRAINERS.split(",")
    first, again = [world(1, _stop_early, str(tmp_path), modules=modules) for _ in range(2)]
    assert first == [[5, []]]
    ((steps, (line,)),) = again
    assert steps == 5 and "stopped early, after step 5, and makes no more steps" in line


def _stop_early(out):
    """Train with a callback that stops after step 5, and checkpoints of the job; return the number
    of steps, and the lines that the checkpoints of trainers log. Given to `world`.
    """
    import shoal
    from trainers_transformers import Trainer

    class Stopping(transformers.TrainerCallback):
        """Stops the training."""

        def on_step_end(self, args, state, control, **more):
            """Ask to stop."""
            control.should_training_stop = state.global_step == 5

    shoal.join().checkpoint(f"{out}/own", every=9)
    trainer = Trainer(
        model=common.Net(96),
        args=transformers.TrainingArguments(f"{out}/saved", use_cpu=True, report_to=[]),
        train_dataset=common.Data(96),
        callbacks=[Stopping()],
    )
    with mock.patch("shoal._trainers.checkpoints.log_line") as told:
        trainer.train()
        return trainer.state.global_step, [call.args[0] for call in told.call_args_list]


if __name__ == "__main__":
    main(globals())
