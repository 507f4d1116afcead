"""The Trainer of transformers where the samples of an evaluation have no numbers."""

import pytest

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")
import trainers_common as common
from torch_world import TRAINERS, main, world


class Stream(torch.utils.data.IterableDataset):
    """The samples of a Data, without a length."""

    def __iter__(self):
        """All of them, in order."""
        data = common.Data(40, seed=1)
        return (data[i] for i in range(40))


def _evaluate_a_stream(out):
    """The loss and the number of predictions of an evaluation of a Stream. Given to `world`."""
    from trainers_transformers import Trainer

    arguments = transformers.TrainingArguments(output_dir=out, report_to="none", use_cpu=True)
    net = common.Net(8)
    trainer = Trainer(
        model=net, args=arguments, train_dataset=common.Data(8), eval_dataset=Stream()
    )
    found = [trainer.evaluate()["eval_loss"], len(trainer.predict(Stream()).predictions)]
    return [found, common.evaluate(net, common.Data(40, seed=1))[0]]


def test_each_worker_evaluates_what_is_iterable(tmp_path):
    """Where the samples of an evaluation have no numbers, each worker evaluates all of them."""
    for found, loss in world(2, _evaluate_a_stream, str(tmp_path), modules=TRAINERS.split(",")):
        assert found == [pytest.approx(loss, rel=1e-6), 40]


if __name__ == "__main__":
    main(globals())
