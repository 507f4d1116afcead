"""The peers of sync_worker.py: the same model, pace and samples, on torchft and on hivemind.

Each worker has its number in the environment, as WORKER, and finds the others by ADDRESS, which is
that of torchft's lighthouse or of hivemind's first peer.
"""

from __future__ import annotations

import datetime
import os
from typing import Any

import torch
from sync_worker import Notes, Paced, train

PATIENCE = datetime.timedelta(seconds=60)  # of all operations; never met unless something hangs
MATCHING_S = 1.5  # hivemind's matchmaking_time, whose default is 15


def by_torchft(options: dict) -> None:
    """Train until the worker is ended: a replica group of one process, as in torchft's examples."""
    from torchft import DistributedDataParallel, Manager, Optimizer, ProcessGroupGloo
    from torchft.local_sgd import DiLoCo, LocalSGD

    number, own = int(os.environ["WORKER"]), os.environ["OWN_ADDRESS"]
    store = torch.distributed.TCPStore(own, 0, is_master=True, wait_for_workers=False)
    name, _, every = options["sync"].partition(":every=")
    model: Any = Paced(options)
    model.factor = options["slow"] if number == options["slow_worker"] else 1
    inner: Any = torch.optim.SGD(model.parameters(), lr=1e-3)
    outer = torch.optim.SGD(model.parameters(), lr=0.7, momentum=0.9, nesterov=True)

    def load(state: dict) -> None:
        """Take over the state of another worker, for the Manager."""
        model.load_state_dict(state["model"])
        inner.load_state_dict(state["inner"])

    manager = Manager(
        pg=ProcessGroupGloo(timeout=PATIENCE),
        min_replica_size=1,
        load_state_dict=load,
        state_dict=lambda: {"model": model.state_dict(), "inner": inner.state_dict()},
        replica_id=f"worker_{number}",
        store_addr=own,
        store_port=store.port,
        rank=0,
        world_size=1,
        timeout=PATIENCE,
        hostname=own,
        lighthouse_addr=os.environ["ADDRESS"],
        use_async_quorum=name == "ssgd",
    )
    notes, samples = Notes(options, number), 0
    x = torch.ones(options["batch"] // options["workers"], options["width"])

    def rounds(net: Any, optimizer: Any, steps: int) -> None:
        """Train in rounds of so many steps, and write down what came of each."""
        nonlocal samples
        while True:
            before = manager.current_step()
            for _ in range(steps):
                train(net, optimizer, x)
            done = manager.current_step() > before
            size = manager.num_participants()
            samples += done * size * steps * len(x)
            notes.write(samples=samples, own=steps * len(x), done=done, size=size)

    if name == "ssgd":
        rounds(DistributedDataParallel(manager, model), Optimizer(manager, inner), 1)
    steps = int(every)
    wrapper = (
        LocalSGD(manager, model, inner, steps)
        if name == "local"
        else DiLoCo(manager, [model], inner, outer, steps, use_bucketization=True)
    )
    with wrapper:
        rounds(model, inner, steps)


def by_hivemind(options: dict) -> None:
    """Train until the worker is ended, by an optimizer that averages gradients whenever all workers
    have a batch together, or in rounds the parameters.
    """
    import hivemind

    number, own = int(os.environ["WORKER"]), os.environ["OWN_ADDRESS"]
    first = os.environ["ADDRESS"]
    dht = hivemind.DHT(
        initial_peers=[] if number == 0 else [first],
        host_maddrs=[f"/ip4/{own}/tcp/{options['port'] if number == 0 else 0}"],
        identity_path=os.environ["IDENTITY"] if number == 0 else None,
        start=True,
    )
    name, _, every = options["sync"].partition(":every=")
    steps = int(every or 1)
    model = Paced(options)
    model.factor = options["slow"] if number == options["slow_worker"] else 1
    each = options["batch"] // options["workers"]
    optimizer = hivemind.Optimizer(
        dht=dht,
        run_id="bench",
        params=model.parameters(),
        optimizer=lambda parameters: torch.optim.SGD(parameters, lr=1e-3),
        batch_size_per_step=each,
        target_batch_size=options["batch"] * steps,
        use_local_updates=name != "ssgd",
        delay_state_averaging=False,
        matchmaking_time=MATCHING_S,
        averaging_timeout=60,
        verbose=True,
    )
    notes, x = Notes(options, number), torch.ones(each, options["width"])
    while True:
        before = optimizer.local_epoch
        train(model, optimizer, x)
        if optimizer.local_epoch > before:
            samples = optimizer.local_epoch * options["batch"] * steps
            notes.write(samples=samples, size=optimizer.tracker.global_progress.num_peers)


SYSTEMS = {"torchft": by_torchft, "hivemind": by_hivemind}
