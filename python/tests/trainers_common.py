"""What the tests of the adapters to other people's trainers share: a model that tells which samples
a step had, the same training as a plain loop, and gates at which a training waits for its test.
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
from torch import nn
from torch.nn import functional as F

SEED = 20261126
# What workers import before they are forked.
MODULES = ("accelerate", "lightning.pytorch", "transformers.trainer")
FORKED = ("--prefork", ",".join(MODULES))
FEATURES, CLASSES, RATE = 6, 3, 0.05


class Net(nn.Module):
    """A small model. The gradient of `taken` is above 0 exactly for the samples of a step."""

    def __init__(self, samples):
        """The same random parameters on every worker, and a mark for each of so many samples."""
        super().__init__()
        torch.manual_seed(SEED)
        self.layers = nn.Sequential(
            nn.Linear(FEATURES, 16), nn.Tanh(), nn.Linear(16, CLASSES)
        ).double()
        self.taken = nn.Parameter(torch.zeros(samples, dtype=torch.float64))

    def forward(self, x, labels, index):
        """The loss and the logits of a batch; in training the loss marks its samples."""
        logits = self.layers(x)
        marks = self.taken[index].mean() if self.training else 0.0
        return {"loss": F.cross_entropy(logits, labels) + marks, "logits": logits}

    def marked(self):
        """The samples of the step that was just made, which are forgotten."""
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


def training(net, steps):
    """The optimizer, which adds to `taken` what its gradient is, and a scheduler."""
    groups = [{"params": net.layers.parameters()}, {"params": [net.taken], "lr": -1.0}]
    groups[1]["momentum"] = 0.0
    optimizer = torch.optim.SGD(groups, lr=RATE, momentum=0.9)
    falling = [lambda step: 1 - step / (2 * steps), lambda _: 1.0]
    return optimizer, torch.optim.lr_scheduler.LambdaLR(optimizer, falling)


def evaluated(net, data):
    """The loss and the accuracy on a data set."""
    net.eval()
    with torch.no_grad():
        output = net(data.x, data.labels, None)
    net.train()
    right = (output["logits"].argmax(1) == data.labels).double().mean().item()
    return output["loss"].item(), right


def replayed(batches, samples, steps, clip=None):
    """The loss and the learning rate of each step of a plain loop over the batches, and the net."""
    net, data = Net(samples), Data(samples)
    optimizer, scheduler = training(net, steps)
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
        net.marked()
    return told, net


class Gates:
    """Steps before which rank 0 waits until its test opens the gate, in the folder of the test."""

    def __init__(self, folder, gates):
        """Gates before these steps, which files in a folder open."""
        self._folder, self._gates = pathlib.Path(folder), gates

    def wait(self, rank, step):
        """Wait at a gate, where there is one before the step."""
        if rank == 0:
            print("STEP", step, flush=True)
        if step in self._gates and rank == 0:
            print("GATE", step, flush=True)
            while not (self._folder / f"gate-{step}").exists():
                time.sleep(0.01)


def open_gate(folder, step):
    """Let a training go on."""
    (folder / f"gate-{step}").touch()


def number():
    """The number of this worker."""
    return int(os.environ.get("SHOAL_RANK", 0))


def write(file, **values):
    """Append a line to a file of JSON lines."""
    print(json.dumps(values), file=file, flush=True)


def ledger(folder):
    """What all workers have written of each step: one entry a step, on which all agree."""
    steps = {}
    for path in sorted(folder.glob("ledger-*.jsonl")):
        for line in map(json.loads, path.read_text().splitlines()):
            assert steps.setdefault(line["step"], line) == line, f"the workers differ: {path}"
    return [steps[step] for step in sorted(steps)]


# The job as a worker sees it that was rank 0 and is released, while the others go on.
RELEASED = types.SimpleNamespace(rank=0, size=1, released=True, first=False)


def drop_last(folder):
    """Remove the newest checkpoint of a job from its folder, and return the step of the one before.
    A checkpoint is made some steps late where the one before is being written.
    """
    *_, before, last = sorted(folder.glob("step-*"))
    shutil.rmtree(last)
    return int(before.name[5:])


def check_resumed(before, after, first, same):
    """Check that a training which has resumed made the same steps as the one before, from `first`
    on: the ledgers of both, which have the keys `same` in each step.
    """
    assert [line["step"] for line in after] == list(range(first, before[-1]["step"] + 1))
    for was, now in zip(before[first - 1 :], after):
        for key in same:
            assert now[key] == pytest.approx(was[key], rel=1e-6), now
        digests = [float.fromhex(line["digest"]) for line in (was, now)]
        assert digests[0] == pytest.approx(digests[1], rel=1e-9), now


def lose_and_replace(job, binary, folder):
    """Kill the last of three workers at the first gate; order another one at the second, and kill
    rank 0 when that waits to be let in. Return what the job has printed.
    """
    job.read_until("GATE 5")
    job.kill(2)
    open_gate(folder, 5)
    job.read_until("GATE 9")
    asked = subprocess.Popen([binary, "resize", job.name, "3"], stdout=subprocess.DEVNULL)
    job.wait_for_spare()
    job.kill(0)
    output = job.finish()
    asked.wait()
    return output
