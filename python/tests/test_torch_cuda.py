"""Tensors on a CUDA device: by a double everywhere, and for real where there is one. Functions that
tests give to `world` run on each rank of a job, in its own process.
"""

import gc
import os
import threading

import pytest

torch = pytest.importorskip("torch")
from device_double import DeviceDouble, install
from torch import nn
from torch_world import main, world

SEED = 20261123
# What a test is run with: what averages gradients, whether in shoal's loop, compressed how.
_ways = pytest.mark.parametrize(
    "wrap, elastic, compress",
    [
        ("ddp", True, None),
        ("ddp", False, None),
        ("optimizer", True, None),
        ("optimizer", False, None),
        ("ddp", True, "int8"),
        ("ddp", True, "bf16"),
    ],
)
_real = pytest.mark.skipif(
    not torch.cuda.is_available(),
    reason="needs a CUDA device: torch.cuda.is_available() is False here",
)


def _net():
    """A small model with a batch norm, the same whenever it is made."""
    torch.manual_seed(SEED)
    return nn.Sequential(
        nn.Linear(30, 40),
        nn.Tanh(),
        nn.BatchNorm1d(40),
        nn.Linear(40, 20),
        nn.Tanh(),
        nn.Linear(20, 1),
    )


def _train(job, wrap, elastic, compress, device="cpu"):
    """Train on this rank for a few steps, in a loop of shoal's loader with `elastic`; return the
    parameters, a list of numbers each.
    """
    import shoal.torch
    from shoal.torch import elastic as steps

    steps._LEAST_BYTES = 2000
    net = _net().to(device)
    generator = torch.Generator().manual_seed(SEED)
    x = torch.randn(54, 30, generator=generator)
    data = torch.utils.data.TensorDataset(x, x[:, :1] * 2)
    batches = (
        shoal.torch.loader(data, 10, epochs=2)
        if elastic
        else [data[job.rank * 5 + k :: 10] for k in range(5)]
    )
    model = shoal.torch.ddp(net, compress=compress) if wrap == "ddp" else net
    optimizer = shoal.torch.optimizer(torch.optim.SGD(net.parameters(), lr=0.1), compress=compress)
    for x, y in batches:
        optimizer.zero_grad()
        nn.functional.mse_loss(model(x.to(device)), y.to(device)).backward()
        optimizer.step()
    return [p.detach().flatten().tolist() for p in net.parameters()]


def _train_on_device(wrap, elastic, compress, device):
    """Train on this rank on a real device, by its name, or on the "double"; return the parameters,
    and the log of the double, None for a real one.
    """
    import shoal

    job = shoal.join()
    double = install() if device == "double" else None
    return (
        _train(job, wrap, elastic, compress, device if double is None else "cpu"),
        double and double.log,
    )


def _train_on_cpu(wrap, elastic, compress):
    """Train on this rank on the CPU; return the parameters."""
    import shoal

    return _train(shoal.join(), wrap, elastic, compress)


@_ways
def test_the_same_as_on_the_cpu(wrap, elastic, compress):
    """A device gives the same bits as the CPU, with copies in the right order."""
    want = world(2, _train_on_cpu, wrap, elastic, compress)[0]
    for got, log in world(2, _train_on_device, wrap, elastic, compress, "double"):
        assert got == want, "other bits than without a device"
        _check_order(log, wrap, compress)


def _count_asides(wrap):
    """Train on this rank; return how often it asked the others something in the middle of a step.
    """
    import shoal

    asked, aside = [], shoal.Step.submit_aside
    shoal.Step.submit_aside = lambda *args, **options: asked.append(args) or aside(*args, **options)
    _train(shoal.join(), wrap, True, None)
    return len(asked)


# of parameters, after 1, 2, 4 and 8 of 12 steps
@pytest.mark.parametrize("wrap", ["ddp", "optimizer"])
def test_workers_on_cpus_ask_each_other_nothing_else(wrap):
    """Without devices, workers make no calls but those that compare their parameters."""
    assert world(2, _count_asides, wrap) == [4] * 2


def _check_order(log, wrap, compress):
    """Check by the log of a DeviceDouble that every copy comes after what made its source, and that
    the thread that runs backward never waits for one.
    """
    kinds = [entry[0] for entry in log]
    assert kinds.count("wait") >= 5, "the side stream does not wait for the computation"
    assert kinds.index("wait") < kinds.index("copy") if "copy" in kinds else compress == "int8"
    if wrap != "ddp":
        return
    backward = {entry[-1] for entry in log if entry[0] == "wait"}
    assert len(backward) == 1
    # All but the one wait before a step, for what the last step has brought, is done by the thread
    # of the copier.
    own = [i for i, entry in enumerate(log) if entry[0] == "sync" and entry[-1] in backward]
    for i in own:
        assert log[i + 1][0] == "wait" and "complete" in [entry[0] for entry in log[:i]], (
            f"entry {i} of {log[:40]}"
        )
    assert {entry[1] for entry in log if entry[0] == "complete"} == {"side"}, (
        "the future does not carry the stream that copies"
    )


@_real
@_ways
def test_on_a_device(wrap, elastic, compress):
    """Two workers on one GPU learn what they learn on the CPU."""
    want = world(2, _train_on_cpu, wrap, elastic, compress)[0]
    for got, _ in world(2, _train_on_device, wrap, elastic, compress, "cuda:0"):
        for a, b in zip(got, want):
            # which int8 makes larger, where a gradient lies between two of its steps
            atol = 2e-3 if compress == "int8" else 1e-4
            torch.testing.assert_close(torch.tensor(a), torch.tensor(b), rtol=1e-3, atol=atol)


def _train_by_nccl(wrap):
    """Train on this rank on the device that all ranks share, and have NCCL and shoal take each rank
    for another host with a device of its own; return the parameters, and how many steps NCCL has
    summed the gradients of.
    """
    import shoal
    from shoal.torch import cuda

    rank, identity, wait = os.environ["SHOAL_RANK"], cuda.Device.identity, cuda.Communicator.wait
    os.environ.update(NCCL_HOSTID=rank, NCCL_SOCKET_IFNAME="lo")
    cuda.Device.identity = lambda self: (rank, identity(self)[1])
    sums = []
    cuda.Communicator.wait = lambda self: sums.append(wait(self))
    return _train(shoal.join(), wrap, True, None, "cuda:0"), len(sums)


@_real
@pytest.mark.parametrize("wrap", ["ddp", "optimizer"])
def test_by_nccl(wrap):
    """Workers whose gradients NCCL sums learn what they learn on the CPU."""
    want = world(2, _train_on_cpu, wrap, True, None)[0]
    for got, sums in world(2, _train_by_nccl, wrap):
        assert sums == 12
        for a, b in zip(got, want):
            torch.testing.assert_close(torch.tensor(a), torch.tensor(b), rtol=1e-3, atol=1e-4)


def _make_calls():
    """Make calls of the backend on this rank with tensors on a real device; return their results.
    """
    import torch.distributed as dist

    import shoal.torch  # noqa: F401  registers the backend

    dist.init_process_group("shoal")
    x = torch.full((5,), float(dist.get_rank() + 1), device="cuda:0")
    dist.all_reduce(x)
    y = torch.full((2, 3), dist.get_rank(), dtype=torch.int16, device="cuda:0").t()
    dist.broadcast(y, src=1)
    gathered = [torch.empty_like(x) for _ in range(2)]
    dist.all_gather(gathered, x + dist.get_rank())
    return [x.tolist(), y.tolist(), torch.stack(gathered).tolist()]


@_real
def test_calls_of_the_backend_on_a_device():
    """Calls of the backend take tensors on a device, and put results there."""
    for x, y, gathered in world(2, _make_calls):
        assert x == [3.0] * 5 and y == [[1, 1]] * 3 and gathered == [[3.0] * 5, [4.0] * 5]


@_real
def test_memory_is_pinned_once_and_unpinned(agent, monkeypatch):
    """On a real device no segment is pinned twice, and it is unpinned when it is freed."""
    from shoal.torch.cuda import Device

    _adopt_and_drop(agent, Device(torch.device("cuda:0")), monkeypatch)


def test_pins_are_balanced(agent, monkeypatch):
    """A segment is pinned once for all of its buckets, and unpinned when it is freed."""
    double = DeviceDouble()
    _adopt_and_drop(agent, double, monkeypatch)
    assert [entry[0] for entry in double.log] == ["pin", "unpin", "pin"] and len(double.pinned) == 1


def _joined(agent, monkeypatch):
    """A job of the AgentDouble, as the one that this process has joined, until the end of the
    test.
    """
    from shoal import job as jobs

    job = agent.join()
    monkeypatch.setattr(jobs, "_current", job)
    return job


def _adopt_and_drop(agent, double, monkeypatch):
    """Have a copier for a device, real or a double, adopt buckets that are then dropped, and check
    which segments of the AgentDouble stay.
    """
    from shoal.torch.bucket import Bucket
    from shoal.torch.bucket_copy import StreamCopier

    job = _joined(agent, monkeypatch)
    segments = agent.sessions[0].segments
    copier = StreamCopier(job, double)
    big = Bucket([torch.zeros(5 << 20)])
    copier.adopt(big)
    copier.adopt(big)
    assert len(segments) == 1
    del big
    gc.collect()
    # which lie in one segment; and what was dropped is given back
    small = [Bucket([torch.zeros(10)]) for _ in range(3)]
    for bucket in small:
        copier.adopt(bucket)
    assert len(agent.sessions[0].freed) == 1


def test_the_maker_of_a_bucket_waits_for_its_pages_only_where_it_is_pinned(agent, monkeypatch):
    """The agent makes the pages of a bucket later, unless its parameters are on a device."""
    from shoal.torch.bucket import Bucket

    _joined(agent, monkeypatch)
    kept = [Bucket([torch.zeros(5 << 20, device=device)]) for device in ("cpu", "meta")]
    later = [r.get("later") for r in agent.requests if r["type"] == "segment"]
    assert later == [True, None] and len(kept) == 2


def test_where_the_driver_refuses_to_pin_it_is_said_once(agent, monkeypatch, capsys):
    """Training goes on without pinned memory, and the user is told once."""
    from shoal.torch.bucket import Bucket
    from shoal.torch.bucket_copy import StreamCopier

    copier = StreamCopier(_joined(agent, monkeypatch), DeviceDouble(refuses=True))
    for _ in range(3):
        copier.adopt(Bucket([torch.zeros(10)]))
    assert capsys.readouterr().err.count("cannot be pinned for double (cudaError 2)") == 1


def test_an_error_of_a_task_is_in_the_future_and_the_next_step_is_clean():
    """The future of a step has the error of its tasks, and later steps have none."""
    from shoal.torch.bucket_copy import StreamCopier

    copier = StreamCopier(None, DeviceDouble())
    ran = []
    for task, error in ((lambda: 1 / 0, "division"), (lambda: ran.append(1), None)):
        future = copier.new_future()
        copier.run_after_copies(task)
        copier.run_after_copies(lambda: ran.append(2))
        copier.complete_futures([(future, torch.ones(1))])
        if error:
            with pytest.raises(Exception, match=error):
                future.wait()
        else:
            assert future.wait() == 1
    assert ran == [1, 2]


def test_what_the_agent_may_read_was_copied():
    """A task sees what was fetched before it, and runs in no thread of the caller's."""
    from shoal.torch.bucket_copy import StreamCopier

    copier = StreamCopier(None, DeviceDouble())
    place, seen = torch.zeros(4), []
    with copier.copying_in():
        copier.copy_in(place, torch.ones(4))
    assert not place.any(), "the double copies at once, and shows nothing"
    future = copier.new_future()
    copier.run_after_copies(lambda: seen.append((place.tolist(), threading.current_thread())))
    copier.run_after_copies(lambda: copier.copy_out(place, torch.full((4,), 2.0)))
    copier.complete_futures([(future, place)])
    assert future.wait().tolist() == [2.0] * 4
    assert seen[0][0] == [1.0] * 4 and seen[0][1] is not threading.current_thread()


def test_tensors_on_several_devices_are_refused():
    """Tensors on two devices raise RuntimeError, which names both; those on the CPU have no
    device.
    """
    from shoal.torch.cuda import device_of

    assert device_of([torch.zeros(1)]) is None
    with pytest.raises(RuntimeError, match="lies on cpu, meta.*a worker for each GPU"):
        device_of([torch.zeros(1), torch.zeros(1, device="meta")])


if __name__ == "__main__":
    main(globals())
