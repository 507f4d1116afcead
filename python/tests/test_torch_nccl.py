"""Gradients from device to device: the way that takes NCCL, with Gloo in its place, on devices that
are doubles.
"""

import json

import pytest

pytest.importorskip("numpy")
torch = pytest.importorskip("torch")
from test_elastic_torch import Ledger, training  # noqa: F401  a fixture
from torch_world import main, world

BY_NCCL = "gradients go through NCCL, on %d devices"
OWN = dict(gpu=True, device="GPU-{}")


@pytest.mark.parametrize("wrap, optimizer", [("ddp", "adam"), ("optimizer", "momentum")])
def test_without_faults(training, tmp_path, wrap, optimizer):  # noqa: F811
    """Gradients go by NCCL, with what all these tests check. The agent sees how noisy they are, but
    takes no sample for all that is averaged.
    """
    run = tmp_path / "run"
    config = dict(OWN, wrap=wrap, optimizer=optimizer, samples=2400)
    # Workers that import torch themselves come late to NCCL, and so make some steps without it. Few
    # of the short steps by NCCL alone are measured, so there are many of them.
    with training(3, ["--log-dir", str(run)], prefork=None, **config) as job:
        ledger = Ledger(tmp_path, job.finish(), samples=2400, wrap=wrap, optimizer=optimizer)
    ledger.check(3)
    (sense,) = run.glob("*/sense.jsonl")
    row = json.loads(sense.read_text().splitlines()[-1])
    assert "no gradient was measured" not in str(row["noise"]) and "gradients" not in row
    assert row["split"]["exposed"] > 0 and len(row["slack"]) == 3
    assert ledger.output.count(BY_NCCL % 3) == 1 and "arena" not in ledger.output


@pytest.mark.parametrize(
    "wrap, place, worker",  # 0 has the store
    [
        ("ddp", "before backward", 0),
        ("ddp", "within backward", 1),
        ("ddp", "within the collective", 1),
        ("ddp", "after a part of the collective", 0),
        ("ddp", "after the collective", 2),
        ("optimizer", "after a part of the collective", 1),
        ("optimizer", "after the collective", 0),
        ("ddp", "after the step", 0),
    ],
)
def test_a_worker_is_killed(training, tmp_path, wrap, place, worker):  # noqa: F811
    """Wherever in a step a worker is killed, the step is made again by the workers that are left.
    """
    with training(3, wrap=wrap, samples=300, doomed=[[worker, 7, place]], **OWN) as job:
        job.read_until(f"w{worker} was killed by SIGKILL")
        ledger = Ledger(tmp_path, job.finish(), samples=300, wrap=wrap)
    ledger.check(2, losses=1)
    assert BY_NCCL % 2 in ledger.output and "arena" not in ledger.output


def test_a_worker_is_killed_before_it_is_connected(training, tmp_path):  # noqa: F811
    """The step is made again by the workers that are left where one dies before the devices are
    connected.
    """
    with training(3, samples=300, doomed=[[1, 0, "before the communicator"]], **OWN) as job:
        ledger = Ledger(tmp_path, job.finish(), samples=300)
    ledger.check(2, losses=1)
    assert BY_NCCL % 2 in ledger.output


def test_workers_join_and_are_released(training, tmp_path):  # noqa: F811
    """The workers of each generation use NCCL, with the samples and parameters of one worker."""
    with training(2, samples=2400, **OWN) as job:
        for n in (4, 3):
            job.resize(n)
            job.read_until(BY_NCCL % n)
        # torch 1.13 ends who is just connecting to a store that is killed, and rank 0 has it; it
        # has no NCCL that can be aborted either
        job.wait_for_new_step()
        job.kill(0)
        ledger = Ledger(tmp_path, job.finish(), samples=2400)
    ledger.check(2, losses=1)
    assert all(BY_NCCL % n in ledger.output for n in (2, 3, 4))


def test_what_nccl_cannot_do_goes_through_the_arena(training, tmp_path):  # noqa: F811
    """A step in which NCCL fails is made again through the arena, and gradients go by NCCL again
    when the members are others.
    """
    with training(3, samples=300, doomed=[[1, 7, "NCCL fails"]], **OWN) as job:
        job.read_until("gradients go through the arena: rank 1 could not use NCCL")
        job.kill(0)
        job.read_until(BY_NCCL % 2)
        ledger = Ledger(tmp_path, job.finish(), samples=300)
    ledger.check(2, losses=1)
    assert "NCCL failed in this worker: a cable is loose" in ledger.output


@pytest.mark.parametrize(
    "gpu, device, why",
    [
        (True, "GPU", "ranks 0 and 1 share a device"),
        (True, None, "rank 0 has no NCCL that can be aborted"),
        ([0], "GPU-{}", "rank 1 trains on the CPU"),
    ],
)
def test_workers_that_cannot_use_it(training, tmp_path, gpu, device, why):  # noqa: F811
    """Where one worker cannot use NCCL, all go through the arena, and the user is told why."""
    with training(2, samples=100, gpu=gpu, device=device) as job:
        ledger = Ledger(tmp_path, job.finish(), samples=100)
    ledger.check(2)
    assert ledger.output.count("gradients go through the arena: " + why) == 1


def test_turned_off(training, tmp_path, monkeypatch):  # noqa: F811
    """SHOAL_NCCL=0 has all gradients go through the arena."""
    monkeypatch.setenv("SHOAL_NCCL", "0")
    with training(2, samples=100, **OWN) as job:
        ledger = Ledger(tmp_path, job.finish(), samples=100)
    ledger.check(2)
    assert "gradients go through the arena: rank 0 has SHOAL_NCCL=0" in ledger.output


def _train_weighted(wrap, double):
    """Train on this rank with samples that it weighs as often as a trainer does that counts tokens,
    on a `double` of a device of its own or on the CPU; return the parameters.
    """
    import device_double

    import shoal
    import shoal.torch

    job = shoal.join()
    if double:
        device_double.install(device=f"GPU-{job.rank}")
    x = torch.randn(18, 3, generator=torch.Generator().manual_seed(1))
    loader = shoal.torch.loader(torch.utils.data.TensorDataset(x), 6, shuffle=False)
    torch.manual_seed(1)
    net = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.BatchNorm1d(4))
    model = shoal.torch.ddp(net) if wrap == "ddp" else net
    optimizer = shoal.torch.optimizer(torch.optim.SGD(net.parameters(), lr=0.1))
    for (x,) in loader:
        loader.step.weight *= 100 + 300 * job.rank
        optimizer.zero_grad()
        model(x).square().mean().backward()
        optimizer.step()
    return [p.tolist() for p in net.parameters()]


@pytest.mark.parametrize("wrap", ["ddp", "optimizer"])
def test_samples_that_are_weighed(wrap):
    """The mean of gradients is over what all workers weigh, as through the arena."""
    want, found = (world(2, _train_weighted, wrap, double) for double in (False, True))
    assert found[0] == found[1]
    for a, b in zip(found[0], want[0]):
        torch.testing.assert_close(torch.tensor(a), torch.tensor(b))


def _leave_within_a_step():
    """Leave the job in the middle of a step on devices that are doubles, as a program does that
    fails there; return what has failed on other threads.
    """
    import threading

    import device_double

    import shoal
    import shoal.torch

    failed = []
    threading.excepthook = lambda given: failed.append(str(given.exc_value))
    job = shoal.join()
    device_double.install(device=f"GPU-{job.rank}")
    x = torch.zeros(8, 3)
    for (x,) in shoal.torch.loader(torch.utils.data.TensorDataset(x), 4):
        optimizer = shoal.torch.optimizer(torch.optim.SGD([torch.nn.Parameter(x[0])], lr=0.1))
        path = optimizer._paths.choose()
        path.exchange.begin_step()
        break
    job.leave()
    done = threading.Event()
    path.exchange._devices._executor.run(done.set)
    return [done.wait(60), failed]


def test_a_job_that_is_left_within_a_step():
    """A worker that leaves the job before the end of a step aborts what waits for other devices,
    and prints no error of its own.
    """
    assert world(2, _leave_within_a_step) == [[True, []]] * 2


if __name__ == "__main__":
    main(globals())
