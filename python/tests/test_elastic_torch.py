"""Training with PyTorch while workers join, are released and are killed: every sample exactly once an epoch, and the same model, optimizer
and scheduler everywhere, which are those that one worker gets from the same batches."""

import collections
import json
import os
import pathlib
import random
import re
import select

import pytest

np = pytest.importorskip("numpy")
torch = pytest.importorskip("torch")
import elastic_torch
import running_job

WORKER = pathlib.Path(elastic_torch.__file__)
WAYS = [("adam", 0, "ddp"), ("momentum", 2, "ddp"), ("adam", 2, "optimizer")]


@pytest.fixture
def training(launch, binary, tmp_path):
    """Returns training(n, config): a job of n workers that trains until it is told to finish, as a context manager."""

    def start(n, **config):
        config.update(out=str(tmp_path))
        return running_job.running(launch, binary, tmp_path / "end", n, WORKER, json.dumps(config))

    return start


class Ledger:
    """What the workers wrote down of a run with `samples` samples, and the checks that every run must pass."""

    def __init__(self, path, output, samples, batch=16, optimizer="adam"):
        killed = set(re.findall(r"\bw(\d+) was killed", output))  # whose processes that load data may complain
        assert set(re.findall(r"\[(\d+)\] Traceback", output)) <= killed, output
        self.output, self.samples, self.batch, self.optimizer = output, samples, batch, optimizer
        self.results = [json.loads(line) for line in re.findall(r"RESULT (.*)", output)]
        self.states = [list(np.load(f).values()) for f in sorted(path.glob("*.npz"))]
        self.lines = [json.loads(line) for f in path.glob("*.jsonl") for line in f.read_text().splitlines()]
        self.steps = {}
        for line in self.lines:
            seen = self.steps.setdefault(line["step"], line)
            assert all(seen[key] == line[key] for key in ("taken", "epoch", "count")), f"two workers differ: {seen}, {line}"
        self.joined = [line for line in self.lines if line["joined"]]

    def check(self, survivors, losses=0):
        """What must hold. `losses` is how many workers were killed while they trained."""
        self.alike(survivors)
        self._once()
        self._constant(losses)
        for line in self.lines:
            assert set(line["own"]) <= set(line["taken"]), f"a worker that went on was left out: {line}"
            # As documented: a worker that joins begins with the random state of rank 0.
            if line["joined"]:
                assert line["random"] in [other["random"] for other in self.lines if other["step"] == line["step"] and other["rank"] == 0]
        self._replay()

    def alike(self, survivors):
        """What must hold also where gradients were rounded."""
        assert len(self.results) == len(self.states) == survivors, self.output
        assert len({tuple(r[2:]) for r in self.results}) == 1, f"the workers differ: {self.results}"
        assert {r[1] for r in self.results} == {survivors} and sorted(r[0] for r in self.results) == list(range(survivors)), self.results
        assert sorted(self.steps) == list(range(self.results[0][2])), "a step is missing"

    def _once(self):
        times = collections.defaultdict(collections.Counter)
        for step in self.steps.values():
            times[step["epoch"]].update(step["taken"])
        assert sorted(times) == list(range(len(times)))
        for epoch, counter in times.items():
            assert counter == collections.Counter(range(self.samples)), f"epoch {epoch}: {counter.most_common(3)}"

    def _constant(self, losses):
        epochs = {step["epoch"] for step in self.steps.values()}
        short = sum(len(step["taken"]) < self.batch for step in self.steps.values())
        tails = len(epochs) if self.samples % self.batch else 0
        assert max(len(step["taken"]) for step in self.steps.values()) == self.batch
        assert short <= tails + 2 * losses, f"{short} steps of {len(self.steps)} had less than a batch"  # the lost part comes as a batch of its own
        assert losses or short == tails

    def _replay(self):
        model = elastic_torch.Net(self.samples)
        optimizer, scheduler = elastic_torch.training(model, self.optimizer)
        x, y, index = elastic_torch.data(self.samples).tensors
        for _, step in sorted(self.steps.items()):
            batch = torch.tensor(step["taken"])
            optimizer.zero_grad()
            elastic_torch.loss_of(model, x[batch], y[batch], index[batch]).backward()
            optimizer.step()
            scheduler.step()
        alone = elastic_torch.state_of(model, optimizer, scheduler)
        for value, want in zip(self.states[0], elastic_torch.arrays(alone)):
            np.testing.assert_allclose(value, want, rtol=1e-8, atol=1e-11)


def test_without_faults(training, tmp_path):
    with training(2, samples=100) as job:
        ledger = Ledger(tmp_path, job.finish(), 100)
    ledger.check(2)


@pytest.mark.parametrize("optimizer, workers, wrap", WAYS)
def test_join_and_release_within_an_epoch(training, tmp_path, optimizer, workers, wrap):
    with training(2, optimizer=optimizer, workers=workers, wrap=wrap, samples=1600) as job:
        job.resize(4)
        job.until("STEP")
        job.resize(1)
        job.until("STEP")
        job.resize(2)
        ledger = Ledger(tmp_path, job.finish(), 1600, optimizer=optimizer)
    ledger.check(2)
    assert len(ledger.joined) == 3
    assert [line for line in ledger.joined if line["step"] % 100], "nobody joined within an epoch"


@pytest.mark.parametrize(
    "optimizer, workers, wrap, place",
    [(*WAYS[0], "before backward"), (*WAYS[1], "within backward"), (*WAYS[2], "after backward"), (*WAYS[1], "after the step")],
)
def test_a_worker_is_killed_within_a_step(training, tmp_path, optimizer, workers, wrap, place):
    doomed = [1, 7, place]
    with training(3, optimizer=optimizer, workers=workers, wrap=wrap, samples=300, doomed=doomed) as job:
        job.until("w1 was killed by SIGKILL")
        ledger = Ledger(tmp_path, job.finish(), 300, optimizer=optimizer)
    ledger.check(2, losses=1)


@pytest.mark.parametrize("wrap, place", [("ddp", "within backward"), ("optimizer", "after backward")])
def test_gradients_from_a_device_when_workers_are_killed_and_join(training, tmp_path, wrap, place):
    with training(3, wrap=wrap, samples=300, doomed=[1, 7, place], card=True) as job:
        job.until("w1 was killed by SIGKILL")
        job.until("STEP")
        job.resize(3)
        job.until("STEP")
        ledger = Ledger(tmp_path, job.finish(), 300)
    ledger.check(3, losses=1)


@pytest.mark.parametrize(
    "wrap, place, compress",
    [
        ("ddp", "within backward", "'int8'"),
        ("ddp", "within backward", "PowerSGD(2)"),
        ("ddp", "after the step", "TopK(0.5)"),
        ("optimizer", "after backward", "'bf16'"),
    ],
)
def test_compressed_gradients_of_workers_that_are_killed_and_join(training, tmp_path, wrap, place, compress):
    with training(3, wrap=wrap, samples=300, doomed=[1, 7, place], compress=compress) as job:
        job.until("w1 was killed by SIGKILL")
        job.until("STEP")
        job.resize(3)
        job.until("STEP")
        Ledger(tmp_path, job.finish(), 300).alike(3)


@pytest.mark.parametrize("optimizer, workers, wrap", WAYS[1:])
def test_a_worker_is_killed_while_others_join(training, tmp_path, optimizer, workers, wrap):
    with training(3, optimizer=optimizer, workers=workers, wrap=wrap, samples=1000) as job:
        job.resize(5, "--no-wait")
        job.kill(0)
        job.until("asked for 5 workers")
        job.kill(1)
        job.resize(3)  # which it is, as soon as all have come
        ledger = Ledger(tmp_path, job.finish(), 1000, optimizer=optimizer)
    ledger.check(3, losses=2)


def test_random_losses_and_joins(training, tmp_path):
    seed, losses = random.randrange(1 << 32), 0
    print("seed", seed)
    choice = random.Random(seed)
    with training(3, samples=1000) as job:
        for _ in range(8):
            members = job.workers()
            if len(members) > 1 and choice.random() < 0.5:
                job.kill(choice.choice(sorted(members)))
                losses += 1
            else:
                job.resize(choice.choice([2, 3, 4]))
            job.until("STEP")
        ledger = Ledger(tmp_path, job.finish(), 1000)
    ledger.check(len(ledger.results), losses)


def children(pid):
    """The living children of a process."""
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
    with training(2, workers=2, samples=300, child=True) as job:
        descriptors = [os.pidfd_open(p) for p in children(job.workers()[1])]
        assert len(descriptors) == 3, "two load data, and one would live for long"
        job.kill(1)
        for descriptor in descriptors:
            assert select.select([descriptor], [], [], running_job.HANG)[0], "a process outlives the worker that has started it"
            os.close(descriptor)
        job.until("STEP")  # the others go on all the while
        ledger = Ledger(tmp_path, job.finish(), 300)
    ledger.check(1, losses=1)
