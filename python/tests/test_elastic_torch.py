"""Training with PyTorch while workers join, are released and are killed: every sample exactly once
an epoch, and the same model, optimizer and scheduler everywhere, which are those that one worker
gets from the same batches. With shoal.torch.zero too, so that no part of a sharded optimizer's
state is lost on the way.
"""

import json
import os
import pathlib
import re
import select
import signal
import shutil

import pytest

np = pytest.importorskip("numpy")
torch = pytest.importorskip("torch")
import elastic_torch
import running_job
from elastic_ledger import Ledger

WORKER = pathlib.Path(elastic_torch.__file__)
ADAM, MOMENTUM = (
    dict(optimizer="adam", wrap="ddp"),
    dict(optimizer="momentum", workers=2, wrap="ddp"),
)
ITSELF = dict(optimizer="adam", workers=2, wrap="optimizer")
ZERO1, ZERO2 = (
    dict(optimizer="adam", wrap="zero", stage=1),
    dict(optimizer="momentum", wrap="zero", stage=2),
)


# Of the whole product of ways to average, loops and faults, a run meets every pair; what is marked
# so repeats pairs, and runs with --every-combination.
REPEATED = pytest.mark.combination


def parametrize_ways(*listed, repeated=()):
    """Parametrize a test by `way`, a part of the config of elastic_torch.py: it is run with each
    that is listed, and with those `repeated` only for every combination.
    """
    return pytest.mark.parametrize(
        "way",
        [
            pytest.param(
                way,
                id="-".join(map(str, way.values())),
                marks=[REPEATED] if way in repeated else [],
            )
            for way in (*listed, *repeated)
        ],
    )


@pytest.fixture
def training(launch, binary, tmp_path):
    """Returns training(n, config): a job of n workers that trains until it is told to finish, as a
    context manager around a running_job.Running; it is killed at the end of the block.
    """

    def start(n, options=(), prefork="torch", **config):
        """A job of n workers with this config of elastic_torch.py, which writes into the folder of
        the test, and these options of shoal run; `prefork` is that of `launch`.
        """
        config.update(out=str(tmp_path))
        end, text = tmp_path / "end", json.dumps(config)
        return running_job.running(
            launch, binary, end, n, WORKER, text, options=options, prefork=prefork
        )

    return start


def test_without_faults(training, tmp_path):
    """What all tests here check holds where nothing happens."""
    with training(2, samples=100) as job:
        ledger = Ledger(tmp_path, job.finish(), samples=100)
    ledger.check(2)


@parametrize_ways(ADAM, ZERO1, repeated=(MOMENTUM, ITSELF, ZERO2))
def test_join_and_release_within_an_epoch(training, tmp_path, way):
    """Workers that join and are released within an epoch leave the samples, losses and parameters
    those of one worker.
    """
    way = dict(way, samples=1600)
    with training(2, **way) as job:
        job.resize(5)
        for _ in range(3):  # members that are let go before their first step have joined nothing
            job.read_until("JOINED")
        job.resize(1)
        job.wait_for_new_step()
        job.resize(3)
        ledger = Ledger(tmp_path, job.finish(), **way)
    ledger.check(3)
    assert len(ledger.joined) == 5
    assert [line for line in ledger.joined if line["step"] % 100], "nobody joined within an epoch"


def test_the_batch_changes_while_a_worker_is_lost_and_another_joins(training, tmp_path):
    """Each sample counts once an epoch, and all workers have the same batch and rate in the same
    step, whatever the batch becomes: with a loader that loads ahead, a worker that is killed while
    a change waits, to a batch below what that worker leaves, and one that joins after it.
    """
    way = dict(MOMENTUM, samples=1600, batch_range=(8, 96))
    with training(3, **way) as job:
        job.set("batch=96", "rate=4.5")
        job.wait_for_new_step()
        job.set("batch=8", "--no-wait")
        job.kill(1)
        job.set("batch=8")
        job.wait_for_new_step()
        job.resize(3)
        job.read_until("JOINED")
        job.set("batch=32", "rate=1.5")
        job.wait_for_new_step()
        ledger = Ledger(tmp_path, job.finish(), **way)
    ledger.check(3, losses=1)
    steps = [ledger.steps[number] for number in sorted(ledger.steps)]
    batches = [(step["batch"], step["rate"]) for step in steps]
    assert list(dict.fromkeys(batches)) == [(16, 0), (96, 4.5), (8, 0), (32, 1.5)]
    # A worker that joins has what all samples are worth: those of the batch of 96 count 3/4.
    worth = sum(len(s["taken"]) * (0.75 if s["batch"] >= 32 else 1) for s in steps[:-1])
    assert steps[-1]["worth"] == worth / 1600
    assert [line["batch"] for line in ledger.joined] == [8]
    changes = re.findall(r"shoal: change (\d) at step \d+: (.*), because", ledger.output)
    assert changes == [
        ("1", "batch 16 -> 96, rate 4.5"),
        ("2", "batch 96 -> 8, rate 4.5 -> as the program has it"),
        ("3", "batch 8 -> 32, rate 1.5"),
    ]


@pytest.mark.skipif(not hasattr(torch, "compile"), reason="PyTorch 1 compiles nothing")
def test_compiled_models_train_while_workers_join_and_are_released(training, tmp_path):
    """Models that are compiled before they are wrapped, or after, train to the bits of others. So
    the workers of this job can have both.
    """
    way = dict(ADAM, samples=1600, compiled=True)
    with training(2, **way) as job:
        job.resize(4)
        for _ in range(2):
            job.read_until("JOINED")
        job.resize(3)
        job.wait_for_new_step()
        ledger = Ledger(tmp_path, job.finish(), **way)
    ledger.check(3)


@parametrize_ways(
    dict(ADAM, samples=300, nest="range"),
    dict(MOMENTUM, samples=40, nest="epochs"),
    dict(ITSELF, samples=300, nest="range"),
    dict(ZERO1, samples=300, nest="epochs"),
    repeated=(
        dict(ADAM, samples=300, nest="epochs"),
        dict(MOMENTUM, samples=40, nest="range"),
        dict(ITSELF, samples=300, nest="epochs"),
        dict(ZERO1, samples=300, nest="range"),
    ),
)
def test_a_loop_for_each_epoch_while_workers_join_and_are_released(training, tmp_path, way):
    """With a loop for each epoch too every sample counts once, and those who join begin with the
    epoch of the others.
    """
    with training(2, **way) as job:
        job.read_until(r"SAVED 2 ")
        job.resize(4)
        job.read_until("JOINED")
        job.read_until("JOINED")
        job.resize(2)
        job.wait_for_new_step()
        job.resize(3)
        ledger = Ledger(tmp_path, job.finish(), **way)
    ledger.check(3)
    ledger.check_nested()


@pytest.mark.parametrize("nest", ["range", "epochs"])
def test_a_loop_for_each_epoch_while_workers_are_killed(training, tmp_path, nest):
    """With a loop for each epoch every sample counts once also where workers are killed between two
    loops and within one, and spares take their places.
    """
    way = dict(ADAM, nest=nest, samples=100)
    with training(
        4, ["--spares", "1"], doomed=[[1, 2, "between epochs"], [2, 40, "within backward"]], **way
    ) as job:
        for worker in (1, 2):
            job.read_until(f"w{worker} was killed by SIGKILL")
            job.read_until("JOINED")
        ledger = Ledger(tmp_path, job.finish(), **way)
    ledger.check(4, losses=2)
    ledger.check_nested()


def test_loops_left_by_break_over_the_epochs_of_the_loader(launch, binary, tmp_path):
    """With loader.epochs a new worker begins with the epoch of the others although loops were left
    by break.
    """
    program = WORKER.with_name("elastic_break.py")
    with running_job.running(
        launch, binary, tmp_path / "end", 2, program, "epochs", prefork="torch"
    ) as job:
        job.resize(3)
        assert int(job.read_until(r"JOINED (\d+)")[1]) > 0, (
            "the new worker began with the first epoch"
        )
        assert "Error" not in job.finish()


def test_loops_left_by_break_that_a_new_worker_cannot_know(launch, binary, tmp_path):
    """Without loader.epochs, a new worker that cannot know the epoch of loops that were left by
    break ends with an error that says so.
    """
    program = WORKER.with_name("elastic_break.py")
    with running_job.running(
        launch, binary, tmp_path / "end", 2, program, "range", prefork="torch"
    ) as job:
        job.resize(3, "--no-wait")
        job.read_until(r"ShoalError: .* in loop \d+ .*Loop over `loader.epochs")
        job.read_until("2 workers: w2 exited with code 1")  # the others go on
        job.finish()


@parametrize_ways(ZERO1, repeated=(ADAM,))
def test_spares_take_the_places_of_killed_workers(training, tmp_path, way):
    """A spare joins as the last rank, 2, whichever rank was killed; one that is left at the end
    says nothing.
    """
    with training(3, ["--spares", "1"], **way) as job:
        for rank in (0, 2):
            job.wait_for_spare()
            job.kill(rank)
            job.read_until("JOINED")
        job.wait_for_spare()  # it is ended without a word
        output = job.finish()
    ledger = Ledger(tmp_path, output, **way)
    ledger.check(3, losses=2)
    assert [line["rank"] for line in ledger.joined] == [2, 2] and "RELEASED" not in output


@pytest.mark.parametrize(
    "n, worker, place, way",
    [
        (3, 1, "before backward", ADAM),
        (3, 1, "within backward", MOMENTUM),
        (3, 1, "after backward", ITSELF),
        pytest.param(3, 1, "after the step", MOMENTUM, marks=REPEATED),
        pytest.param(4, 0, "before backward", ZERO1, marks=REPEATED),
        pytest.param(4, 1, "after backward", ZERO2, marks=REPEATED),
        (4, 2, "after the commit", ZERO1),
        (4, 0, "after the update", ZERO2),
        (4, 1, "after the step", ZERO1),
    ],
    ids=lambda x: "-".join(map(str, x.values())) if isinstance(x, dict) else None,
)
def test_a_worker_is_killed_within_a_step(training, tmp_path, n, worker, place, way):
    """Wherever in a step a worker is killed, the others go on, and every sample counts once."""
    way = dict(way, samples=300)
    with training(n, **way, doomed=[[worker, 7, place]]) as job:
        job.read_until(f"w{worker} was killed by SIGKILL")
        ledger = Ledger(tmp_path, job.finish(), **way)
    ledger.check(n - 1, losses=1)


@pytest.mark.parametrize(
    "wrap, place",
    [
        ("ddp", "within backward"),
        pytest.param("optimizer", "after backward", marks=REPEATED),
    ],
)
def test_gradients_from_a_device_when_workers_are_killed_and_join(training, tmp_path, wrap, place):
    """With gradients on a double of a device the samples and parameters are right too."""
    with training(3, wrap=wrap, samples=300, doomed=[[1, 7, place]], gpu=True) as job:
        job.read_until("w1 was killed by SIGKILL")
        job.wait_for_new_step()
        job.resize(3)
        job.wait_for_new_step()
        ledger = Ledger(tmp_path, job.finish(), wrap=wrap, samples=300)
    ledger.check(3, losses=1)


@pytest.mark.parametrize("gpu", [pytest.param(False, marks=REPEATED), True])
def test_buckets_of_other_sizes_while_workers_are_killed_and_join(training, tmp_path, gpu):
    """Samples and parameters are right where buckets change their size while members come and
    go.
    """
    with training(
        3,
        wrap="ddp",
        samples=300,
        doomed=[[1, 25, "within backward"]],
        gpu=gpu,
        sizes=[9000, 700, 4000],
    ) as job:
        job.read_until("w1 was killed by SIGKILL")
        job.wait_for_new_step()
        job.resize(3)
        job.wait_for_new_step()
        ledger = Ledger(tmp_path, job.finish(), wrap="ddp", samples=300)
    ledger.check(3, losses=1)
    assert ledger.output.count("RECUT") >= 3, "all three workers before the loss"


@pytest.mark.parametrize(
    "wrap, place, compress",
    [
        pytest.param("ddp", "within backward", "'int8'", marks=REPEATED),
        ("ddp", "within backward", "PowerSGD(2)"),
        ("ddp", "after the step", "TopK(0.5)"),
        ("optimizer", "after backward", "'bf16'"),
    ],
)
def test_compressed_gradients_of_workers_that_are_killed_and_join(
    training, tmp_path, wrap, place, compress
):
    """With every compression the parameters are the same on all workers after each step, and every
    sample counts once.
    """
    with training(3, wrap=wrap, samples=300, doomed=[[1, 7, place]], compress=compress) as job:
        job.read_until("w1 was killed by SIGKILL")
        job.wait_for_new_step()
        job.resize(3)
        job.wait_for_new_step()
        Ledger(tmp_path, job.finish(), wrap=wrap, samples=300).check_agreement(3)


@parametrize_ways(MOMENTUM, ITSELF, ZERO2, repeated=(dict(ZERO1, optimizer="momentum"),))
def test_a_worker_is_killed_while_others_join(training, tmp_path, way):
    """Two losses while two workers join: the job goes on with three, and every sample counts
    once.
    """
    way = dict(way, samples=1000)
    with training(3, **way) as job:
        job.resize(5, "--no-wait")
        job.kill(0)
        job.read_until("asked for 5 workers")
        job.kill(1)
        job.resize(3)  # which it is, as soon as all have come
        ledger = Ledger(tmp_path, job.finish(), **way)
    ledger.check(3, losses=2)


# Trains to the end, but for worker 1, which ends before its model is wrapped.
LOST_AT_THE_START = """
import os
import shoal.torch, torch

loader = shoal.torch.loader([torch.ones(2)] * 8, global_batch=2, epochs=1)
if os.environ["SHOAL_RANK"] == "1":
    os._exit(7)
model = shoal.torch.ddp(torch.nn.Linear(2, 1))
for batch in loader:
    model(batch).sum().backward()
print("TRAINED", torch.distributed.get_world_size(), flush=True)
"""


@pytest.mark.skipif(torch.__version__ < (2, 1), reason="it awaits all workers in its store")
def test_a_worker_is_lost_before_its_model_is_wrapped(launch):
    """The other one trains on, and does not wait in torch's store for the one that is lost."""
    process = launch.start(2, LOST_AT_THE_START, options=["--min", "1"], prefork="torch")
    try:
        output, _ = process.communicate(timeout=running_job.HANG)
    finally:
        process.terminate()
    assert "TRAINED 1" in output, output


def test_two_who_hold_the_same_are_lost_at_once(training):
    """Where both workers that hold a part of a sharded optimizer's state are lost at once, the job
    fails, and says so.
    """
    with training(
        4, wrap="zero", doomed=[[1, 7, "after backward"], [2, 7, "after backward"]], samples=300
    ) as job:
        output = job.finish(code=1)
    assert "is gone with the two workers that held it" in output


@parametrize_ways(ZERO2, repeated=(ZERO1,))
def test_a_sharded_optimizer_goes_on_from_a_checkpoint(launch, tmp_path, way):
    """A job with a sharded optimizer that was killed goes on from a checkpoint: the same number of
    workers ends with the same bits as undisturbed, another number with nearly the same values.
    """

    def train(name, n, folder, doomed=()):
        """Train on n workers for 40 steps, with checkpoints in `folder`; with `doomed`, which must
        list all of them, until they are killed. Return the state that each worker wrote at its end,
        into the new folder `name`.
        """
        out = tmp_path / name
        out.mkdir()
        config = dict(
            way, out=str(out), checkpoint=str(tmp_path / folder), steps=40, doomed=list(doomed)
        )
        job = launch.start(n, WORKER, json.dumps(config), tmp_path / "end", prefork="torch")
        output, _ = job.communicate(timeout=running_job.HANG)
        results = [json.loads(line) for line in re.findall(r"RESULT (.*)", output)]
        assert len(results) == (0 if doomed else n), output
        assert (
            doomed or {r[2] for r in results} == {40} and len({tuple(r[2:]) for r in results}) == 1
        )
        return [list(np.load(f).values()) for f in sorted(out.glob("*.npz"))]

    whole = train("whole", 3, "undisturbed")
    train("stopped", 3, "checkpoints", [[worker, 17, "before backward"] for worker in range(3)])
    shutil.copytree(tmp_path / "checkpoints", tmp_path / "copy", symlinks=True)
    for again in train("again", 3, "checkpoints"):
        for value, want in zip(again, whole[0]):
            np.testing.assert_array_equal(value, want)
    assert not (tmp_path / "again" / "0.jsonl").read_text().startswith('{"step": 0,')
    for other in train("others", 4, "copy"):
        for value, want in zip(other, whole[0]):
            np.testing.assert_allclose(value, want, rtol=1e-8, atol=1e-11)


def children(pid):
    """The process ids of the living children of a process."""
    found = []
    for stat in pathlib.Path("/proc").glob("[0-9]*/stat"):
        try:
            state, parent = stat.read_text().rpartition(")")[2].split()[:2]
        except OSError:
            continue  # it has ended
        if int(parent) == pid and state not in "XZ":
            found.append(int(stat.parent.name))
    return found


@pytest.mark.skipif(not pathlib.Path("/proc/self/stat").exists(), reason="needs /proc")
def test_the_processes_of_a_worker_end_with_it(training, tmp_path):
    """The DataLoader's processes of a worker that dies of a signal end."""
    with training(2, workers=2, samples=300, child=True) as job, job.slowed():
        descriptors = [os.pidfd_open(p) for p in children(job.workers()[1])]
        assert len(descriptors) == 3, "two load data, and one would live for long"
        job.kill(1, by=signal.SIGSEGV)
        for descriptor in descriptors:
            assert select.select([descriptor], [], [], running_job.HANG)[0], (
                "a process outlives the worker that has started it"
            )
            os.close(descriptor)
        job.wait_for_new_step()  # the others go on all the while
        ledger = Ledger(tmp_path, job.finish(), samples=300)
    ledger.check(1, losses=1)
