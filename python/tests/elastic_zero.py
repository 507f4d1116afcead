"""A worker that trains with shoal.torch.zero, and writes down which samples each committed step had.

    elastic_zero.py CONFIG FILE

As elastic_torch.py, with the config `stage`, and more places to die: see `places`. The parameter `taken` says which samples are in a step: SGD takes
its gradient off it, which is above 0 exactly for them. A worker that is released has not got the parameters of its last step, and writes
no line for it.
"""

import json
import os
import pathlib
import signal
import sys

import elastic_torch
import numpy as np
import torch

DEFAULTS = dict(samples=120, batch=16, epochs=1 << 40, optimizer="momentum", stage=1, doomed=None, out=None, checkpoint=None, steps=None)


def training(net, name):
    """The optimizer, which adds up in `taken` and `ending` what their gradients are, and a scheduler."""
    marks = {"params": [net.taken, net.ending], "lr": -1.0}
    if name == "adam":
        optimizer = torch.optim.Adam([{"params": net.layers.parameters()}, {**marks, "betas": (0.0, 0.0)}], lr=0.01)
    else:
        optimizer = torch.optim.SGD([{"params": net.layers.parameters()}, {**marks, "momentum": 0.0, "nesterov": False}], lr=0.1, momentum=0.9, nesterov=True)
    return optimizer, torch.optim.lr_scheduler.StepLR(optimizer, step_size=20, gamma=0.9)


def places(optimizer, here):
    """Have `here` called within the optimizer's step."""
    shards = optimizer._shards

    def before(name, place):
        original = getattr(shards, name)

        def call(*arguments, **options):
            here(place)
            return original(*arguments, **options)

        setattr(shards, name, call)

    before("step", "behind the commit")
    before("gather", "behind the update")


def main(config, end):
    """Train."""
    import shoal
    import shoal.torch
    from shoal.torch import zero_line

    torch.set_num_threads(1)
    job = shoal.join()
    seat = int(os.environ["SHOAL_RANK"])
    late = job.outside
    doomed = config["doomed"] or []
    ledger = open(pathlib.Path(config["out"]) / f"{seat}.jsonl", "a")
    zero_line.CHUNK = 256  # several chunks

    def here(place):
        if [seat, loader.step.number, place] in doomed:
            os.kill(os.getpid(), signal.SIGKILL)

    loader = shoal.torch.loader(elastic_torch.data(config["samples"]), config["batch"], seed=7, epochs=config["epochs"], steps=config["steps"])
    net = elastic_torch.Net(config["samples"])
    if late:  # what does not come from the others is wrong
        with torch.no_grad():
            for p in net.parameters():
                p.normal_()
    inner, scheduler = training(net, config["optimizer"])
    optimizer = shoal.torch.zero(net, inner, scheduler, stage=config["stage"])
    places(optimizer, here)
    if config["checkpoint"]:
        job.checkpoint(config["checkpoint"], every=5)
    torch.manual_seed(seat)
    for x, y, index in loader:
        step = loader.step
        random_state = elastic_torch.digest(torch.get_rng_state())
        here("before backward")
        optimizer.zero_grad()
        elastic_torch.loss_of(net, x, y, index, os.path.exists(end)).backward()
        here("after backward")
        before = net.taken.detach().clone()
        optimizer.step()
        here("after the step")
        scheduler.step()
        if job.released:
            break
        taken, ending = (net.taken.detach() - before).nonzero().flatten().tolist(), bool(net.ending > 0)
        with torch.no_grad():
            net.ending.zero_()
        line = dict(step=step.number, epoch=step.epoch, count=step.count, own=index.tolist() if step.weight else [], taken=taken)
        print(json.dumps(dict(line, rank=job.rank, size=job.size, random=random_state, joined=late)), file=ledger, flush=True)
        late = False
        if step.number % 20 == 0 and job.rank == 0:
            print("STEP", step.number, flush=True)
        if step.last and ending:
            break
    if job.released:
        print("RELEASED", flush=True)
        return
    state = [net.state_dict(), scheduler.state_dict()]
    np.savez(pathlib.Path(config["out"]) / f"{seat}.npz", *elastic_torch.arrays(state))
    print("MEMORY", json.dumps([job.rank, optimizer.memory()]), flush=True)
    print("RESULT", json.dumps([job.rank, job.size, job.committed, job.digest(), elastic_torch.digest(state)]), flush=True)


if __name__ == "__main__":
    main({**DEFAULTS, **json.loads(sys.argv[1])}, sys.argv[2])
