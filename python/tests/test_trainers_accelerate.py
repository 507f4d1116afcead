"""Accelerate's own loop while workers join and are killed: the samples, learning rates and
parameters of one worker that trains on the same batches.
"""

import collections
import contextlib
import json
import pathlib
import shutil
import subprocess
import types
from typing import Any, NamedTuple
from unittest import mock

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("accelerate")
import running_job
import trainers_common as common
from torch_world import TRAINERS, main, world

WORKER = pathlib.Path(common.__file__).with_name("trainers_accelerate.py")


def check(folder, samples, epochs, first=1):
    """Check the ledger in a folder, whose first step has the number `first`: every sample once an
    epoch, and the learning rates and the parameters of a plain loop over the same batches. Return
    the ledger, and the net of the plain loop.
    """
    steps = common.read_ledger(folder)
    assert [line["step"] for line in steps] == list(range(first, first + len(steps)))
    taken = collections.Counter(i for line in steps for i in line["taken"])
    assert taken == collections.Counter({i: epochs for i in range(samples)})
    alone, net = common.replay([s["taken"] for s in steps], samples, 36, clip=0.5)
    assert [s["rate"] for s in steps] == [rate for _, rate in alone]
    ended = float.fromhex(steps[-1]["digest"])
    assert net.layers[0].weight.sum().item() == pytest.approx(ended, rel=1e-9)
    return steps, net


def test_losses_and_joins(launch, binary, tmp_path):
    """A worker is killed, another joins and rank 0 is killed: the samples of each step are those of
    a training without losses, rates and parameters those of one worker, and the last evaluation has
    every sample once.
    """
    config = json.dumps(dict(out=str(tmp_path), gates=[5, 9]))
    with running_job.running(
        launch, binary, tmp_path / "end", 3, WORKER, config, prefork=TRAINERS
    ) as job:
        output = common.lose_and_replace(job, binary, tmp_path)
    ended = running_job.results(output)
    assert "Traceback" not in output and output.count("MAIN") == 1, output
    assert sorted(r[0] for r in ended) == [0, 1] and {r[2] for r in ended} == {37}
    steps, net = check(tmp_path, 96, 3)
    assert [line["taken"] for line in steps] == common.undisturbed_batches(96, 8, common.SEED, 3)
    _, right = common.evaluate(net, common.Data(37, seed=1))
    assert all(r[3] == right for r in ended)


def test_cuts_have_no_single_sample_where_that_can_be():
    """Samples are cut evenly, in order, and in runs of two where the limit allows that."""
    from shoal._trainers.batches import cut_evenly

    def lengths(samples, count, most):
        """The lengths of `count` cuts of so many samples, of at most `most` each, which must have
        all samples in order.
        """
        cuts = cut_evenly(list(range(samples)), count, most)
        assert sum(cuts, []) == list(range(samples)) and len(cuts) == count
        return [len(cut) for cut in cuts]

    assert lengths(9, 2, 8) == [4, 5] and lengths(8, 1, 8) == [8] and lengths(3, 3, 1) == [1] * 3
    assert lengths(5, 3, 8) == [2, 3, 0] and lengths(1, 2, 4) == [1, 0]
    assert lengths(3, 2, 2) == [1, 2]  # no more than two at a time


def test_a_released_worker_ends_where_it_was_rank_0():
    """The program of a worker that was rank 0 and is released ends with exit code 0, and writes no
    results: the others go on.
    """
    from shoal.accelerate import _TrainLoader

    loader = _TrainLoader.__new__(_TrainLoader)
    loader.job, loader.loader = common.RELEASED, []
    loader.accelerator = loader.gradient_state = mock.MagicMock()
    loader._batches_per_step = loader.accelerator.gradient_accumulation_steps
    with pytest.raises(SystemExit) as ended:
        next(iter(loader))
    assert ended.value.code == 0


def _train(config):
    """Train on this rank, as trainers_accelerate.py does with this config, and return what that
    returns. Given to `world`.
    """
    import trainers_accelerate

    return trainers_accelerate.main(config)


def test_resumes_with_another_number_of_workers(tmp_path):
    """From a checkpoint of Accelerate, and from one of the job, another number of workers makes the
    steps that the first training went on with.
    """
    def run(n, name, **config):
        """Train on n workers in a folder of that name, to the end; return the ledger."""
        (tmp_path / name).mkdir(exist_ok=True)
        config.update(out=str(tmp_path / name), samples=94)
        ended = world(n, _train, config, modules=TRAINERS.split(","))
        assert all(r[2:] == ended[0][2:] for r in ended) and ended[0][2] == 37
        return common.read_ledger(tmp_path / name)

    own = tmp_path / "own"
    steps = run(2, "two", save=17, checkpoint=str(own))
    check(tmp_path / "two", 94, 3)
    # step 17 of 12 in an epoch, in batches of which a step has two
    shutil.copytree(tmp_path / "two/checkpoints/checkpoint_0", tmp_path / "one/checkpoints/0")
    same = ("taken", "rate")
    common.check_resumed(steps, run(1, "one", resume=34), 18, same)
    step = common.remove_newest_checkpoint(own)
    common.check_resumed(steps, run(3, "three", save=1000, checkpoint=str(own)), step + 1, same)


def test_the_writer_of_a_checkpoint_is_lost(tmp_path):
    """Another worker writes anew the checkpoint of which a lost one has left a part; one that was
    there before is left as it is, and Accelerate says so.
    """
    from accelerate.utils import ProjectConfiguration
    from shoal.accelerate import Accelerator

    named = ProjectConfiguration(str(tmp_path), automatic_checkpoint_naming=True)
    accelerator = Accelerator(cpu=True, project_config=named)
    accelerator._job = types.SimpleNamespace(rank=1, outside=False)
    part = tmp_path / "checkpoints/checkpoint_0/part"

    def gather(job, value):
        """What the workers have: rank 0 is lost, once it has written a part of the checkpoint."""
        if value is None:
            part.parent.mkdir(parents=True)
            part.touch()
        return {1: value}

    with contextlib.ExitStack() as patched:
        for module in ("shoal._trainers.checkpoints", "shoal.accelerate"):
            patched.enter_context(mock.patch(f"{module}.allgather_objects", gather))
        patched.enter_context(mock.patch("shoal._trainers.process.set_accelerate_rank"))
        folder = accelerator.save_state()
        assert folder == part.parent and folder.is_dir() and not part.exists()
        named.iteration, accelerator._job.rank = 0, 0
        with pytest.raises(ValueError, match="already exists"):
            accelerator.save_state()
    assert folder.is_dir()


def test_checkpoints_behind_that_of_the_job(tmp_path):
    """A job that goes on from its own checkpoint leaves those that save_state has written behind
    it; a worker that joins counts as the others do.
    """
    from accelerate.utils import ProjectConfiguration
    from shoal.accelerate import Accelerator

    named = ProjectConfiguration(str(tmp_path), automatic_checkpoint_naming=True)
    accelerator = Accelerator(cpu=True, project_config=named)
    for folder in ("checkpoint_9", "checkpoint_10", "other"):
        (tmp_path / "checkpoints" / folder).mkdir(parents=True)
    accelerator._set_checkpoint_count(4)
    assert named.iteration == 11
    accelerator._late = True
    accelerator._set_checkpoint_count(4)
    assert named.iteration == 4


def test_an_evaluation_of_a_worker_that_waits():
    """A worker that joins goes through an evaluation of before by itself, with its own rank."""
    from shoal.accelerate import _EvalLoader

    job = types.SimpleNamespace(rank=3, size=1, outside=True)  # it has its rank already
    state = types.SimpleNamespace(_add_dataloader=id, _remove_dataloader=id)
    accelerator = types.SimpleNamespace(_job=job, gradient_state=state, device="cpu")
    loader = _EvalLoader(accelerator, torch.utils.data.DataLoader(range(6), batch_size=2))
    batches = iter(loader)
    assert loader.gather_round(next(batches).tolist()) == [[0, 1]]
    assert not list(batches)


def test_an_evaluation_that_loses_a_worker():
    """Batches of an evaluation are loaded as the DataLoader says; those of a worker that is lost
    are dealt out again, and every batch is evaluated once.
    """
    from shoal.accelerate import _EvalLoader

    job = types.SimpleNamespace(rank=1, size=3, outside=False)
    state = types.SimpleNamespace(_add_dataloader=id, _remove_dataloader=id)
    accelerator = types.SimpleNamespace(_job=job, gradient_state=state, device="cpu")
    given = torch.utils.data.DataLoader(range(16), batch_size=2, num_workers=1, prefetch_factor=3)
    loader = _EvalLoader(accelerator, given)
    assert loader._own_loader([0, 1, 2]).prefetch_factor == 3
    mine, evaluated, alive = [], [], [0, 1, 2]

    def answers(_, data):
        """What all workers that are not lost have: the numbers of their batches."""
        return {rank: loader._round.get(rank) for rank in alive}

    with mock.patch("shoal.accelerate.allgather_objects", answers):
        for batch in loader:
            mine.append(batch.tolist())
            if len(mine) == 2:
                alive.remove(0)
            evaluated += loader.gather_round(None)
    assert evaluated == [0, 1, 2, 4, 5, 3, 6, 7]
    assert mine == [[2, 3], [8, 9], [6, 7], [14, 15]]


def test_an_evaluation_that_begins_later():
    """skip_first_batches leaves out the first rounds of an evaluation, on a worker that joins too,
    and the loader stays as it is.
    """
    from shoal.accelerate import Accelerator, _EvalLoader

    job = types.SimpleNamespace(rank=1, size=2, outside=False)
    state = types.SimpleNamespace(_add_dataloader=id, _remove_dataloader=id)
    accelerator = types.SimpleNamespace(_job=job, gradient_state=state, device="cpu")
    loader = _EvalLoader(accelerator, torch.utils.data.DataLoader(range(14), batch_size=2))
    rest = Accelerator.skip_first_batches(accelerator, loader, 2)
    assert [batch.tolist() for batch in rest] == [[10, 11], [12, 13]]
    assert (len(loader), len(rest)) == (4, 2)
    job.outside = True
    assert not list(Accelerator.skip_first_batches(accelerator, loader, 4))


class Pair(NamedTuple):
    """A named tuple of two tensors."""

    x: Any  # a tensor
    y: Any  # a tensor


def of_two_workers(other):
    """Replaces allgather_objects: a worker of rank 0 exchanges, in turn, with another one, which
    gives what this list has. Values come as tuples and dicts, as they are sent.
    """
    from shoal._live.object_collectives import pack, unpack

    rest = iter(other)
    return mock.patch(
        "shoal.accelerate.allgather_objects",
        lambda job, mine: {0: unpack(pack(mine)), 1: next(rest)},
    )


def test_tensors_of_unequal_length_are_padded():
    """pad_across_processes gives the tensors of all workers the size of the largest, at either end
    and in nested values; what has no such dimension stays.
    """
    from shoal.accelerate import Accelerator

    accelerator = Accelerator.__new__(Accelerator)
    accelerator._job = object()
    mine = Pair(torch.ones(2, 3, dtype=torch.long), {"z": torch.tensor(5)})
    for dim, first, want in (
        (1, False, [[1, 1, 1, -100, -100]] * 2),
        (-1, True, [[-100, -100, 1, 1, 1]] * 2),
    ):
        with of_two_workers([[5, 0]]):
            padded = accelerator.pad_across_processes(mine, dim, -100, first)
        assert type(padded) is Pair and padded.x.tolist() == want
        assert padded.x.dtype == torch.long and padded.y["z"].item() == 5


def test_gathered_values_keep_their_types():
    """gather and reduce return named tuples and the outputs of models as Accelerate does."""
    from shoal.accelerate import Accelerator
    from transformers.utils import ModelOutput

    accelerator = Accelerator.__new__(Accelerator)
    accelerator._job, accelerator._train = object(), None
    accelerator.state = types.SimpleNamespace(device="cpu")
    mine = Pair(torch.tensor([1.0]), ModelOutput(loss=torch.tensor([2.0])))
    other = (torch.tensor([3.0]), {"loss": torch.tensor([4.0])})
    with of_two_workers([other, other, [other, 1]]):
        gathered = accelerator.gather(mine)
        total = accelerator.reduce(mine)
        mean = accelerator.reduce(mine, "mean")
    for found, x, loss in (
        (gathered, [1, 3], [2, 4]),
        (total, [4], [6]),
        (mean, [2], [3]),
    ):
        assert type(found) is Pair and type(found.y) is ModelOutput
        assert found.x.tolist() == x and found.y["loss"].tolist() == loss


def test_a_mean_in_an_evaluation_within_the_training():
    """The mean is weighted by samples in the loop that trains, not in one that evaluates in it."""
    from shoal.accelerate import Accelerator

    accelerator = Accelerator.__new__(Accelerator)
    accelerator._job = object()
    accelerator._train = train = types.SimpleNamespace(samples=3, share=1.0)
    accelerator.state = types.SimpleNamespace(device="cpu")
    for active, weight, mean in (train, 3, 2.0), (object(), 1, 3.0):
        accelerator.gradient_state = types.SimpleNamespace(active_dataloader=active)
        with of_two_workers([[torch.tensor(5.0), 1]]):
            assert accelerator.reduce(torch.tensor(1.0), "mean").item() == mean, weight


def test_samplers_that_can_be_dealt_out():
    """Some of the samples, each once, and without a smaller batch at the end, are an epoch; samples
    that are drawn twice, or by a sampler of one's own, are refused.
    """
    from shoal._trainers.batches import check_dealable, samples_in_epoch, samples_to_train

    data = list(range(10))

    def dealt(sampler=None, **options):
        """How many samples an epoch takes of a DataLoader with this sampler."""
        loader = torch.utils.data.DataLoader(data, 4, sampler=sampler, **options)
        check_dealable(loader)
        return samples_in_epoch(loader, 4)

    random = torch.utils.data.RandomSampler
    assert dealt() == dealt(shuffle=True) == 10 and dealt(drop_last=True) == 8
    assert dealt(random(data, num_samples=7)) == 7
    with pytest.raises(ValueError, match="no batch.* 10 samples, a batch has 12, and drop_last"):
        samples_to_train(torch.utils.data.DataLoader(data, 12, drop_last=True), 12)
    for sampler in (
        random(data, replacement=True),
        random(data, num_samples=11),
        random(data[:5]),
        torch.utils.data.SequentialSampler(data[:5]),
    ):
        with pytest.raises(ValueError, match="once an epoch"):
            dealt(sampler)
    with pytest.raises(ValueError, match="batch_size=None.* is a batch already"):
        check_dealable(torch.utils.data.DataLoader(data, batch_size=None))
    with pytest.raises(ValueError, match="SubsetRandomSampler"):
        dealt(torch.utils.data.SubsetRandomSampler(data))
    with pytest.raises(TypeError, match="__len__"):
        check_dealable(types.SimpleNamespace(dataset=iter(data)))
    batches = torch.utils.data.BatchSampler(random(data), 4, drop_last=True)
    prepared = torch.utils.data.DataLoader(data, batch_sampler=batches)  # as Accelerate makes them
    with pytest.raises(ValueError, match="a sampler of its own, BatchSampler.* give it batch_size"):
        check_dealable(prepared)
    check_dealable(prepared, random(data))
    assert samples_in_epoch(prepared, 4, random(data)) == 8


def test_a_training_that_has_begun_goes_on_where_it_is():
    """load_state and skip_first_batches after the first step leave the place in the data, which
    the agent of the job counts on from.
    """
    from shoal.accelerate import _TrainLoader
    from shoal.cursor import Cursor

    loader = _TrainLoader.__new__(_TrainLoader)
    progress, place = mock.Mock(begun=True), Cursor.start(96, 8)
    loader.job, loader.placed = types.SimpleNamespace(_progress=progress, outside=False), False
    loader.loader, loader._batches_per_step = types.SimpleNamespace(place=place), 1
    for begun, moves in (True, 0), (False, 2):
        progress.begun = begun
        loader.begin_at(place)
        loader.skip(3)
        assert progress.move_to.call_count == moves and loader.placed == (not begun)


def test_a_loader_that_is_prepared_alone():
    """prepare_data_loader deals out what it gets, as prepare does; a backward pass in the loop over
    a loader that is not that of the training is refused.
    """
    from shoal.accelerate import Accelerator, _EvalLoader, _TrainLoader

    accelerator = Accelerator.__new__(Accelerator)
    accelerator._job, accelerator._train = types.SimpleNamespace(rank=0, size=2), None
    accelerator.gradient_state = types.SimpleNamespace(num_steps=1)
    data = torch.utils.data.DataLoader(range(6), batch_size=2)
    with mock.patch("shoal.torch.loader"), mock.patch("accelerate.Accelerator.prepare_data_loader"):
        train = accelerator.prepare_data_loader(data)
        other = accelerator.prepare_data_loader(data, device_placement=True)
    assert type(train) is _TrainLoader and type(other) is _EvalLoader
    accelerator.gradient_state.num_steps = 2
    with pytest.raises(RuntimeError, match="changed after prepare"):
        next(iter(train))
    accelerator.gradient_state.active_dataloader = other
    with pytest.raises(RuntimeError, match="a job has one training"):
        accelerator.backward(torch.ones(()))


def test_a_model_that_is_prepared_before_its_loader_is_refused():
    """Also where it is prepared alone; one that is only evaluated may come first."""
    from shoal.accelerate import Accelerator

    accelerator, model = Accelerator.__new__(Accelerator), torch.nn.Linear(2, 2)
    accelerator._job, accelerator._train = object(), None
    with mock.patch("accelerate.Accelerator.prepare_model", return_value=model) as prepare:
        with pytest.raises(RuntimeError, match="before the DataLoader.*evaluation_mode=True"):
            accelerator.prepare_model(model)
        assert not prepare.called
        assert accelerator.prepare_model(model, evaluation_mode=True) is model


def _train_two_models(losses):
    """Train two models, with so many losses for each batch; return what the error says. Given to
    `world`.
    """
    from shoal.accelerate import Accelerator

    torch.manual_seed(common.SEED)
    accelerator, models = Accelerator(cpu=True), [torch.nn.Linear(2, 1) for _ in range(2)]
    data = torch.utils.data.DataLoader(torch.randn(16, 2), batch_size=8)
    *models, loader = accelerator.prepare(*models, data)
    with pytest.raises(RuntimeError) as refused:
        for x in loader:
            found = [model(x).square().mean() for model in models]
            for loss in found if losses == 2 else [sum(found)]:
                accelerator.backward(loss)
    return str(refused.value)


@pytest.mark.parametrize("losses", [1, 2])
def test_two_models_are_refused_in_the_words_of_accelerate(losses):
    """A second average in a step, of another model, is refused with what to do with Accelerate."""
    for said in world(2, _train_two_models, losses, modules=TRAINERS.split(",")):
        assert "give prepare() one module that holds them all" in said, said
        assert "no_sync" not in said, said


@pytest.mark.parametrize("breaks", [True, False])
def test_what_is_behind_the_loop_of_a_job_that_is_stopped(launch, binary, tmp_path, breaks):
    """After `shoal stop` rank 0 runs what is after the loop over epochs where this ends by
    job.released; where it does not, the output says so.
    """
    config = json.dumps(dict(out=str(tmp_path), gates=[5], breaks=breaks))
    with running_job.running(
        launch, binary, tmp_path / "end", 2, WORKER, config, prefork=TRAINERS
    ) as job:
        job.read_until("GATE 5")
        asked = subprocess.Popen([binary, "stop", job.name], stdout=subprocess.DEVNULL)
        while job.status()["state"] != "stopping":
            pass
        common.open_gate(tmp_path, 5)
        output = job.finish()
        asked.wait()
    assert "Traceback" not in output and output.count("MAIN") == breaks, output
    assert output.count("if shoal.join().released: break") == (not breaks), output


def test_what_cuts_a_model_is_refused(monkeypatch):
    """Variables of `accelerate launch`, and options of an Accelerator, that want a fixed number of
    processes are refused.
    """
    from accelerate.state import PartialState
    from shoal._trainers import process

    monkeypatch.setattr(process, "is_launched", lambda: True)
    monkeypatch.setattr(PartialState, "__init__", lambda self: None)
    monkeypatch.setenv("ACCELERATE_USE_FSDP", "True")
    with pytest.raises(ValueError, match="ACCELERATE_USE_FSDP=true.* fixed number"):
        process.hide_from_accelerate()
    with pytest.raises(ValueError, match="parallelism_config"):
        process.check_options({"fsdp_plugin": None, "parallelism_config": object()})
    plugin = types.SimpleNamespace(sync_with_dataloader=False)
    with pytest.raises(ValueError, match="batches of two epochs"):
        process.check_options({"gradient_accumulation_plugin": plugin})


def test_an_optimizer_that_steps_in_the_backward_pass_is_refused():
    """In a job; without one it is prepared as ever."""
    from shoal.accelerate import Accelerator

    kind = type("Lomo", (torch.optim.SGD,), {"__module__": "lomo_optim.lomo"})
    parameters, accelerator = [torch.nn.Parameter(torch.ones(2))], Accelerator.__new__(Accelerator)
    lomo, sgd = kind(parameters, 0.1), torch.optim.SGD(parameters, 0.1)
    with mock.patch("accelerate.Accelerator.prepare_optimizer", side_effect=lambda x: x):
        accelerator._job = None
        assert accelerator.prepare_optimizer(lomo) is lomo
        accelerator._job = object()
        assert accelerator.prepare_optimizer(sgd) is sgd
        with pytest.raises(ValueError, match="Lomo makes its steps within the backward pass"):
            accelerator.prepare_optimizer(lomo)


def test_a_worker_that_waits_writes_no_checkpoint(tmp_path):
    """The program of a worker that joins goes through the epochs of before, and what it saves after
    each leaves the checkpoint of the others as it is.
    """
    from shoal.accelerate import Accelerator

    accelerator = Accelerator.__new__(Accelerator)
    accelerator._job = types.SimpleNamespace(rank=3, size=1, outside=True)
    accelerator._train, accelerator._writing = None, False
    accelerator.project_configuration = types.SimpleNamespace(iteration=0)
    with mock.patch("accelerate.Accelerator.save_state", return_value=tmp_path) as save:
        assert accelerator.save_state(str(tmp_path)) is None
    assert not save.called and accelerator.project_configuration.iteration == 0


if __name__ == "__main__":
    main(globals())
