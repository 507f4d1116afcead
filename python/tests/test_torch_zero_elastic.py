"""Training with shoal.torch.zero while workers join, are released and are killed: every sample exactly once an epoch, the same model everywhere,
and the one that one worker gets from the same batches, so that no part of the optimizer's state was lost on the way."""

import json
import pathlib
import random
import re
import shutil

import pytest

np = pytest.importorskip("numpy")
torch = pytest.importorskip("torch")
import elastic_torch
import elastic_zero
import running_job
from test_elastic_torch import Ledger

WORKER = pathlib.Path(elastic_zero.__file__)


@pytest.fixture
def training(launch, binary, tmp_path):
    """Returns training(n, config): a job of n workers that trains until it is told to finish, as a context manager."""

    def start(n, **config):
        config.update(out=str(tmp_path))
        return running_job.running(launch, binary, tmp_path / "end", n, WORKER, json.dumps(config))

    return start


class Zero(Ledger):
    """What the workers wrote down."""

    def _replay(self):
        model = elastic_torch.Net(self.samples)
        optimizer, scheduler = elastic_zero.training(model, self.optimizer)
        x, y, index = elastic_torch.data(self.samples).tensors
        for _, step in sorted(self.steps.items()):
            batch = torch.tensor(step["taken"])
            optimizer.zero_grad()
            elastic_torch.loss_of(model, x[batch], y[batch], index[batch]).backward()
            optimizer.step()
            scheduler.step()
        alone = [model.state_dict(), scheduler.state_dict()]
        for value, want in zip(self.states[0], elastic_torch.arrays(alone)):
            np.testing.assert_allclose(value, want, rtol=1e-8, atol=1e-11)


PLACES = ["before backward", "after backward", "behind the commit", "behind the update", "after the step"]


@pytest.mark.parametrize("stage, seat, place", [(1 + i % 2, i % 3, place) for i, place in enumerate(PLACES)])
def test_a_worker_is_killed_within_a_step(training, tmp_path, stage, seat, place):
    with training(4, stage=stage, samples=300, doomed=[[seat, 7, place]], optimizer="momentum") as job:
        job.until(f"w{seat} was killed by SIGKILL")
        ledger = Zero(tmp_path, job.finish(), 300, optimizer="momentum")
    ledger.check(3, losses=1)


@pytest.mark.parametrize("stage, optimizer", [(1, "adam"), (2, "momentum")])
def test_join_and_release_within_an_epoch(training, tmp_path, stage, optimizer):
    with training(2, stage=stage, optimizer=optimizer, samples=1600) as job:
        job.resize(5)
        job.until("STEP")
        job.resize(1)
        job.until("STEP")
        job.resize(3)
        ledger = Zero(tmp_path, job.finish(), 1600, optimizer=optimizer)
    ledger.check(3)
    assert len(ledger.joined) == 5


@pytest.mark.parametrize("stage", [1, 2])
def test_a_worker_is_killed_while_others_join(training, tmp_path, stage):
    with training(3, stage=stage, samples=1000) as job:
        job.resize(5, "--no-wait")
        job.kill(0)
        job.until("asked for 5 workers")
        job.kill(1)
        job.resize(3)  # which it is, as soon as all have come
        ledger = Zero(tmp_path, job.finish(), 1000, optimizer="momentum")
    ledger.check(3, losses=2)


def test_random_losses_and_joins(training, tmp_path):
    seed, losses = random.randrange(1 << 32), 0
    print("seed", seed)
    choice = random.Random(seed)
    with training(3, stage=choice.choice([1, 2]), samples=1000) as job:
        for _ in range(8):
            members = job.workers()
            if len(members) > 1 and choice.random() < 0.5:
                job.kill(choice.choice(sorted(members)))
                losses += 1
            else:
                job.resize(choice.choice([2, 3, 4, 6]))
            job.until("STEP")
        ledger = Zero(tmp_path, job.finish(), 1000, optimizer="momentum")
    ledger.check(len(ledger.results), losses)


def test_two_who_hold_the_same_are_lost_at_once(training, tmp_path):
    with training(4, doomed=[[1, 7, "after backward"], [2, 7, "after backward"]], samples=300) as job:
        output = job.finish(code=1)
    assert "is gone with the two workers that held it" in output


@pytest.mark.parametrize("stage, optimizer", [(1, "adam"), (2, "momentum")])
def test_it_goes_on_from_a_checkpoint(launch, tmp_path, stage, optimizer):
    def train(name, n, folder, doomed=()):
        out = tmp_path / name
        out.mkdir()
        config = dict(out=str(out), checkpoint=str(tmp_path / folder), steps=40, stage=stage, optimizer=optimizer, doomed=list(doomed))
        output, _ = launch.start(n, WORKER, json.dumps(config), tmp_path / "end").communicate(timeout=running_job.HANG)
        results = [json.loads(line) for line in re.findall(r"RESULT (.*)", output)]
        assert len(results) == (0 if doomed else n), output
        assert doomed or {r[2] for r in results} == {40} and len({tuple(r[2:]) for r in results}) == 1
        return [list(np.load(f).values()) for f in sorted(out.glob("*.npz"))]

    whole = train("whole", 3, "undisturbed")
    train("stopped", 3, "checkpoints", [[seat, 17, "before backward"] for seat in range(3)])
    shutil.copytree(tmp_path / "checkpoints", tmp_path / "copy", symlinks=True)
    for again in train("again", 3, "checkpoints"):
        for value, want in zip(again, whole[0]):
            np.testing.assert_array_equal(value, want)
    assert not (tmp_path / "again" / "0.jsonl").read_text().startswith('{"step": 0,')
    for other in train("others", 4, "copy"):
        for value, want in zip(other, whole[0]):
            np.testing.assert_allclose(value, want, rtol=1e-8, atol=1e-11)
