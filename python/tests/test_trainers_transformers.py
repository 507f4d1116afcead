"""The Trainer of transformers while workers join, are released and are killed: the losses, learning
rates and steps of one worker that trains on the same batches, and every sample once an epoch.
"""

import collections
import json
import pathlib
import threading
import types
from unittest import mock

import pytest

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")
import running_job
import trainers_common as common
from torch_world import TRAINERS, main, world

WORKER = pathlib.Path(common.__file__).with_name("trainers_transformers.py")
CLOSE = 1e-6  # the Trainer adds up losses in float32


@pytest.fixture
def training(launch, binary, tmp_path):
    """Returns training(n, config): a job of n workers, as a context manager around a
    running_job.Running; it is killed at the end of the block.
    """

    def start(n, **config):
        """A job of n workers with this config of trainers_transformers.py, which writes into the
        folder of the test.
        """
        config.setdefault("out", str(tmp_path))
        return running_job.running(
            launch, binary, tmp_path / "end", n, WORKER, json.dumps(config), prefork=TRAINERS
        )

    return start


def check(steps, results, samples, batch, epochs, clip=1.0):
    """Check a ledger, and what a worker has found (`results`): every one of so many samples once an
    epoch, in steps of `batch`, and the losses and learning rates of one worker that trains on the
    same batches, with gradients of norm `clip` at most. Return the net of that worker.
    """
    each = -(-samples // batch)
    assert [line["step"] for line in steps] == list(range(1, epochs * each + 1))
    for epoch in range(epochs):
        lines = steps[epoch * each : (epoch + 1) * each]
        taken = collections.Counter(i for line in lines for i in line["taken"])
        assert taken == collections.Counter(range(samples)), f"epoch {epoch}"
    assert [line["seen"] for line in steps] == [line["step"] for line in steps]
    alone, net = common.replay([line["taken"] for line in steps], samples, len(steps), clip)
    logged = [line for line in results["logs"] if "loss" in line]
    assert logged, results
    at = 0
    for line in logged:
        mean = sum(loss for loss, _ in alone[at : line["step"]]) / (line["step"] - at)
        assert line["loss"] == pytest.approx(mean, rel=CLOSE)
        assert line["learning_rate"] == alone[line["step"] - 1][1]
        at = line["step"]
    return net


def test_losses_joins_and_releases(training, tmp_path):
    """A worker is killed, two join and rank 0 is killed: the samples of each step are those of a
    training without losses, and logged losses, rates and the evaluation those of one worker.
    """
    arguments = dict(eval_strategy="steps", eval_steps=6, eval_on_start=True)
    with training(3, gates=[5, 9, 16], arguments=arguments) as job:
        job.read_until("GATE 5")
        job.kill(2)
        common.open_gate(tmp_path, 5)
        job.read_until("GATE 9")
        assert job.status()["goal"] == 36
        asked = threading.Thread(target=job.resize, args=(4,))
        asked.start()
        job.wait_for_spare(2)
        common.open_gate(tmp_path, 9)
        job.read_until("GATE 16")
        asked.join()
        job.kill(0)
        output = job.finish()
    ended = running_job.results(output)
    assert sorted(r[0] for r in ended) == [0, 1, 2] and "Traceback" not in output, output
    assert all(r[2] == ended[0][2] for r in ended)
    steps = common.read_ledger(tmp_path)
    assert [line["taken"] for line in steps] == common.undisturbed_batches(96, 8, 42, 3)
    net = check(steps, ended[0][2], 96, 8, 3)
    loss, right = common.evaluate(net, common.Data(37, seed=1))
    assert ended[0][2]["evaluation"] == pytest.approx([loss, right], rel=CLOSE)


ARGUMENTS = dict(
    per_device_train_batch_size=4,
    gradient_accumulation_steps=2,
    max_grad_norm=0.5,
    eval_strategy="steps",
    save_strategy="steps",
    eval_steps=5,
    save_steps=5,
    load_best_model_at_end=True,
    metric_for_best_model="loss",
    ddp_backend="gloo",  # as in a script for torchrun
)


def test_a_released_worker_ends_where_it_was_rank_0():
    """The program of a worker that was rank 0 and is released ends with exit code 0, and writes no
    results: the others go on.
    """
    from shoal.transformers import Elastic

    trainer = Elastic.__new__(Elastic)
    trainer._job, trainer._data = common.RELEASED, mock.MagicMock(parts=iter([]))
    with pytest.raises(SystemExit) as ended:
        trainer._next_part()
    assert ended.value.code == 0


def elastic(*methods, **attributes):
    """An Elastic in a job, of a Trainer that is not initialised: it has these attributes, and what
    it calls of the Trainer's own are these functions.
    """
    from shoal.transformers import Elastic

    plain = type("Plain", (), {method.__name__: method for method in methods})
    made = type("Made", (Elastic, plain), {"__init__": object.__init__})()
    vars(made).update(dict(_job=mock.Mock(), _received=None), **attributes)
    return made


def test_a_worker_that_joins_does_not_see_the_best_model(tmp_path):
    """It knows which checkpoint is the best, so that it takes part when that is loaded."""
    def _init_training_state(self, *_):
        """As the Trainer's own: it forgets a folder that is not there."""
        state = json.loads((tmp_path / "trainer_state.json").read_text())
        self.state = types.SimpleNamespace(**state)
        return 3, 4

    def _prepare_for_training(self, *_):
        """Nothing to prepare."""

    state = {"best_model_checkpoint": "/elsewhere", "global_step": 7, "max_steps": 9}
    received = {"state": json.dumps(state)}
    trainer = elastic(
        _init_training_state,
        _prepare_for_training,
        _data=mock.Mock(),
        _update=mock.Mock(),
        _over=False,
        _resumed=None,
        _received=received,
        _folder=str(tmp_path),
        _adopt_rank=mock.Mock(),
        args=mock.Mock(load_best_model_at_end=True),
    )
    with mock.patch("shoal.goal"):
        assert trainer._init_training_state(9, 3) == (3, 4)
    assert vars(trainer.state) == state
    assert not trainer._evaluate()  # eval_on_start was before


def test_workers_join_a_trainer_that_lacks_an_attribute():
    """Before 5.19 a Trainer did not have the attribute _initial_global_step: workers that join get
    what there is.
    """
    running = dict(_total_loss_scalar=2.5, _globalstep_last_logged=7, current_flos=1.0)
    handler = mock.Mock(callbacks=[])
    trainer = elastic(
        state=transformers.TrainerState(), _over=False, callback_handler=handler, **running
    )
    joined = elastic(callback_handler=handler, **{n: type(v)() for n, v in running.items()})
    joined._keep_received(trainer._state_for_joiners())
    joined._apply_received()
    assert {name: getattr(joined, name) for name in running} == running
    assert not hasattr(joined, "_initial_global_step")


def test_the_next_rank_0_has_a_repository():
    """Where rank 0 is lost that pushes to the hub, the worker that writes from then on opens the
    repository, once.
    """
    job = mock.Mock(rank=1)
    trainer = elastic(
        _job=job,
        _first=False,
        state=mock.Mock(),
        args=mock.Mock(push_to_hub=True),
        callback_handler=mock.Mock(callbacks=[]),
        hub_model_id=None,
        init_hf_repo=mock.Mock(),
    )
    with mock.patch("shoal._trainers.process.set_accelerate_rank"):
        with mock.patch("transformers.logging.set_verbosity"):
            trainer._adopt_rank()
            assert not trainer.init_hf_repo.called
            job.rank = 0
            trainer._adopt_rank()
            trainer._adopt_rank()
    trainer.init_hf_repo.assert_called_once_with()


def _train(config):
    """Train on this rank, as trainers_transformers.py does with this config, and return what that
    returns. Given to `world`.
    """
    import trainers_transformers

    return trainers_transformers.main(config)


def test_resumes_with_another_number_of_workers(tmp_path):
    """Three workers log what one does, and from a checkpoint of the Trainer, and from one of the
    job, two make the steps that are left.
    """
    def run(n, name, **config):
        """Train on n workers in a new folder of that name, to the end; return what all have found,
        and the ledger.
        """
        (tmp_path / name).mkdir()
        config = dict(out=str(tmp_path / name), samples=90, arguments=ARGUMENTS, **config)
        ended = world(n, _train, config, modules=TRAINERS.split(","))
        assert all(r[2] == ended[0][2] for r in ended)
        return ended[0][2], common.read_ledger(tmp_path / name)

    alone, steps = run(1, "one")
    check(steps, alone, 90, 8, 3, clip=0.5)
    best = min(line["eval_loss"] for line in alone["logs"] if "eval_loss" in line)
    assert alone["best"] and alone["evaluation"][0] == best
    together, same = run(3, "three", checkpoint=str(tmp_path / "own"))
    assert [line["taken"] for line in steps] == [line["taken"] for line in same]
    assert together["best"] == alone["best"]
    assert len(together["logs"]) == len(alone["logs"])
    for mine, other in zip(together["logs"], alone["logs"]):
        assert mine == {k: pytest.approx(v, rel=CLOSE) for k, v in other.items()}
    ended, rest = run(2, "two", resume=str(tmp_path / "three" / "hf" / "checkpoint-20"))
    common.check_resumed(steps, rest, 21, same=("taken",))
    last = alone["logs"][-1]
    assert ended["logs"][-1] == {k: pytest.approx(v, rel=CLOSE) for k, v in last.items()}
    step = common.remove_newest_checkpoint(tmp_path / "own")
    ended, rest = run(2, "own two", checkpoint=str(tmp_path / "own"))
    common.check_resumed(steps, rest, step + 1, same=("taken", "seen"))
    assert ended["logs"][-1] == {k: pytest.approx(v, rel=CLOSE) for k, v in last.items()}


def test_more_epochs_after_the_end(tmp_path):
    """A training that has ended is over where it is started again with the checkpoint of its job,
    and goes on where it then has more epochs.
    """
    for epochs, known in ((1, 12), (1, 12), (2, 24)):
        config = dict(out=str(tmp_path), arguments=dict(num_train_epochs=epochs))
        config["checkpoint"] = f"{tmp_path}/own"
        ended = world(1, _train, config, modules=TRAINERS.split(","))
        assert ended[0][2]["step"] == known
        steps = common.read_ledger(tmp_path)
        assert [line["step"] for line in steps] == list(range(1, known + 1))
    taken = [line["taken"] for line in steps]
    assert collections.Counter(sum(taken[12:], [])) == collections.Counter(range(96))


def _ask_on_one_worker(out):
    """Train with a callback that asks on single workers for what all do; return how many steps were
    made, and after which ones this worker evaluated, saved and logged. Given to `world`.
    """
    import shoal
    from trainers_transformers import Trainer

    seen = collections.defaultdict(list)

    class Asking(transformers.TrainerCallback):
        """Asks on rank 1, or on rank 0, as after a time that has passed there alone."""

        def on_step_end(self, args, state, control, **more):
            """Ask on rank 1 to log, and to stop later."""
            if shoal.join().rank == 1:
                control.should_log = state.global_step == 3
                control.should_training_stop = state.global_step == 5

        def on_evaluate(self, args, state, control, **more):
            """Ask on rank 0 to save."""
            seen["evaluated"].append(state.global_step)
            control.should_save = shoal.join().rank == 0

        def on_save(self, args, state, control, **more):
            """Note that all save."""
            seen["saved"].append(state.global_step)

        def on_log(self, args, state, control, logs, **more):
            """Ask on rank 1 to evaluate."""
            if "loss" in logs:
                seen["logged"].append(state.global_step)
                control.should_evaluate = shoal.join().rank == 1

    arguments = transformers.TrainingArguments(
        output_dir=out,
        per_device_train_batch_size=8,
        num_train_epochs=3,
        logging_steps=1000,
        report_to="none",
        use_cpu=True,
        save_strategy="no",
    )
    net = common.Net(96)
    trainer = Trainer(
        model=net,
        args=arguments,
        train_dataset=common.Data(96),
        eval_dataset=common.Data(37, seed=1),
        callbacks=[Asking()],
        optimizers=(common.make_optimizer(net), None),
    )
    trainer.train()
    return [trainer.state.global_step, seen]


def test_what_a_callback_asks_for_on_one_worker_all_do(tmp_path):
    """A log, an evaluation, a save and the end of the training that a callback asks for on one of
    two workers come on both, at the same step.
    """
    ended = world(2, _ask_on_one_worker, str(tmp_path), modules=TRAINERS.split(","))
    assert ended == 2 * [[5, {"logged": [3], "evaluated": [3], "saved": [3]}]]
    assert (tmp_path / "checkpoint-3").is_dir()


def test_gradients_lie_in_the_buckets_of_ddp(monkeypatch):
    """The Trainer asks DDP for gradients without memory of their own, unless the user has said
    something else about DDP.
    """
    import shoal.torch
    from shoal.transformers import Elastic

    class Plain:
        """What a Trainer has for this."""

        _job = object()
        accelerator = mock.Mock(ddp_handler=None)

        def _wrap_model(self, model, training=True):
            """The model, as of a process that is alone."""
            return model

    class Wrapping(Elastic, Plain):
        """A Trainer that is not initialised."""

        __init__ = object.__init__
        _job = Plain._job

    monkeypatch.setattr(shoal.torch, "ddp", lambda model, **options: options)
    assert Wrapping()._wrap_model("model") == {"gradient_as_bucket_view": True}
    chosen = {"gradient_as_bucket_view": False}
    Plain.accelerator.ddp_handler = mock.Mock(to_kwargs=lambda: chosen)
    assert Wrapping()._wrap_model("model") == chosen


@pytest.mark.parametrize("view", [True, False])
def test_the_steps_of_an_update(view):
    """Gradients of an update are the mean over its steps by their weights, also where DDP fills its
    buckets anew; what lies in no bucket is not copied.
    """
    from shoal._trainers.update import Sums, Update

    update, bucket = Update(mock.Mock()), torch.ones(6)
    kept, unused = torch.nn.Parameter(torch.zeros(6)), torch.nn.Parameter(torch.zeros(2))
    named = [("kept", kept), ("unused", unused)]
    model = mock.Mock(gradient_as_bucket_view=view, named_parameters=lambda: named)
    kept.grad = first = bucket[:] if view else torch.ones(6)
    update.sums = Sums(0.0, 2.0, 0.0, 0.0)
    update.stash([model])
    (stashed,) = update.before["gradients"]
    assert kept.grad is None and stashed["unused"] is None
    assert (stashed["kept"] is first) == (not view)
    bucket.zero_()
    kept.grad, unused.grad = torch.full((6,), 4.0), torch.ones(2)
    update.add_step(5.0, False, [model])
    assert kept.grad.tolist() == pytest.approx([22 / 7] * 6)  # a loop of the user sees it
    kept.grad.zero_()
    update.begin_rest([model])
    assert kept.grad is None
    update.add_step(1.0, True, [model])  # no worker had a gradient
    assert kept.grad.tolist() == [22 / 8] * 6 and unused.grad.tolist() == [5 / 8] * 2
    assert update.before is None


def test_a_worker_that_joins_within_an_update():
    """It counts the operations and tokens of the whole update, as the others do, and has the same
    mean loss.
    """
    from shoal._trainers.batches import Part
    from shoal._trainers.update import Update

    model, handed_on, counted = torch.nn.Linear(1, 1), [], []

    def take_up(before, steps, left):
        """Make an update of which some steps are made before, and these sums over all workers are
        those of the others. `left` says after each whether a lost worker has left some samples.
        """
        job = mock.Mock(**{"step.weight": 1})
        job.step.share.side_effect = [
            mock.Mock(wait=lambda sums=sums: torch.tensor(sums)) for sums in steps
        ]
        update, part = Update(job), Part([mock.Mock(samples=1)])
        update.before = before

        def pass_backward(*_):
            """A pass that has begun the sums."""
            update.begin()
            update.begin_sums(0.0, 0.0)

        def next_part():
            """Open the next step, which a worker may have joined before."""
            handed_on.append(update.before)
            return Part([mock.Mock(samples=1)])

        place = mock.Mock()
        type(place).left = mock.PropertyMock(side_effect=left)
        trainer = elastic(
            _update=update,
            _data=mock.Mock(**{"loader.place": place}),
            _backward_pass=pass_backward,
            _next_part=next_part,
            args=mock.Mock(device="cpu"),
        )
        counted.append([float(trainer._step(model, part)), part.flos, part.tokens])

    steps = [[8.0, 2.0, 300.0, 30.0], [1.0, 1.0, 100.0, 10.0], [3.0, 3.0, 200.0, 20.0]]
    take_up(None, steps, [True, True, False])
    for before, rest in zip(list(handed_on), (steps[1:], steps[2:])):
        take_up(before, rest, [True, False][-len(rest) :])
    assert counted == [[2.0, 600.0, 60.0]] * 3


def test_a_worker_that_joins_with_other_layers_frozen():
    """The gradients that it gets of an update under way go to the parameters of their names."""
    from shoal._trainers.update import Update

    def make(*frozen):
        """An update of a model of three layers, of which these are frozen, after a backward pass
        that is half of the update.
        """
        model = torch.nn.Sequential(*(torch.nn.Linear(1, 1, bias=False) for _ in range(3)))
        for i, layer in enumerate(model):
            layer.requires_grad_(i not in frozen)
            layer.weight.grad = None if i in frozen else torch.full((1, 1), i + 1.0)
        return Update(mock.Mock()), model

    there, model = make(0)
    there.add_step(1.0, False, [model])
    joined, other = make(1)
    joined.before = there.before
    joined.add_step(1.0, True, [other])
    assert [layer.weight.grad.item() for layer in other] == [0.5, 1.0, 3.0]


def test_a_version_without_parts_that_are_needed_is_refused():
    """The error has the version that there is, and the one that is needed."""
    from shoal._trainers import arguments

    with mock.patch.object(arguments.transformers, "Trainer", object):
        with pytest.raises(RuntimeError) as refused:
            arguments.check_arguments(None, None)
    said = str(refused.value)
    assert transformers.__version__ in said and "install transformers 5.6 or newer" in said


def test_what_is_not_possible():
    """Arguments that a job cannot follow raise an error with what to use in their place."""
    from shoal._trainers.arguments import check_arguments

    def refused(kind, pattern, dataset=None, **given):
        """Check that these arguments raise an error of a kind, with this text."""
        args = transformers.TrainingArguments("unused", use_cpu=True, report_to="none", **given)
        with pytest.raises(kind, match=pattern):
            check_arguments(args, dataset)

    refused(TypeError, "without a length", iter([]))
    refused(TypeError, "which is iterable", mock.Mock(spec=torch.utils.data.IterableDataset))
    refused(ValueError, "lengths", train_sampling_strategy="group_by_length")
    refused(ValueError, "auto_find_batch_size", auto_find_batch_size=True)
    for optim in ("galore_adafactor_layerwise", "apollo_adamw_layerwise", "lomo", "adalomo"):
        refused(ValueError, f"{optim}'.* within the backward pass", optim=optim)
    args = transformers.TrainingArguments("unused", use_cpu=True, report_to="none")
    for name in ("fsdp", "deepspeed"):
        setattr(args, name, "full_shard")
        with pytest.raises(ValueError, match="a fixed number of processes"):
            check_arguments(args, None)
        setattr(args, name, None)


if __name__ == "__main__":
    main(globals())
