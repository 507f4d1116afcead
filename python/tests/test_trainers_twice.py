"""A job trains once, whichever Trainer of other people a second training has."""

from unittest import mock

import pytest

pytest.importorskip("torch")
import shoal


def test_a_second_trainer_of_transformers_is_refused():
    """The error of a second train() says what to do, also if another Trainer made the first one."""
    pytest.importorskip("transformers")
    from shoal.transformers import Trainer

    with shoal.join() as job:
        job.register("trainer", lambda: 0, lambda value: None)
        trainer = Trainer.__new__(Trainer)
        trainer._job = job
        with pytest.raises(RuntimeError, match=r"train\(\) was called a second.*start another"):
            trainer.train()


def test_a_second_strategy_of_lightning_is_refused():
    """The error of a second fit() says what to do, also if another Strategy made the first one."""
    pytest.importorskip("lightning")
    from lightning.pytorch.trainer.states import TrainerFn
    from shoal.lightning import Strategy

    with shoal.join() as job:
        job.register("lightning", lambda: 0, lambda value: None)
        strategy, trainer = Strategy.__new__(Strategy), mock.Mock()
        strategy._job, strategy._train, trainer.state.fn = job, None, TrainerFn.FITTING
        with mock.patch("shoal.lightning.check_trainer"):
            with pytest.raises(RuntimeError, match=r"fit\(\) was called a second.*start another"):
                strategy.setup(trainer)
