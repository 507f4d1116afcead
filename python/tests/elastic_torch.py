"""A worker that trains with PyTorch, and writes down which samples each committed step had.

    elastic_torch.py CONFIG FILE

CONFIG is JSON: see the defaults. The training ends after `epochs` epochs or `steps` steps, or when
FILE exists. `wrap` is what averages: ddp, optimizer or zero. `doomed` lists [number, step, place]:
the worker of that number dies by SIGKILL there. With `gpu`, tensors are as on a device, for all
workers or for those that it lists; with `device` too, a name that may have {} for the number,
NCCL works there. In the folder `out` each worker writes a line a step, and in the end its model,
its scheduler and, where that is whole, its optimizer. With `sizes`, the agent proposes these for
buckets, in turn. `nest` is the outer loop, over epochs: range or epochs (loader.epochs); None =
there is none. The scheduler steps once an epoch then, and workers compare themselves between two
epochs, where `doomed` lists [number, epoch, "between epochs"]. With `compiled`, workers of even
numbers compile the model and wrap that with ddp, the others wrap it and compile the result.

The parameter `taken` says which samples were in the last step: the optimizer takes its gradient off
it, which is above 0 exactly for them; `ending` whether a worker has seen FILE. Both become 0 after
each step. The functions are also called by elastic_ledger.py, in the test's process, to make the
same training by one worker.
"""

import hashlib
import itertools
import json
import os
import pathlib
import signal
import subprocess
import sys

import device_double
import numpy as np
import running_job
import torch
from torch import nn
from torch.nn import functional as F

SEED = 20261121
DEFAULTS = dict(
    samples=120,
    batch=16,
    batch_range=None,
    epochs=1 << 40,
    steps=None,
    optimizer="adam",
    workers=0,
    wrap="ddp",
    stage=1,
    doomed=(),
    out=None,
    child=False,
    compress="None",
    gpu=False,
    device=None,
    checkpoint=None,
    sizes=(),
    nest=None,
    compiled=False,
)


class Net(nn.Module):
    """A small model, and the parameter by which the samples of a step are known."""

    def __init__(self, samples):
        """The same random parameters on every worker, and a mark for each of so many samples. It
        seeds torch's random numbers.
        """
        super().__init__()
        torch.manual_seed(SEED)
        self.layers = nn.Sequential(
            nn.Linear(6, 24), nn.Tanh(), nn.Linear(24, 16), nn.Tanh(), nn.Linear(16, 3)
        ).double()
        self.taken = nn.Parameter(torch.zeros(samples, dtype=torch.float64))
        self.ending = nn.Parameter(torch.zeros(1, dtype=torch.float64))

    def forward(self, x, index, ending):
        """The outputs, and the value, to be added to the loss, by which the samples of a step are
        marked. `index` has their numbers; `ending` is 1 where this worker has seen FILE, else 0.
        """
        return self.layers(x), self.taken[index].mean() + self.ending * ending

    def marks(self):
        """The parameters by which the samples of a step are known."""
        return [self.taken, self.ending]

    def take_marks(self):
        """The numbers of the samples of the step that was just made, by all workers, and whether a
        worker has seen FILE; both marks are set back to 0.
        """
        found = self.taken.detach().nonzero().flatten().tolist(), bool(self.ending > 0)
        with torch.no_grad():
            for mark in self.marks():
                mark.zero_()
        return found


def make_data(samples):
    """The data set: rows, labels and their numbers."""
    generator = torch.Generator().manual_seed(SEED)
    x = torch.randn(samples, 6, generator=generator, dtype=torch.float64)
    return torch.utils.data.TensorDataset(x, (x[:, :3] + x[:, 3:]).argmax(1), torch.arange(samples))


def make_optimizer(model, name):
    """A new optimizer and its scheduler; `name` is "adam", else it is SGD with momentum. The
    optimizer adds to `taken` and `ending` what their gradients are, or a number of that sign.
    """
    marks = {"params": model.marks(), "lr": -1.0}
    if name == "adam":
        optimizer = torch.optim.Adam(
            [{"params": model.layers.parameters()}, {**marks, "betas": (0.0, 0.0)}], lr=0.01
        )
    else:
        groups = [
            {"params": model.layers.parameters()},
            {**marks, "momentum": 0.0, "nesterov": False},
        ]
        optimizer = torch.optim.SGD(groups, lr=0.1, momentum=0.9, nesterov=True)
    return optimizer, torch.optim.lr_scheduler.StepLR(optimizer, step_size=20, gamma=0.9)


def loss_of(model, x, y, index, ending=False):
    """The loss: a mean over the samples, which is also in the gradients of `taken` and `ending`."""
    outputs, marks = model(x, index, float(ending))
    return F.cross_entropy(outputs, y) + marks


def state_of(model, optimizer, scheduler, wrap):
    """All that must be the same everywhere, and in a training by one worker, which has not seen
    FILE: so without what is kept for the marks; with `wrap` "zero", without the optimizer's state.
    """
    state = [model.state_dict(), scheduler.state_dict()]
    if wrap != "zero":
        whole = optimizer.state_dict()
        state += [
            whole["param_groups"],
            [whole["state"].get(i) for i in whole["param_groups"][0]["params"]],
        ]
    return state


def arrays(value):
    """All tensors and numbers of nested dicts, lists and tuples, in order, as NumPy arrays."""
    if isinstance(value, dict):
        return [a for _, v in sorted(value.items(), key=str) for a in arrays(v)]
    if isinstance(value, (list, tuple)):
        return [a for v in value for a in arrays(v)]
    return [torch.as_tensor(value).numpy()] if isinstance(value, (int, float, torch.Tensor)) else []


def digest(value):
    """A checksum of nested values, to the last bit: 12 hexadecimal digits."""
    hashed = hashlib.sha256()

    def add(value):
        """Add a value to the checksum; functions count for nothing."""
        if isinstance(value, dict):
            for key in sorted(value, key=str):
                hashed.update(str(key).encode())
                add(value[key])
        elif isinstance(value, (list, tuple)):
            for item in value:
                add(item)
        elif torch.is_tensor(value):
            hashed.update(value.detach().contiguous().numpy().tobytes())
        elif not callable(value):
            hashed.update(repr(value).encode())

    add(value)
    return hashed.hexdigest()[:12]


def wrap_for_averaging(config, net, at_place):
    """Have the gradients averaged as the config says; return what is called for the outputs, the
    optimizer, and the scheduler. With "zero", at_place(name) is called at two places in a step.
    """
    import shoal.torch
    from shoal.torch import sample
    from shoal.torch.zero import flat

    if not config["compiled"]:  # the compiler wants buckets of 1 MiB at least
        shoal.torch.elastic._LEAST_BYTES = 2000  # several buckets
    sample._EVERY = 1  # with each step goes a sample, where gradients do not go through the arena
    flat.CHUNK_ELEMENTS = 256  # several chunks
    inner, scheduler = make_optimizer(net, config["optimizer"])
    if config["wrap"] == "zero":
        optimizer = shoal.torch.zero(net, inner, scheduler, stage=config["stage"])
        call_before(optimizer._shards, "step", lambda: at_place("after the commit"))
        call_before(optimizer._shards, "gather", lambda: at_place("after the update"))
        return net, optimizer, scheduler
    compress = eval(
        config["compress"], {"TopK": shoal.torch.TopK, "PowerSGD": shoal.torch.PowerSGD}
    )
    if config["sizes"]:
        propose_bucket_sizes(config["sizes"])
    model = wrap_model(config, net, compress) if config["wrap"] == "ddp" else net
    return model, shoal.torch.optimizer(inner, scheduler, compress=compress), scheduler


def wrap_model(config, net, compress):
    """Wrap the model with ddp, compiled where the config says so: one worker in the one order, the
    next in the other.
    """
    import shoal.torch

    if not config["compiled"]:
        return shoal.torch.ddp(net, compress=compress)
    if int(os.environ["SHOAL_RANK"]) % 2:
        return torch.compile(shoal.torch.ddp(net), backend="eager")
    return shoal.torch.ddp(torch.compile(net, backend="eager"))


def propose_bucket_sizes(sizes):
    """Have the agent propose these sizes of buckets, in bytes, in turn, soon and often; print RECUT
    when buckets are replaced.
    """
    import shoal
    from shoal.torch import bucket_sizes as module
    from shoal.torch import path

    module._FIRST, module._TRIAL = 3, 2
    proposals = itertools.cycle(sizes)
    shoal.join()._backend.best_bucket_bytes = lambda *_: next(proposals)
    call_before(path.Paths, "rebuild", lambda: print("RECUT", flush=True))


def call_before(thing, name, call):
    """Have `call()` made before each call of the method `name` of `thing`, from now on."""
    method = getattr(thing, name)
    setattr(thing, name, lambda *arguments, **options: (call(), method(*arguments, **options))[1])


def batches(config, loader, between):
    """Yield the batches of all epochs; between(epoch) is called after each epoch of a nested
    loop.
    """
    if config["nest"] is None:
        yield from loader
        return
    for epoch in (
        loader.epochs(config["epochs"]) if config["nest"] == "epochs" else range(config["epochs"])
    ):
        for batch in loader:
            assert epoch == loader.step.epoch
            yield batch
        between(epoch)


def main(config, end):
    """Train as the config says, or until the file `end` exists, and write down every step. What a
    worker's process runs, once.
    """
    import shoal
    import shoal.torch

    torch.set_num_threads(1)
    job = shoal.join()
    number = int(os.environ["SHOAL_RANK"])
    late = job.outside
    ledger = open(pathlib.Path(config["out"]) / f"{number}.jsonl", "w")

    def die_if_doomed(place):
        """Die by SIGKILL if this worker is doomed at this place of the step."""
        if [number, loader.step.number, place] in config["doomed"]:
            os.kill(os.getpid(), signal.SIGKILL)

    def hook(place):
        """What the device's double calls at each of its places, on any thread: die or fail there
        if the config says so.
        """
        if (
            place == "after the collective"
            and [number, loader.step.number, "NCCL fails"] in config["doomed"]
        ):
            raise RuntimeError("a cable is loose")
        die_if_doomed(place)

    if config["gpu"] is True or number in (config["gpu"] or []):
        device = None if config["device"] is None else config["device"].format(number)
        device_double.install(device=device, hook=hook)
    loader = shoal.torch.loader(
        make_data(config["samples"]),
        config["batch"],
        seed=7,
        epochs=None if config["nest"] else config["epochs"],
        steps=config["steps"],
        num_workers=config["workers"],
        batch_range=config["batch_range"],
    )
    net = Net(config["samples"])
    if late:  # what does not come from the others is wrong
        with torch.no_grad():
            for p in net.parameters():
                p.normal_()
    model, optimizer, scheduler = wrap_for_averaging(config, net, die_if_doomed)
    if config["checkpoint"]:
        job.checkpoint(config["checkpoint"], every=5)
    torch.manual_seed(number)
    net.layers[0].weight.register_hook(lambda _: die_if_doomed("within backward"))
    if config["child"]:
        subprocess.Popen(["sleep", "1000"])

    def between(epoch):
        """What the outer loop does after an epoch: step the scheduler, die if the config says so,
        and check that all workers have the same state.
        """
        scheduler.step()
        if [number, epoch, "between epochs"] in config["doomed"]:
            os.kill(os.getpid(), signal.SIGKILL)
        same = torch.tensor([int(digest(state_of(net, optimizer, scheduler, config["wrap"])), 16)])
        least, most, count = (
            job.allreduce(x, op=op)
            for x, op in ((same.clone(), "min"), (same.clone(), "max"), (torch.ones(1), "sum"))
        )
        # a lost worker is counted until a step ends
        assert least == most == same and job.size - len(config["doomed"]) <= count <= job.size
        if job.rank == 0 and not job.released:
            print("SAVED", epoch, job.outside, flush=True)

    for x, y, index in batches(config, loader, between):
        step = loader.step
        # the end of the step may bring another rank
        begun = dict(rank=job.rank, random=digest(torch.get_rng_state()), joined=late)
        begun.update(batch=job._progress.cursor.batch, rate=job._progress.rate)
        begun.update(worth=job.statistical_epochs)
        running_job.sleep_if_slowed(end)
        die_if_doomed("before backward")
        optimizer.zero_grad()
        loss_of(model, x, y, index, os.path.exists(end)).backward()
        die_if_doomed("after backward")
        if config["wrap"] == "optimizer":
            optimizer.average_gradients()
        optimizer.step()
        if config["nest"] is None:
            scheduler.step()
        torch.rand(number + 1)  # the workers' random states differ
        die_if_doomed("after the step")
        # which has not got the parameters of its last step
        if job.released and config["wrap"] == "zero":
            break
        taken, ending = net.take_marks()
        line = dict(
            step=step.number,
            epoch=step.epoch,
            count=step.count,
            own=index.tolist() if step.weight else [],
            taken=taken,
        )
        print(json.dumps({**line, **begun}), file=ledger, flush=True)
        if late:
            print("JOINED", step.number, flush=True)
        late = False
        if step.number % 20 == 0 and job.rank == 0:
            print("STEP", step.number, flush=True)
        if step.last and ending:
            break
    if job.released:
        print("RELEASED", flush=True)
        return
    state = state_of(net, optimizer, scheduler, config["wrap"])
    np.savez(pathlib.Path(config["out"]) / f"{number}.npz", *arrays(state))
    print(
        "RESULT",
        json.dumps([job.rank, job.size, job.committed, job.digest(), digest(state)]),
        flush=True,
    )


if __name__ == "__main__":
    main({**DEFAULTS, **json.loads(sys.argv[1])}, sys.argv[2])
