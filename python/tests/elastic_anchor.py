"""A worker that trains in rounds of local steps, and writes down which samples it took, and what
the anchor was after each commit: test_elastic_anchor.py. Its arguments are a config and the file
that ends the training.
"""

import hashlib
import json
import os
import pathlib
import signal
import sys

import running_job
import torch
from torch.nn import functional as F

SAMPLES, BATCH = 96, 12


class Numbered(torch.utils.data.Dataset):
    """Samples with their numbers."""

    def __init__(self):
        """SAMPLES of them."""
        self.x = torch.randn(SAMPLES, 8, generator=torch.Generator().manual_seed(1))

    def __len__(self):
        """The number of samples."""
        return SAMPLES

    def __getitem__(self, i):
        """A sample, its label and its number."""
        return self.x[i], (self.x[i, :3].argmax()), i


def digest(value):
    """A checksum of nested tensors, numbers and texts, to the last bit."""
    hashed = hashlib.sha256()

    def add(value):
        """Add a value to the checksum."""
        if isinstance(value, torch.Tensor):
            hashed.update(value.detach().contiguous().numpy().tobytes())
        elif isinstance(value, (dict, list, tuple)):
            for item in value.items() if isinstance(value, dict) else value:
                add(item)
        else:
            hashed.update(repr(value).encode())

    add(value)
    return hashed.hexdigest()[:16]


def main(config, end):
    """Train until the file `end` is there, at the end of an epoch, and write a line for each local
    step. What a worker's process runs, once.
    """
    import shoal
    import shoal.torch

    torch.set_num_threads(1)
    job, number = shoal.join(), int(os.environ["SHOAL_RANK"])
    late = job.outside
    ledger = open(pathlib.Path(config["out"]) / f"{number}.jsonl", "w")
    loader = shoal.torch.loader(Numbered(), BATCH, seed=7, epochs=1 << 20)
    model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.BatchNorm1d(16), torch.nn.Tanh())
    model.append(torch.nn.Linear(16, 3))
    if late:  # what does not come from the others is wrong
        for p in model.parameters():
            p.data.normal_()
    inner = torch.optim.Adam(model.parameters(), lr=0.01)
    optimizer = shoal.torch.optimizer(inner, model, sync=config["sync"])
    for x, y, index in loader:
        step = loader.step
        running_job.sleep_if_slowed(end)
        begun = dict(joined=late, rank=job.rank)
        if step.local_index == 0:
            begun.update(inner=digest(inner.state_dict()), at=digest(model.state_dict()))
        F.cross_entropy(model(x), y).backward()
        half_way = step.local_index == step.local_steps // 2
        doomed = number == 0 and half_way and os.path.exists(f"{end}.doom")
        if doomed or [number, step.number] in config["doomed"]:
            os.kill(os.getpid(), signal.SIGKILL)
        optimizer.step()
        optimizer.zero_grad()
        if [number, step.number] == config.get("broken"):
            with torch.no_grad():
                model[0].weight[0, 0] += 1
        with optimizer.anchor():
            line = dict(
                step=step.number, local=step.local_index, locals=step.local_steps, epoch=step.epoch
            )
            line.update(own=index.tolist() if step.local_weight else [])
            if step.ends_round:
                line.update(anchor=digest([model.state_dict(), optimizer._anchor.kept]))
        print(json.dumps({**line, **begun}), file=ledger, flush=True)
        if late:
            print("JOINED", step.number, flush=True)
            late = False
        if step.number % 20 == 0 and job.rank == 0:
            print("STEP", step.number, flush=True)
        if step.ends_round and step.last:
            if job.allreduce(torch.tensor([int(os.path.exists(end))]), op="max")[0]:
                break
    print("RESULT", json.dumps([job.rank, job.size, job.committed]), flush=True)


if __name__ == "__main__":
    main(json.loads(sys.argv[1]), sys.argv[2])
