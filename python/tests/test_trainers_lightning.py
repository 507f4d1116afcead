"""Lightning's Trainer while workers join and are killed: the losses, steps and parameters of one
worker that trains on the same batches.
"""

import collections
import json
import math
import pathlib
from unittest import mock

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("lightning")
import running_job
import trainers_common as common
from torch_world import TRAINERS, main, world

WORKER = pathlib.Path(common.__file__).with_name("trainers_lightning.py")


@pytest.mark.parametrize("accumulate", [1, 8])
def test_losses_and_joins(launch, binary, tmp_path, accumulate):
    """A worker is killed, another joins and rank 0 is killed: the samples of each step are those of
    a training without losses, losses and evaluations those of one worker, and all workers end with
    the same.
    """
    batch = dict(batch=8 // accumulate, accumulate=accumulate)
    config = json.dumps(dict(out=str(tmp_path), gates=[5, 9], **batch))
    with running_job.running(
        launch, binary, tmp_path / "end", 3, WORKER, config, prefork=TRAINERS
    ) as job:
        output = common.lose_and_replace(job, binary, tmp_path)
    ended = running_job.results(output)
    assert "Traceback" not in output and sorted(r[0] for r in ended) == [0, 1], output
    for result in ended:
        assert result[2] == ended[0][2]
    steps = common.read_ledger(tmp_path)
    assert [line["step"] for line in steps] == list(range(1, 37))
    assert [line["seen"] for line in steps] == list(range(1, 37))
    assert [line["taken"] for line in steps] == common.undisturbed_batches(96, 8, common.SEED, 3)
    alone, net = common.replay([s["taken"] for s in steps], 96, 36, clip=0.5)
    for line, (loss, rate) in zip(steps, alone):
        assert line["loss"] == pytest.approx(loss, rel=1e-6), line
        assert line["rate"] == rate, line
    loss, right = common.evaluate(net, common.Data(37, seed=1))
    assert ended[0][2][2][-1][1:] == pytest.approx([loss, right], rel=1e-6)
    assert len(ended[0][2][2]) == 3


def test_a_released_worker_ends_where_it_was_rank_0():
    """The program of a worker that was rank 0 and is released ends with exit code 0, and writes no
    results: the others go on.
    """
    from shoal.lightning import _TrainLoader

    loader = _TrainLoader.__new__(_TrainLoader)
    loader._strategy, loader._steps = mock.MagicMock(_job=common.RELEASED), iter([])
    with pytest.raises(SystemExit) as ended:
        list(loader._all_batches())
    assert ended.value.code == 0


def test_a_checkpoint_of_an_earlier_version():
    """A checkpoint of an earlier version, which has the place in the data, and not what was logged
    in the epoch so far, can be loaded. One that is evaluated before the training leaves its place.
    """
    from shoal.cursor import Cursor
    from lightning.pytorch.trainer.states import TrainerFn
    from shoal.lightning import Strategy

    strategy, place = Strategy.__new__(Strategy), Cursor.start(96, 8, 1, True)
    strategy._job, strategy._logged, strategy._place = common.RELEASED, mock.Mock(), None
    strategy._lightning_module = mock.Mock()
    old = {"shoal-place": place.pack().hex()}
    own = "lightning.pytorch.strategies.Strategy.load_checkpoint"
    for fn, kept in ("validate", None), ("fit", place):
        strategy._lightning_module.trainer.state.fn = TrainerFn(fn)
        with mock.patch(own, return_value=old):
            assert strategy.load_checkpoint("unused") is old
        assert strategy._place == kept and not strategy._logged.take_epoch_values.called


def test_a_metric_in_a_training_step_is_refused():
    """A metric of torchmetrics would see the samples of one worker: the error says what to log in
    its place. Elsewhere, and once the step is committed, it is logged as Lightning does.
    """
    from shoal._trainers.logged import Logged
    from torchmetrics import MeanMetric

    job, results = mock.Mock(), mock.Mock()
    own, logged = results.log, Logged(job)
    logged.begin(results)
    job.step.committed = False
    with pytest.raises(TypeError, match=r"MeanMetric.*self.log\(name, metric\(predicted, target"):
        results.log("training_step", "right", MeanMetric())
    results.log("on_train_epoch_end", "right", MeanMetric())
    job.step.committed = True
    results.log("training_step", "right", MeanMetric())
    assert own.call_count == 2


@pytest.mark.parametrize("how, neutral", [("sum", 0.0), ("max", -math.inf), ("min", math.inf)])
def test_a_worker_without_samples_logs_nothing(how, neutral):
    """What a worker logs of samples that stand in for its own changes no sum, maximum or
    minimum.
    """
    from shoal._trainers.logged import Logged

    job, results = mock.Mock(), mock.Mock()
    job.step.committed, logged = False, Logged(job)
    logged.begin(results)
    for logged.weight, sent in (2, 7.0), (0, neutral):
        results.log("training_step", "value", torch.tensor(7.0), reduce_fx=how)
        share = job.step.share.call_args
        assert share.args[0][0] == sent and share.kwargs["op"] == how


def test_what_a_checkpoint_adds_and_cannot_be_sent(capfd):
    """Of what a module adds to a checkpoint, and a datamodule has, a worker that joins gets what
    can be sent, and keeps its own of the rest; the user is told once.
    """
    import lightning
    from shoal._trainers.saved import Saved

    class Module(lightning.LightningModule):
        """Adds two values to a checkpoint."""

        def on_save_checkpoint(self, checkpoint):
            """Add them; one is a number that other entries have too."""
            checkpoint.update(epochs=self.epochs, seen=self.seen)

        def on_load_checkpoint(self, checkpoint):
            """Take them over."""
            self.epochs, self.seen = checkpoint["epochs"], checkpoint["seen"]

    class Rows(lightning.LightningDataModule):
        """Has a state."""

        def state_dict(self):
            """The number of rows."""
            return {"rows": self.rows}

        def load_state_dict(self, state):
            """Take over what state_dict has returned."""
            self.rows = state["rows"]

    def saved(epochs, seen, rows):
        """What is added to the checkpoints of a new Trainer, whose module and data have this."""
        trainer = lightning.Trainer(
            accelerator="cpu", logger=False, enable_checkpointing=False, enable_progress_bar=False
        )
        trainer.strategy._lightning_module = module = Module()
        trainer.datamodule = data = Rows()
        module._trainer = trainer
        module.epochs, module.seen, data.rows = epochs, seen, rows
        return Saved(trainer, joins=True), module, data

    there, here = saved(0, {1}, 5), saved(7, {2}, 6)
    state = [there[0].state() for _ in range(2)][-1]
    here[0].take(state, {}, {})
    assert (here[1].epochs, here[1].seen, here[2].rows) == (0, {2}, 5)
    told = "workers that join do not get what a checkpoint of Lightning has: seen is a set"
    assert capfd.readouterr().err.count(told) == 1


def test_rank_0_decides_for_all():
    """Whether training stops early is what the lowest rank says."""
    from shoal.lightning import Strategy

    strategy = Strategy.__new__(Strategy)
    with mock.patch.object(Strategy, "broadcast", return_value=True) as broadcast:
        assert strategy.reduce_boolean_decision(False, all=False) is True
    broadcast.assert_called_once_with(False)


def test_loaders_that_are_made_anew_are_refused():
    """A loader of its own for each epoch is refused before the training."""
    from lightning.pytorch.trainer.states import TrainerFn
    from shoal.lightning import Strategy

    strategy, trainer = Strategy.__new__(Strategy), mock.Mock(reload_dataloaders_every_n_epochs=1)
    strategy._job, strategy._train, trainer.state.fn = object(), None, TrainerFn.FITTING
    with pytest.raises(ValueError, match="reload_dataloaders_every_n_epochs"):
        strategy.setup(trainer)


def test_manual_optimization_is_refused():
    """A module that makes its own backward passes is refused, before shoal enters the job."""
    from lightning.pytorch.trainer.states import TrainerFn
    from shoal.lightning import Strategy

    strategy, trainer = Strategy.__new__(Strategy), mock.Mock(reload_dataloaders_every_n_epochs=0)
    strategy._job, strategy._train, trainer.state.fn = object(), None, TrainerFn.FITTING
    trainer.lightning_module.automatic_optimization = False
    with pytest.raises(ValueError, match="automatic_optimization = False"):
        strategy.setup(trainer)


@pytest.mark.parametrize(
    "name, options, instead",
    [
        ("BatchSizeFinder", {}, "trains once"),
        ("GradientAccumulationScheduler", {"scheduling": {2: 4}}, "accumulate_grad_batches"),
        ("LearningRateFinder", {}, "trains once"),
    ],
)
def test_callbacks_that_a_job_cannot_follow_are_refused(name, options, instead):
    """Callbacks that train before the training, or change the batch of a step, are refused by
    name, before shoal enters the job.
    """
    from lightning.pytorch import callbacks
    from lightning.pytorch.trainer.states import TrainerFn
    from shoal.lightning import Strategy

    strategy, trainer = Strategy.__new__(Strategy), mock.Mock(reload_dataloaders_every_n_epochs=0)
    strategy._job, strategy._train, trainer.state.fn = object(), None, TrainerFn.FITTING
    trainer.callbacks = [callbacks.Callback(), getattr(callbacks, name)(**options)]
    with pytest.raises(ValueError, match=f"{name} .*{instead}"):
        strategy.setup(trainer)


def test_weights_are_not_averaged_where_batch_norms_want_another_epoch():
    """StochasticWeightAveraging is refused for a model with batch norms alone, which it takes
    through the batches once more without a backward pass.
    """
    from lightning.pytorch.callbacks import StochasticWeightAveraging
    from shoal._trainers.refused import check_trainer

    trainer = mock.Mock(reload_dataloaders_every_n_epochs=0, max_epochs=3)
    trainer.callbacks = [StochasticWeightAveraging(swa_lrs=0.1)]
    trainer.lightning_module.modules = lambda: [torch.nn.Linear(1, 1)]
    check_trainer(trainer)
    trainer.lightning_module.modules = lambda: [torch.nn.BatchNorm1d(1)]
    with pytest.raises(ValueError, match="without backward passes.* by the callback WeightAver"):
        check_trainer(trainer)


def test_several_loaders_are_refused():
    """A training with a second DataLoader is refused, before a step."""
    from shoal.lightning import Strategy

    strategy = Strategy.__new__(Strategy)
    strategy._job, strategy._fitting, strategy._train = object(), True, object()
    with pytest.raises(ValueError, match="several DataLoaders"):
        strategy.process_dataloader(torch.utils.data.DataLoader([1]))


def test_a_validation_with_a_sampler_of_batches():
    """A DataLoader that was given a BatchSampler, and so has no batch_size, is dealt out by it;
    with batches of the user's own it is not.
    """
    from shoal._trainers.rounds import is_dealable
    from shoal._trainers.validation import Validation

    data = list(range(10))
    order = torch.utils.data.SequentialSampler(data)
    batches = torch.utils.data.BatchSampler(order, 4, drop_last=False)
    loader = torch.utils.data.DataLoader(data, batch_sampler=batches)
    assert is_dealable(loader) and len(Validation(None, None, loader, 0)) == 3
    own = type("Own", (torch.utils.data.BatchSampler,), {})(order, 4, drop_last=False)
    assert not is_dealable(torch.utils.data.DataLoader(data, batch_sampler=own))


def test_a_batch_without_a_backward_pass_is_refused():
    """Where Lightning asks for the next batch and the one before had no backward pass, the error
    says what a module has done, and what to do in its place.
    """
    from shoal.lightning import _TrainLoader

    train = _TrainLoader.__new__(_TrainLoader)
    train._strategy = mock.Mock(_stepped=None, _update=mock.Mock(weight=0))
    train.loader = mock.Mock(step=mock.Mock(count=2, weight=2))
    train.batch_size, train._collate = 2, list
    train._steps = iter([[1, 2], [3, 4], [5, 6]])
    batches = train._all_batches()
    assert next(batches) == [1, 2]
    train.passed = True
    assert next(batches) == [3, 4]
    with pytest.raises(RuntimeError, match="training_step returns None"):
        next(batches)


def _train(config):
    """Train on this rank, as trainers_lightning.py does with this config, and return what that
    returns. Given to `world`.
    """
    import trainers_lightning

    return trainers_lightning.main(config)


def test_resumes_with_another_number_of_workers(tmp_path):
    """From a checkpoint of Lightning, and from one of the job, another number of workers makes the
    steps and logs the means that the first training went on with.
    """
    def run(n, name, **config):
        """Train on n workers in a new folder of that name, to the end; return what was logged for
        each epoch, and the ledger.
        """
        (tmp_path / name).mkdir()
        config.update(out=str(tmp_path / name), samples=89)
        ended = world(n, _train, config, modules=TRAINERS.split(","))
        whole = 10 * (3 if name == "two" else 2 if name == "one" else 1)
        assert sum(r[3] for r in ended) == whole, "batches validated, of all workers"
        assert all(r[2] == ended[0][2] for r in ended)
        return ended[0][2][2], common.read_ledger(tmp_path / name)

    own = tmp_path / "own"
    epochs, steps = run(2, "two", every=17, checkpoint=str(own))
    assert [s["samples"] for s in steps] == [len(s["taken"]) for s in steps]  # the last has one
    alone, _ = common.replay([s["taken"] for s in steps], 89, 36, clip=0.5)
    assert [s["loss"] for s in steps] == pytest.approx([loss for loss, _ in alone], rel=1e-6)
    same = ("taken", "loss", "rate")
    saved = str(tmp_path / "two/saved/epoch=1-step=17.ckpt")
    again, rest = run(1, "one", resume=saved)
    common.check_resumed(steps, rest, 18, same)
    # of the epoch in which it resumed, what was logged before counts too
    assert [*again[1], *again[2]] == pytest.approx([*epochs[1], *epochs[2]], rel=1e-6)
    step = common.remove_newest_checkpoint(own)
    again, rest = run(3, "three", every=1000, checkpoint=str(own))
    common.check_resumed(steps, rest, step + 1, same)
    assert again[2] == pytest.approx(epochs[2], rel=1e-6)


def test_more_epochs_after_the_end(tmp_path):
    """A training that has ended is over where it is started again with the checkpoint of its job,
    and goes on where it then has more epochs.
    """
    for epochs in (1, 1, 2):
        config = dict(out=str(tmp_path), epochs=epochs, every=9, checkpoint=str(tmp_path / "own"))
        ended = world(1, _train, config, modules=TRAINERS.split(","))
        assert ended[0][2][:2] == [12 * epochs, epochs]
        steps = common.read_ledger(tmp_path)
        assert [line["step"] for line in steps] == list(range(1, 12 * epochs + 1))
    taken = [line["taken"] for line in steps]
    assert collections.Counter(sum(taken[12:], [])) == collections.Counter(range(96))


def test_a_training_that_had_stopped_early(tmp_path):
    """A training that has stopped early makes no step where it is started again, and says so."""
    stop = dict(hook="training_step", rank=0, checkpoint=str(tmp_path))
    first, again = [world(1, _lines_told, stop, modules=TRAINERS.split(",")) for _ in range(2)]
    assert first == [[2, []]]
    ((steps, (line,)),) = again
    assert steps == 2 and "stopped early, after step 2, and makes no more steps" in line


def _lines_told(stop):
    """What _stop_on_one_worker returns, and the lines that the checkpoints of trainers log
    meanwhile. Given to `world`.
    """
    with mock.patch("shoal._trainers.checkpoints.log_line") as told:
        return _stop_on_one_worker(stop), [call.args[0] for call in told.call_args_list]


def _stop_on_one_worker(stop):
    """Train with a module that sets should_stop on one rank alone, in the method `hook`, when it is
    called for the third time or, after an epoch, for the first; return the number of steps.
    `checkpoint` is a folder for checkpoints of the job; None = none. Given to `world`.
    """
    import lightning
    import shoal.lightning
    import trainers_lightning

    import shoal

    calls, hook = [], stop["hook"]
    at = 1 if hook.endswith("_end") and "batch" not in hook else 3

    class Stopping(trainers_lightning.Module):
        """Sets should_stop in a method."""

    def count(module, *arguments):
        """As the method of the module, and ask to stop."""
        calls.append(hook)
        if len(calls) == at and shoal.join().rank == stop["rank"]:
            module.trainer.should_stop = True
        return getattr(trainers_lightning.Module, hook)(module, *arguments)

    setattr(Stopping, hook, count)
    if stop["checkpoint"]:
        shoal.join().checkpoint(stop["checkpoint"], every=9)
    trainer = lightning.Trainer(
        strategy=shoal.lightning.Strategy(),
        accelerator="cpu",
        max_epochs=3,
        accumulate_grad_batches=2,
        num_sanity_val_steps=0,
        logger=False,
        enable_checkpointing=False,
        enable_model_summary=False,
    )
    load = torch.utils.data.DataLoader
    trainer.fit(
        Stopping(96, 36),
        load(common.Data(96), batch_size=4, shuffle=True),
        load(common.Data(8, seed=1), batch_size=4),
    )
    return trainer.global_step


@pytest.mark.parametrize(
    "hook, steps",
    [
        ("training_step", 2),
        ("on_train_batch_end", 2),
        ("on_validation_end", 12),
        ("on_train_epoch_end", 12),
    ],
)
def test_one_worker_stops_all(hook, steps):
    """Where trainer.should_stop is set on one of two workers, both stop at the end of the same
    step, also where that has another batch.
    """
    stop = dict(hook=hook, rank=1, checkpoint=None)
    assert world(2, _stop_on_one_worker, stop, modules=TRAINERS.split(",")) == [steps, steps]


def _validate_by_time():
    """Train with a validation an hour, of which one is due in a batch on rank 1 alone; return the
    steps after which this worker has validated. Given to `world`.
    """
    import lightning
    import shoal.lightning
    import trainers_lightning

    import shoal

    class Timed(lightning.Callback):
        """Notes validations, and lets the time pass."""

        steps = []

        def on_train_batch_end(self, trainer, module, output, batch, index):
            """On rank 1 an hour passes in the first batch of the third step."""
            if index == 4 and trainer.current_epoch == 0 and shoal.join().rank == 1:
                trainer._last_val_time -= 3600

        def on_validation_end(self, trainer, module):
            """Note the step."""
            self.steps.append(trainer.global_step)

    lightning.seed_everything(7)
    trainer = lightning.Trainer(
        strategy=shoal.lightning.Strategy(),
        accelerator="cpu",
        max_epochs=1,
        accumulate_grad_batches=2,
        val_check_interval="00:01:00:00",
        callbacks=[Timed()],
        num_sanity_val_steps=0,
        logger=False,
        enable_checkpointing=False,
        enable_model_summary=False,
    )
    load = torch.utils.data.DataLoader
    trainer.fit(
        trainers_lightning.Module(96, 12),
        load(common.Data(96), batch_size=4, shuffle=True),
        load(common.Data(37, seed=1), batch_size=4),
    )
    return Timed.steps


def test_validations_by_the_time():
    """With a time as val_check_interval, a validation that is due on one of two workers comes on
    both, at the end of the step.
    """
    import lightning

    if tuple(map(int, lightning.__version__.split(".")[:2])) < (2, 6):
        pytest.skip("this Lightning takes no time as val_check_interval")
    assert world(2, _validate_by_time, modules=TRAINERS.split(",")) == [[3], [3]]


def test_a_limit_of_batches(tmp_path):
    """With limit_train_batches an epoch has as many batches, and the samples of its steps are
    others in the next one.
    """
    config = dict(out=str(tmp_path), samples=89, epochs=2, limit=3)
    ended = world(2, _train, config, modules=TRAINERS.split(","))
    steps = common.read_ledger(tmp_path)
    assert [len(s["taken"]) for s in steps] == [8, 4, 8, 4]
    assert len({i for s in steps for i in s["taken"]}) == 24
    assert ended[0][2][:2] == [4, 2] and ended[0][2] == ended[1][2]


if __name__ == "__main__":
    main(globals())
