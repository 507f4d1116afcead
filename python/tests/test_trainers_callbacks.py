"""The callbacks of the Trainer of transformers on workers that join, and what they are given."""

from unittest import mock

import pytest

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")
import trainers_common as common
from torch_world import TRAINERS, main, world


class Counting(transformers.TrainerCallback):
    """A callback of a user, with a count."""

    def __init__(self, count):
        """Begin with a count."""
        self.count = count


def test_states_go_to_callbacks_of_the_same_class():
    """Also where rank 0 has one more, or the order is another one since it has resumed."""
    from shoal._trainers.callbacks import states_of, take_states

    def stopping(count):
        """A callback of transformers that has waited for so many evaluations."""
        made = transformers.EarlyStoppingCallback()
        made.early_stopping_patience_counter = count
        return made

    more = type("More", (transformers.TrainerCallback,), {})()
    states = states_of([more, Counting(1), Counting(2), stopping(3)])
    first, second, last = mine = [stopping(0), Counting(0), Counting(0)]
    take_states(mine, states)
    assert first.early_stopping_patience_counter == 3
    assert [second.count, last.count] == [1, 2]


def test_arguments_of_a_trainer_that_hands_them_on():
    """What a job cannot do is refused also where a Trainer of the user's own is between."""
    from shoal.transformers import Elastic

    class Own(transformers.Trainer):
        """A Trainer that hands on what it gets."""

        def __init__(self, *arguments, **options):
            """As the Trainer's own."""
            super().__init__(*arguments, **options)

    made, asks = type("Made", (Elastic, Own), {}), transformers.TrainingArguments
    args = asks("unused", use_cpu=True, report_to="none", auto_find_batch_size=True)
    with mock.patch("shoal._trainers.process.is_launched", return_value=True):
        for given, options in ((None, args), {}), ((), {"model": None, "args": args}):
            with pytest.raises(ValueError, match="auto_find_batch_size"):
                made(*given, **options)
        with pytest.raises(TypeError, match="which is iterable"):
            made(None, asks("unused", use_cpu=True), None, iter([]))
        kind = type("Lomo", (torch.optim.SGD,), {"__module__": "lomo_optim.lomo"})
        lomo = kind([torch.nn.Parameter(torch.ones(2))], 0.1)
        with pytest.raises(ValueError, match="Lomo makes its steps within the backward pass"):
            made(None, asks("unused", use_cpu=True), optimizers=(lomo, None))


class Watching(transformers.TrainerCallback):
    """Keeps what the loaders of evaluations have as their first sample, by its keys."""

    def __init__(self):
        """Nothing is seen yet."""
        self.seen = []

    def on_prediction_step(self, args, state, control, eval_dataloader=None, **more):
        """Look at the loader."""
        self.seen.append(sorted(eval_dataloader.dataset[0]))

    def on_evaluate(self, args, state, control, eval_dataloader=None, **more):
        """Look at the loader."""
        self.seen.append(sorted(eval_dataloader.dataset[0]))


def _evaluate(out):
    """Train with an evaluation; return what a callback has seen. Given to `world`."""
    from trainers_transformers import Trainer

    watching = Watching()
    arguments = transformers.TrainingArguments(
        out,
        num_train_epochs=1,
        report_to="none",
        use_cpu=True,
        eval_strategy="epoch",
        save_strategy="no",
    )
    trainer = Trainer(
        model=common.Net(16),
        args=arguments,
        train_dataset=common.Data(16),
        eval_dataset=common.Data(8, seed=1),
        callbacks=[watching],
    )
    trainer.train()
    return watching.seen


def test_the_loader_that_callbacks_see(tmp_path):
    """Callbacks see the loader of the samples that are evaluated."""
    for seen in world(2, _evaluate, str(tmp_path), modules=TRAINERS.split(",")):
        assert seen == [["index", "labels", "x"]] * 2


def test_a_worker_that_joins_behind_the_last_epoch():
    """It has the loss of the training, as the others."""
    from shoal.transformers import Elastic

    class Plain:
        """What a Trainer has for this."""

        def _finalize_training(self):
            """The loss."""
            return self._total_loss_scalar

    joined = type("Joined", (Elastic, Plain), {"__init__": object.__init__})()
    vars(joined).update(
        _job=mock.Mock(rank=1),
        _data=mock.Mock(),
        state=mock.Mock(),
        callback_handler=mock.Mock(callbacks=[]),
        _first=False,
        _total_loss_scalar=0.0,
        _received={"running": {"_total_loss_scalar": 2.5}, "loss": None, "callbacks": []},
    )
    with mock.patch("shoal._trainers.process.set_accelerate_rank"):
        assert joined._finalize_training() == 2.5


@pytest.mark.parametrize("scaled, weight", [(None, 5), (True, 5), (False, 2)])
def test_what_a_loss_is_weighted_by(scaled, weight):
    """A loss that is divided by the number of tokens is weighted by tokens over the workers, and
    one that a Trainer says is the mean of its batch by samples.
    """
    from shoal._trainers.batches import MicroBatch
    from shoal.transformers import Elastic

    made = type("Made", (Elastic,), {"__init__": object.__init__, "_adopt_rank": mock.Mock()})()
    made._job, made.args = mock.Mock(**{"step.weight": 2}), mock.Mock()
    made._data = mock.Mock(parts=iter([[MicroBatch({}, 2)]]))
    made._get_num_items_in_batch = lambda *_: torch.tensor(5)
    made.loss_is_scaled_for_ga = scaled
    assert made._next_part().items == 5 and made._job.step.weight == weight


def test_a_checkpoint_at_sigterm_is_refused():
    """One worker alone would save, where all workers of a job do it together."""
    from shoal._trainers.arguments import check_arguments

    args = transformers.TrainingArguments("unused", use_cpu=True, report_to="none")
    args.enable_jit_checkpoint = True
    with pytest.raises(ValueError, match="enable_jit_checkpoint=.* gets SIGTERM"):
        check_arguments(args, None)


def test_a_trainer_that_is_made_shows_no_bar():
    """A bar begins with the training, or in it on a worker that becomes rank 0."""
    from shoal._trainers.callbacks import show_progress

    bar = transformers.trainer_callback.ProgressCallback()
    trainer = mock.Mock(state=transformers.TrainerState(is_world_process_zero=True))
    trainer.callback_handler.callbacks = [bar]
    show_progress(trainer)
    assert bar.training_bar is None
    trainer.state.max_steps, trainer.state.global_step = 9, 4
    show_progress(trainer)
    assert (bar.training_bar.n, bar.training_bar.total) == (4, 9)
    bar.training_bar.close()


if __name__ == "__main__":
    main(globals())
