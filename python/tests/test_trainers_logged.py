"""What modules and callbacks of Lightning do on some of the workers, and with metrics."""

from unittest import mock

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("lightning")
import trainers_common as common
from torch_world import TRAINERS, main, world


def test_the_writer_of_a_checkpoint_is_lost():
    """Another worker writes the checkpoint where rank 0 is lost before it has done it."""
    from shoal.lightning import Strategy

    strategy = Strategy.__new__(Strategy)
    strategy._job, strategy._train, strategy._logged = mock.Mock(rank=1), mock.Mock(), mock.Mock()
    strategy._train.loader.place.pack.return_value = b"place"
    strategy._checkpoint_io = mock.Mock()
    with mock.patch("shoal._trainers.checkpoints.allgather_objects", lambda job, x: {1: x}):
        strategy.save_checkpoint({}, "file")
    written = {"shoal-place": b"place".hex(), "shoal-logged": mock.ANY}
    strategy._checkpoint_io.save_checkpoint.assert_called_once_with(
        written, "file", storage_options=None
    )


@pytest.mark.parametrize("steps, taken", [(5, True), (12, False)])
def test_the_next_epoch_has_nothing_of_the_one_before(steps, taken):
    """What was logged in an epoch goes on from a checkpoint in the middle of it, and not from one
    at its end, nor beyond its end.
    """
    from lightning.pytorch.trainer.states import TrainerFn
    from shoal._live.object_collectives import pack
    from shoal._trainers.logged import Logged
    from shoal.cursor import Cursor
    from shoal.lightning import Strategy

    place = Cursor.start(96, 8)
    for _ in range(steps):
        place = place.commit(1, [True])
    strategy = Strategy.__new__(Strategy)
    strategy._job, strategy._logged = common.RELEASED, Logged(mock.Mock())
    strategy._lightning_module = mock.Mock()
    strategy._lightning_module.trainer.state.fn = TrainerFn.FITTING
    values = {"training_step.loss": [torch.tensor(6.0), torch.tensor(3)]}
    saved = {"shoal-place": place.pack().hex(), "shoal-logged": pack(values)}
    own = "lightning.pytorch.strategies.Strategy.load_checkpoint"
    with mock.patch(own, return_value=saved):
        strategy.load_checkpoint("unused")
    assert strategy._place == place and ([*strategy._logged._before] == [*values]) is taken
    strategy._logged.end_epoch()
    assert not strategy._logged._before


@pytest.mark.parametrize(
    "mine, other, how, want",
    [
        (torch.tensor(3), 4.0, "mean", 3.5),
        (torch.tensor(True), 0.0, "mean", 0.5),
        (torch.tensor(6e4, dtype=torch.float16), 6e4, "sum", 12e4),
        (torch.tensor(1.0, dtype=torch.bfloat16), 1 + 2**-7, "mean", 1 + 2**-8),
    ],
)
def test_values_of_short_and_whole_types(mine, other, how, want):
    """Values of two workers, each of one sample, are put together as numbers of 32 bits, whatever
    type they have: so does Lightning those of one.
    """
    from shoal._trainers.logged import Logged

    job, results = mock.Mock(), mock.Mock()
    job.step.committed, own, logged = False, results.log, Logged(job)
    there = torch.tensor([other, 1.0] * 2, dtype=torch.float64)
    job.step.share = lambda x, **_: mock.Mock(wait=lambda: x + there[: len(x)])
    logged.begin(results)
    logged.weight = 1
    results.log("training_step", "value", mine, reduce_fx=how)
    logged.end_step(whole=True)
    assert own.call_args.args[2].item() == want


def _log_in_last_batches():
    """Train for a step of eight batches of one sample, and log a 1 in the last of them, and a
    number in all, which grows; return what was logged for the step, and the epoch. Given to
    `world`.
    """
    import trainers_lightning

    def step(module, batch, index):
        """As the module's own, and log in the last batch, and a number in all."""
        for how in ("mean", "max", "min"):
            if index == 7:
                module.log(how, 1.0, on_step=True, on_epoch=True, reduce_fx=how)
            module.log(f"all {how}", float(index), on_step=True, on_epoch=True, reduce_fx=how)
        return trainers_lightning.Module.training_step(module, batch, index)

    found = _fit({"training_step": step}, batch=1, accumulate_grad_batches=8)[0].callback_metrics
    names = ("mean", "max", "min", "all max", "all min")
    return [[found[f"{name}_{when}"].item() for when in ("step", "epoch")] for name in names]


def test_a_value_of_a_batch_for_which_no_worker_has_samples():
    """What a step logs in one of its batches is a number, also where it has more batches than each
    worker has samples.
    """
    want = [[1.0, 1.0]] * 3 + [[3.0, 3.0], [0.0, 0.0]]  # each worker has four of the samples
    assert world(2, _log_in_last_batches, modules=TRAINERS.split(",")) == [want] * 2


def _fit(changes, batch=8, **options):
    """Train a module of the tests for a step of 8 samples, with these methods in place of its own,
    and a validation of 8 samples; return the trainer and the module. `options` are the Trainer's.
    Called on each rank.
    """
    import lightning
    import shoal.lightning
    import trainers_lightning

    module = type("Changed", (trainers_lightning.Module,), changes)(8, 1)
    trainer = lightning.Trainer(
        strategy=shoal.lightning.Strategy(),
        accelerator="cpu",
        max_epochs=1,
        logger=False,
        enable_checkpointing=False,
        enable_model_summary=False,
        **options,
    )
    load = torch.utils.data.DataLoader
    trainer.fit(module, load(common.Data(8), batch), load(common.Data(8, seed=1), 4))
    return trainer, module


def _log_on_rank_0():
    """Train with a value that rank 0 alone logs; return it, None where it is not there. Given to
    `world`.
    """
    import trainers_lightning

    def step(module, batch, index):
        """As the module's own, and log on rank 0."""
        if module.trainer.is_global_zero:
            module.log("mine", 5.0, rank_zero_only=True)
        return trainers_lightning.Module.training_step(module, batch, index)

    trainer, _ = _fit({"training_step": step})
    found = trainer.callback_metrics.get("mine")
    return None if found is None else float(found)


def test_a_value_of_rank_0_alone():
    """A value that is logged with rank_zero_only may come from rank 0 alone."""
    assert world(2, _log_on_rank_0, modules=TRAINERS.split(",")) == [5.0, None]


def _test_after_training():
    """Test modules after the training, of which the second has no parameter that is trained;
    return the class of what was tested last. Given to `world`.
    """
    import trainers_lightning

    trainer, module = _fit({})
    frozen = trainers_lightning.Module(8, 1).requires_grad_(False)
    for tested in module, frozen:
        tested.test_step = tested.validation_step
        trainer.test(tested, torch.utils.data.DataLoader(common.Data(8), 4), verbose=False)
    return type(trainer.strategy.model).__name__


def test_tests_behind_the_training():
    """A module that is tested is the plain one, whether its parameters are trained or not."""
    assert world(2, _test_after_training, modules=TRAINERS.split(",")) == ["Module"] * 2


def _count_samples():
    """Count the samples of validations and of a test with a metric of torchmetrics; return what was
    logged. Given to `world`.
    """
    import trainers_lightning
    from torchmetrics import SumMetric

    def init(module, *arguments):
        """As the module's own, with a metric."""
        trainers_lightning.Module.__init__(module, *arguments)
        module.samples = SumMetric()

    def step(module, batch, _):
        """Count the samples of a batch."""
        module.samples.update(len(batch["index"]))
        module.log("count", module.samples)

    trainer, module = _fit({"__init__": init, "validation_step": step, "test_step": step})
    found = [trainer.callback_metrics["count"].item()]
    trainer.test(module, torch.utils.data.DataLoader(common.Data(12), 4), verbose=False)
    return [*found, trainer.callback_metrics["count"].item(), module.samples.sync_on_compute]


def test_a_metric_in_an_evaluation():
    """A metric of torchmetrics has each sample once, of which each worker evaluates all."""
    found = world(2, _count_samples, modules=TRAINERS.split(","))
    assert found == [[8.0, 12.0, True]] * 2


if __name__ == "__main__":
    main(globals())
