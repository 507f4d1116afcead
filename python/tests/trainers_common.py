"""What the tests of the adapters to other people's trainers share: a model that tells which samples
a step had, the same training as a plain loop, and gates at which a training waits for its test.

The worker programs trainers_….py import Net, Data, Gates, make_optimizer,
worker_number and append_json_line; all else runs in the test's process.
"""

import json
import os
import pathlib
import shutil
import subprocess
import time
import types

import pytest
import torch
from shoal.cursor import Cursor
from torch import nn
from torch.nn import functional as F

SEED = 20261126
FEATURES, CLASSES, RATE = 6, 3, 0.05


class Net(nn.Module):
    """A small model. The gradient of its parameter `taken` is above 0 exactly for the samples of a
    step, and the optimizer of `make_optimizer` adds it there.
    """

    def __init__(self, samples):
        """The same random parameters on every worker, and a mark for each of so many samples. It
        seeds torch's random numbers.
        """
        super().__init__()
        torch.manual_seed(SEED)
        self.layers = nn.Sequential(
            nn.Linear(FEATURES, 16), nn.Tanh(), nn.Linear(16, CLASSES)
        ).double()
        self.taken = nn.Parameter(torch.zeros(samples, dtype=torch.float64))

    def forward(self, x, labels, index):
        """The loss and the logits of a batch; in training the loss marks its samples, whose numbers
        are `index`, which is not used in evaluation.
        """
        logits = self.layers(x)
        marks = self.taken[index].mean() if self.training else 0.0
        return {"loss": F.cross_entropy(logits, labels) + marks, "logits": logits}

    def take_marks(self):
        """The numbers of the samples of the step that was just made, of all workers; their marks
        are set back to 0.
        """
        found = self.taken.detach().nonzero().flatten().tolist()
        with torch.no_grad():
            self.taken.zero_()
        return found


class Data(torch.utils.data.Dataset):
    """Rows, labels and their numbers."""

    def __init__(self, samples, seed=SEED):
        """So many random rows, the same for the same seed."""
        generator = torch.Generator().manual_seed(seed)
        self.x = torch.randn(samples, FEATURES, generator=generator, dtype=torch.float64)
        self.labels = (self.x[:, :3] + self.x[:, 3:]).argmax(1)

    def __len__(self):
        """The number of rows."""
        return len(self.x)

    def __getitem__(self, i):
        """A row with its label and its number."""
        return {"x": self.x[i], "labels": self.labels[i], "index": torch.tensor(i)}


def make_optimizer(net):
    """A new optimizer of a Net, which adds to `taken` what its gradient is."""
    groups = [{"params": net.layers.parameters()}, {"params": [net.taken], "lr": -1.0}]
    groups[1]["momentum"] = 0.0
    return torch.optim.SGD(groups, lr=RATE, momentum=0.9)


def make_scheduler(optimizer, steps):
    """A scheduler that lets the learning rate of the layers of a Net fall to a half over so many
    steps, evenly.
    """
    falling = [lambda step: 1 - step / (2 * steps), lambda _: 1.0]
    return torch.optim.lr_scheduler.LambdaLR(optimizer, falling)


def evaluate(net, data):
    """The loss and the accuracy, from 0 to 1, of a Net on a Data, as one batch."""
    net.eval()
    with torch.no_grad():
        output = net(data.x, data.labels, None)
    net.train()
    right = (output["logits"].argmax(1) == data.labels).double().mean().item()
    return output["loss"].item(), right


def replay(batches, samples, steps, clip=None):
    """Train a new Net in a plain loop over these batches, lists of numbers of so many samples;
    return the loss and the learning rate of each step, and the net. `steps` is for the scheduler;
    `clip` is the largest norm of the gradients, None for any.
    """
    net, data = Net(samples), Data(samples)
    optimizer = make_optimizer(net)
    scheduler = make_scheduler(optimizer, steps)
    told = []
    for batch in batches:
        loss = net(data.x[batch], data.labels[batch], torch.tensor(batch))["loss"]
        loss.backward()
        if clip:
            nn.utils.clip_grad_norm_(net.parameters(), clip)
        optimizer.step()
        told.append((loss.item(), optimizer.param_groups[0]["lr"]))
        scheduler.step()
        optimizer.zero_grad()
        net.take_marks()
    return told, net


def undisturbed_batches(samples, batch, seed, epochs):
    """The numbers of the samples of each step of a job that loses no worker: a list a step, in
    ascending order. `batch` is how many samples a step takes, `seed` that of their order.
    """
    place, steps = Cursor.start(samples, batch, seed), []
    while place.epoch < epochs:
        steps.append(sorted(int(i) for i in place.order().take(place.part(0, 1))))
        place = place.commit(1, [True])
    return steps


class Gates:
    """Steps before which rank 0 waits until its test opens the gate, by `open_gate` with the same
    folder. For the worker programs, on the thread of the training loop.
    """

    def __init__(self, folder, gates):
        """Gates before the steps of these numbers, which files in a folder open."""
        self._folder, self._gates = pathlib.Path(folder), gates

    def wait(self, rank, step):
        """Called by every rank before a step. Rank 0 prints STEP and, where there is a gate, GATE
        with the step's number, and blocks there until the gate is open; other ranks do nothing.
        """
        if rank == 0:
            print("STEP", step, flush=True)
        if step in self._gates and rank == 0:
            print("GATE", step, flush=True)
            while not (self._folder / f"gate-{step}").exists():
                time.sleep(0.01)


def open_gate(folder, step):
    """Let a training go on whose Gates have this folder, and which waits, or will, at the gate
    before this step. For tests.
    """
    (folder / f"gate-{step}").touch()


def worker_number():
    """The number of this worker; 0 without a launcher."""
    return int(os.environ.get("SHOAL_RANK", 0))


def append_json_line(file, **values):
    """Append these values as a line to an open file of JSON lines, at once."""
    print(json.dumps(values), file=file, flush=True)


def read_ledger(folder):
    """What all workers have written into this folder: one dict a step, in the order of their
    numbers. Fails where two workers wrote different things of one step.
    """
    steps = {}
    for path in sorted(folder.glob("ledger-*.jsonl")):
        for line in map(json.loads, path.read_text().splitlines()):
            assert steps.setdefault(line["step"], line) == line, f"the workers differ: {path}"
    return [steps[step] for step in sorted(steps)]


# The job as a worker sees it that was rank 0 and is released, while the others go on.
RELEASED = types.SimpleNamespace(rank=0, size=1, released=True, first=False)


def remove_newest_checkpoint(folder):
    """Remove the newest checkpoint of a job from its folder, where two must be, and return the step
    of the one before, which is known only so: a checkpoint is made some steps late where the one
    before is being written.
    """
    *_, before, last = sorted(folder.glob("step-*"))
    shutil.rmtree(last)
    return int(before.name[5:])


def check_resumed(before, after, first, same):
    """Check that a training which has resumed made the same steps as the one before, from step
    `first` on. `before` and `after` are the ledgers of both; of each step, the parameters and what
    the keys `same` have are compared.
    """
    assert [line["step"] for line in after] == list(range(first, before[-1]["step"] + 1))
    for was, now in zip(before[first - 1 :], after):
        for key in same:
            assert now[key] == pytest.approx(was[key], rel=1e-6), now
        digests = [float.fromhex(line["digest"]) for line in (was, now)]
        assert digests[0] == pytest.approx(digests[1], rel=1e-9), now


def lose_and_replace(job, binary, folder):
    """Kill the last of three workers at the gate of step 5; order another one at that of step 9,
    and kill rank 0 when the new one waits to be let in. End the job, a Running with these Gates in
    `folder` and 36 steps, which it must know; return what it has printed.
    """
    job.read_until("GATE 5")
    assert job.status()["goal"] == 36
    job.kill(2)
    open_gate(folder, 5)
    job.read_until("GATE 9")
    asked = subprocess.Popen([binary, "resize", job.name, "3"], stdout=subprocess.DEVNULL)
    job.wait_for_spare()
    job.kill(0)
    output = job.finish()
    asked.wait()
    return output
