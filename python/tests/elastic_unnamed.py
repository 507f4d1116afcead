"""A script that names nothing for workers that join: what of its state is whose is known from how
it was made.

    elastic_unnamed.py KIND FILE

KIND is what it does: "scheduler", a scheduler that is not given to shoal.torch.optimizer; "plain",
an optimizer that is not, and averages of the parameters, which it registers; "chained", schedulers
in schedulers, two optimizers; "scaled", a GradScaler that is enabled; "late", a scheduler made in
the loop; "odd", an optimizer whose state cannot travel. Ends when FILE exists.
"""

import copy
import json
import os
import random
import sys

import numpy as np
import running_job
import torch
from elastic_torch import digest
from torch.nn import functional as F
from torch.optim import lr_scheduler

import shoal
import shoal.torch

kind, end = sys.argv[1:]
torch.set_num_threads(1)
job = shoal.join()
late = job.outside
x = torch.randn(64, 4, generator=torch.Generator().manual_seed(1))
loader = shoal.torch.loader(
    torch.utils.data.TensorDataset(x, x[:, :2].argmax(1)), 8, epochs=1 << 40
)
# what a worker does not get from the others is its own
torch.manual_seed(int(os.environ["SHOAL_RANK"]))
random.seed(int(os.environ["SHOAL_RANK"]))
np.random.seed(int(os.environ["SHOAL_RANK"]))
net = torch.nn.Linear(4, 2)
lr_scheduler.StepLR(torch.optim.SGD(net.parameters(), lr=1.0), 1)  # thrown away
# nobody's business
elsewhere = lr_scheduler.StepLR(
    torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=1.0), 1 + late
)


class Odd(torch.optim.SGD):
    """Has something in its state that is no number."""

    def state_dict(self):
        """The state, with an object in it that cannot be sent."""
        return {**super().state_dict(), "odd": object()}


optimizers = [(Odd if kind == "odd" else torch.optim.SGD)(net.parameters(), lr=0.1, momentum=0.9)]
schedulers = [lr_scheduler.LambdaLR(optimizers[0], lambda n: 0.999**n)]
scaler = (
    torch.amp.GradScaler("cpu", growth_interval=7)
    if kind == "scaled"
    else torch.cuda.amp.GradScaler(enabled=False)
)
if kind == "scheduler":
    model, optimizers[0] = net, shoal.torch.optimizer(optimizers[0])
else:
    model = shoal.torch.ddp(net)
kept = []
if kind == "plain":
    # made by a copy of the model: a worker that joins has another one
    kept = [copy.deepcopy(model), torch.optim.swa_utils.AveragedModel(model)]
    for average, name in zip(kept, ("moving average", "mean")):
        job.register(name, average.state_dict, average.load_state_dict)
if kind == "chained":
    optimizers.append(torch.optim.Adam(net.parameters(), lr=1e-3))
    phases = [
        lr_scheduler.LambdaLR(optimizers[1], lambda n: 1 / (1 + n)),
        lr_scheduler.OneCycleLR(optimizers[1], 0.1, 1 << 20, cycle_momentum=False),
    ]
    schedulers[0] = lr_scheduler.ChainedScheduler(
        [schedulers[0], lr_scheduler.ExponentialLR(optimizers[0], 0.9999)]
    )
    schedulers.append(lr_scheduler.SequentialLR(optimizers[1], phases, [30]))
    plateau = lr_scheduler.ReduceLROnPlateau(optimizers[0], patience=50, factor=0.99)
    group = optimizers[0].param_groups[0]
drawn = None
draws = []
for x, y in loader:
    step = loader.step
    drawn = torch.rand(1).item(), random.random(), np.random.rand()
    if late:
        print("JOINED", json.dumps([step.number, *drawn]), flush=True)
    elif job.rank == 0:
        draws.append([step.number, *drawn])
    late = False
    running_job.sleep_if_slowed(end)
    for optimizer in optimizers:
        optimizer.zero_grad()
    stop = step.share(torch.full((1,), float(os.path.exists(end))), last=False, op="max")
    scaler.scale(F.cross_entropy(model(x), y)).backward()
    for optimizer in optimizers:
        scaler.step(optimizer)
    scaler.update()
    if kept:
        for average, p in zip(kept[0].parameters(), model.parameters()):
            average.data.lerp_(p.data, 0.01)
        kept[1].update_parameters(model)
    if kind == "late" and not job.step.number:
        schedulers.append(lr_scheduler.ExponentialLR(optimizers[0], 0.9999))
    for scheduler in schedulers:
        scheduler.step()
    if kind == "chained":
        plateau.step(1.0)
        assert group is optimizers[0].param_groups[0], "others may have the groups"
    if step.number % 20 == 0 and job.rank == 0:
        print("STEP", step.number, flush=True)
    if stop.wait().item():
        break
state = [
    net.state_dict(),
    [o.state_dict() for o in optimizers],
    [{k: v for k, v in s.state_dict().items() if k != "_schedulers"} for s in schedulers],
    [average.state_dict() for average in kept],
]
if kind == "chained":
    state.append(plateau.state_dict())
if kind == "scaled":
    state.append(scaler.state_dict())
# at the end: nobody reads while the third is waited for, and a full pipe stops the job
for line in draws:
    print("DRAWN", json.dumps(line))
print(
    "RESULT",
    json.dumps([job.rank, job.size, job.committed, digest(state), sorted(job._state._entries)]),
    flush=True,
)
