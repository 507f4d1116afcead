"""Stock DistributedDataParallel on the backend "shoal". Functions that tests give to `world` run on
each rank of a job, in its own process.
"""

import copy
import functools
import gc
import pickletools
import zipfile

import pytest

torch = pytest.importorskip("torch")
import torch.distributed as dist
from torch import nn
from torch.nn import functional as F
from torch.nn.parallel import DistributedDataParallel
from running_job import HANG
from torch_world import main, world

SEED = 20261121
# The packages that a file of an ordinary model may need.
PLAIN = {"torch", "collections", "copyreg", "copy_reg", "__builtin__", "builtins"}


def _model(dtype=torch.float32):
    """A small model, the same on every rank."""
    torch.manual_seed(SEED)
    return nn.Sequential(
        nn.Linear(12, 32), nn.Tanh(), nn.Linear(32, 32), nn.Tanh(), nn.Linear(32, 5)
    ).to(dtype)


def _batches(steps, batch, dtype):
    """Yield so many batches of `batch` samples with labels, the same on every rank."""
    generator = torch.Generator().manual_seed(SEED)
    for _ in range(steps):
        x = torch.randn(batch, 12, generator=generator, dtype=torch.float64)
        yield x.to(dtype), (x[:, :5] + x[:, 5:10]).argmax(1)


def _part(x, job):
    """This rank's part of a batch, which is cut evenly."""
    size = len(x) // job.size
    return x[job.rank * size : (job.rank + 1) * size]


def _digest(model):
    """The sum of each parameter and buffer, which tells two models apart."""
    return [p.detach().double().sum().item() for p in model.parameters()] + [
        b.double().sum().item() for b in model.buffers()
    ]


def _train(steps, dtype, options):
    """Train on this rank for so many steps, with these options of shoal.torch.ddp; return the loss
    of each over the batch of all ranks, and a digest of the parameters in the end.
    """
    import shoal
    import shoal.torch

    dtype = getattr(torch, dtype)
    torch.set_num_threads(1)
    job = shoal.join()
    torch.manual_seed(job.rank)  # DDP must not need equal seeds
    model = shoal.torch.ddp(_model(dtype), **options)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    losses = []
    for x, y in _batches(steps, 32, dtype):
        optimizer.zero_grad()
        loss = F.cross_entropy(model(_part(x, job)), _part(y, job))
        loss.backward()
        optimizer.step()
        losses.append(loss.detach().reshape(1))
    losses = torch.cat(losses)
    dist.all_reduce(losses, dist.ReduceOp.AVG)
    return [losses.tolist(), _digest(model)]


@pytest.mark.parametrize("dtype, tolerance", [("float32", 1e-4), ("float64", 1e-9)])
def test_four_workers_learn_what_one_learns(dtype, tolerance):
    """The losses of four workers are those of one up to rounding, and their parameters are
    alike.
    """
    alone = world(1, _train, 200, dtype, {})[0]
    four = world(4, _train, 200, dtype, {})
    assert all(rank == four[0] for rank in four[1:]), "the ranks differ"
    torch.testing.assert_close(
        torch.tensor(four[0][0]), torch.tensor(alone[0]), rtol=tolerance, atol=0
    )
    assert alone[0][-1] < 0.5 * alone[0][0], "nothing was learned"


@functools.cache
def _train_without_options():
    """What `_train` returns on each of two ranks without options; the job is run once."""
    return world(2, _train, 20, "float64", {})


@pytest.mark.parametrize(
    "options",
    [
        {"gradient_as_bucket_view": True},
        {"find_unused_parameters": True},
        {"static_graph": True},
        {"bucket_cap_mb": 0.001},
        {"broadcast_buffers": False},
    ],
    ids=str,
)
def test_options_change_nothing(options):
    """Options of DistributedDataParallel give the same losses."""
    plain, with_option = _train_without_options(), world(2, _train, 20, "float64", options)
    assert plain[0] == plain[1] and with_option[0] == with_option[1]
    torch.testing.assert_close(
        torch.tensor(with_option[0][0]), torch.tensor(plain[0][0]), rtol=1e-12, atol=0
    )


class _Branches(nn.Module):
    """A model that uses a layer on some ranks only, and one nowhere."""

    def __init__(self):
        """Three layers of the same size."""
        super().__init__()
        self.always, self.odd, self.never = nn.Linear(4, 4), nn.Linear(4, 4), nn.Linear(4, 4)

    def forward(self, x, odd):
        """The outputs, through the layer `odd` if asked for."""
        x = self.always(x)
        return self.odd(x) if odd else x


def _train_with_unused_layers():
    """Train on this rank with layers that are not used everywhere; return the sum of each gradient
    that there is.
    """
    import shoal
    import shoal.torch

    job = shoal.join()
    model = shoal.torch.ddp(_Branches(), find_unused_parameters=True)
    for _ in range(3):
        model(torch.ones(2, 4), job.rank % 2 == 1).sum().backward()
    assert model.module.odd.weight.grad is not None and model.module.never.weight.grad is None
    return [p.grad.sum().item() for p in model.parameters() if p.grad is not None]


def test_unused_parameters():
    """A layer that one rank does not use is averaged, and one that nobody uses has no gradient."""
    ranks = world(2, _train_with_unused_layers)
    assert ranks[0] == ranks[1]


def _train_with_hook(name):
    """Train on this rank with a communication hook of torch's ("power", "halves") or of the test
    ("own"); return the sums of the first and of the last ten losses, and a digest.
    """
    import shoal
    import shoal.torch
    from torch.distributed.algorithms.ddp_comm_hooks import default_hooks, powerSGD_hook

    job = shoal.join()
    torch.set_num_threads(1)
    model = shoal.torch.ddp(_model(), bucket_cap_mb=0.002)
    if name == "power":
        state = powerSGD_hook.PowerSGDState(
            dist.group.WORLD, matrix_approximation_rank=4, start_powerSGD_iter=2
        )
        model.register_comm_hook(state, powerSGD_hook.powerSGD_hook)
    elif name == "halves":
        model.register_comm_hook(None, default_hooks.fp16_compress_hook)
    elif name == "own":

        def mean(_state, bucket):
            """A hook, called by torch in a backward pass, that averages by the backend."""
            work = dist.all_reduce(bucket.buffer(), async_op=True)
            return work.get_future().then(lambda future: future.value()[0] / job.size)

        model.register_comm_hook(None, mean)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    losses = []
    for x, y in _batches(60, 32, torch.float32):
        optimizer.zero_grad()
        loss = F.cross_entropy(model(_part(x, job)), _part(y, job))
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return [sum(losses[:10]), sum(losses[-10:]), _digest(model)]


@pytest.mark.parametrize("name", ["own", "halves", "power"])
def test_communication_hooks(name):
    """With hooks of torch's own, and one that calls the backend, models learn and are the same on
    both ranks.
    """
    ranks = world(2, _train_with_hook, name)
    assert ranks[0][2] == ranks[1][2], "the ranks differ"
    assert all(last < 0.7 * first for first, last, _ in ranks), "nothing was learned"


def _train_batch_norm():
    """Train a batch norm on this rank; return its running means before and after a forward pass,
    and how many batches it has counted.
    """
    import shoal
    import shoal.torch

    job = shoal.join()
    torch.manual_seed(SEED + job.rank)
    model = shoal.torch.ddp(nn.Sequential(nn.Linear(4, 6), nn.BatchNorm1d(6)))
    for _ in range(3):
        model(torch.randn(8, 4)).square().mean().backward()
    own = model.module[1].running_mean.tolist()
    model.eval()
    model(torch.randn(8, 4))  # sends rank 0's buffers first
    return [own, model.module[1].running_mean.tolist(), int(model.module[1].num_batches_tracked)]


def test_batch_norm_buffers_are_those_of_rank_0():
    """After a forward pass all ranks have the running means of rank 0."""
    first, second = world(2, _train_batch_norm)
    assert first[0] != second[0], "the test needs buffers that differ"
    assert first[1] == second[1] == first[0] and first[2] == second[2] == 3


def _accumulate():
    """Accumulate gradients under no_sync() on this rank; check that only the last pass averages;
    return the sum of a gradient before that pass.
    """
    import shoal
    import shoal.torch

    job = shoal.join()
    model = shoal.torch.ddp(_model(torch.float64))
    batches = list(_batches(4, 8, torch.float64))
    with model.no_sync():
        for x, y in batches[:3]:
            F.cross_entropy(model(_part(x, job)), _part(y, job)).backward()
    local = model.module[0].weight.grad.clone()
    x, y = batches[3]
    F.cross_entropy(model(_part(x, job)), _part(y, job)).backward()
    reference = _model(torch.float64)
    for x, y in batches:
        F.cross_entropy(reference(x), y).backward()
    for got, want in zip(model.module.parameters(), reference.parameters()):
        torch.testing.assert_close(got.grad, want.grad)
    return local.sum().item()


def test_no_sync_accumulates_locally():
    """Gradients differ between the ranks under no_sync(), and the pass after it averages all of
    them.
    """
    first, second = world(2, _accumulate)
    assert first != second


def _train_under_join():
    """Train under torch's join() with another number of batches on each rank; return the number of
    steps of this rank, and a digest.
    """
    import shoal
    import shoal.torch

    job = shoal.join()
    model = shoal.torch.ddp(_model())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    steps = 0
    with model.join():
        for x, y in list(_batches(3 + 2 * job.rank, 8, torch.float32)):
            optimizer.zero_grad()
            F.cross_entropy(model(x), y).backward()
            optimizer.step()
            steps += 1
    return [steps, _digest(model)]


def test_uneven_inputs():
    """torch's join() works with ranks that have fewer batches."""
    ranks = world(3, _train_under_join)
    assert [steps for steps, _ in ranks] == [3, 5, 7]
    assert ranks[0][1] == ranks[1][1] == ranks[2][1]


def _check_copy(model, path):
    """Copy a wrapped model in every way, and check that a copy has its own memory and averages
    nothing; rank 0 writes the model to the file `path`. All ranks call it.
    """
    import shoal
    import shoal.torch

    job, net = shoal.join(), model.module
    x, y = (_part(t, job) for t in next(_batches(1, 8, torch.float32)))
    if job.rank == 0:
        torch.save(model, path)
    averaged, dup = torch.optim.swa_utils.AveragedModel(model), copy.deepcopy(model)
    averaged.update_parameters(model)
    twin, state = copy.deepcopy(net), model.state_dict()
    F.cross_entropy(twin(x), y).backward()
    for same in (dup, averaged.module):
        assert same.state_dict().keys() == state.keys() and same.training
        for key, value in same.state_dict().items():
            assert torch.equal(value, state[key]) and value.data_ptr() != state[key].data_ptr()
        F.cross_entropy(same(x), y).backward()
        for got, want in zip(same.module.parameters(), twin.parameters()):
            assert torch.equal(got.grad, want.grad), "a copy must not average"
    assert copy.copy(model).module is net
    # an optimizer that averages is copied as the one in it
    inner = torch.optim.SGD(dup.parameters(), lr=0.1, momentum=0.9)
    both, stepping = copy.deepcopy((dup, shoal.torch.optimizer(inner)))
    assert type(stepping) is torch.optim.SGD and stepping.defaults == inner.defaults
    F.cross_entropy(both(x), y).backward()
    stepping.step()  # alone
    assert not torch.equal(both.module[0].weight, dup.module[0].weight)


def _check_copies(folder):
    """Check copies of models that were wrapped without a loop and in a loop; the models are written
    into the folder, as "fixed" and "loop".
    """
    import shoal
    import shoal.torch

    torch.set_num_threads(1)
    model = shoal.torch.ddp(_model(), compress="bf16")
    _check_copy(model, f"{folder}/fixed")
    del model
    gc.collect()  # a loader refuses models that were wrapped before
    loader = shoal.torch.loader(torch.utils.data.TensorDataset(torch.ones(8, 12)), 4, steps=2)
    model = shoal.torch.ddp(_model(), find_unused_parameters=True)
    for (x,) in loader:
        model(x).sum().backward()
        if loader.step.number == 0:
            _check_copy(model, f"{folder}/loop")


def test_copies_and_files_of_a_model_are_ordinary_models(tmp_path):
    """What a file needs to be loaded is torch's and Python's, and no mark of a parameter is in
    it.
    """
    world(2, _check_copies, str(tmp_path))
    for name in ("fixed", "loop"):
        with zipfile.ZipFile(tmp_path / name) as file:
            (pickled,) = (file.read(n) for n in file.namelist() if n.endswith("data.pkl"))
        ops = [(op.name, value) for op, value, _ in pickletools.genops(pickled)]
        needed = {value for op, value in ops if op == "GLOBAL"}
        assert "torch.nn.parallel.data_parallel DataParallel" in needed
        assert {value.split(".")[0].split(" ")[0] for value in needed} <= PLAIN, needed
        assert not [value for _, value in ops if "averaged" in str(value)]


def _train_compiled():
    """Train models on this rank that are compiled in every order, and check a collective in a
    compiled function; return a digest of each model.
    """
    import shoal
    import shoal.torch

    torch.set_num_threads(1)
    job = shoal.join()
    shoal.torch.ddp(nn.Linear(1, 1))  # makes the process group
    compiled = functools.partial(torch.compile, backend="aot_eager")
    digests = []
    for wrap in (
        shoal.torch.ddp,
        lambda net: compiled(shoal.torch.ddp(net)),
        lambda net: shoal.torch.ddp(compiled(net)),
        lambda net: compiled(DistributedDataParallel(net)),
    ):
        net = _model()
        model = wrap(net)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for x, y in _batches(3, 8, torch.float32):
            optimizer.zero_grad()
            F.cross_entropy(model(_part(x, job)), _part(y, job)).backward()
            optimizer.step()
        digests.append(_digest(net))

    def summed(x):
        """The sum over the ranks, and one more."""
        dist.all_reduce(x)
        return x + 1

    assert compiled(summed)(torch.ones(1)).item() == job.size + 1
    return digests


@pytest.mark.skipif(not hasattr(torch, "compile"), reason="PyTorch 1 compiles nothing")
def test_compiled_models_are_averaged():
    """A model has the same parameters on both ranks, wrapped by shoal.torch.ddp, before or after it
    is compiled or not at all, and compiled around torch's own ddp on the backend "shoal".
    """
    first, second = world(2, _train_compiled)
    assert first == second
    for other in first[1:]:
        assert other == first[0]


def _wrap_different_models():
    """Wrap models that differ between the ranks, which must raise RuntimeError; return its text."""
    import shoal
    import shoal.torch

    with pytest.raises(RuntimeError) as caught:
        shoal.torch.ddp(nn.Linear(3, 4 + shoal.join().rank))
    return str(caught.value)


def test_models_that_differ_are_refused():
    """Models of other shapes raise RuntimeError on both ranks, and one error names the
    parameter.
    """
    texts = world(2, _wrap_different_models)
    assert all(texts) and any("params[0]" in text for text in texts), texts


def _log_backward():
    """Train two steps on this rank; return what happens in the second one, in order: "submitted"
    when a bucket is, and "first" when the gradient of the layer at the input is computed, the last
    of all.
    """
    import shoal
    import shoal.torch

    torch.set_num_threads(1)
    job, happens, share = shoal.join(), [], shoal.Step.share
    loader = shoal.torch.loader(
        torch.utils.data.TensorDataset(torch.ones(4 * job.size, 512)), 2 * job.size, steps=2
    )
    # 1 MiB each, the least that a bucket has
    model = shoal.torch.ddp(nn.Sequential(*(nn.Linear(512, 512) for _ in range(5))))
    model.module[0].weight.register_hook(lambda _: happens.append("first"))
    shoal.Step.share = lambda *args, **options: (
        happens.append("submitted") or share(*args, **options)
    )
    for (x,) in loader:
        happens.clear()
        model(x).sum().backward()
    return happens


def test_gradients_are_submitted_while_backward_goes_on():
    """At least three buckets are submitted before the last gradient is computed, and the last one
    after.
    """
    for happens in world(2, _log_backward):
        assert happens.index("first") >= 3 and happens[-1] == "submitted", happens


def _check_alone():
    """Make a backward pass in a process without a launcher, and check that the gradients are those
    of the plain model.
    """
    import shoal.torch

    model = shoal.torch.ddp(_model())
    twin = copy.deepcopy(model.module)
    x, y = next(_batches(1, 8, torch.float32))
    F.cross_entropy(model(x), y).backward()
    F.cross_entropy(twin(x), y).backward()
    for got, want in zip(model.module.parameters(), twin.parameters()):
        assert torch.equal(got.grad, want.grad)


def test_without_a_launcher_it_is_a_job_of_one(tmp_path):
    """A program without a launcher trains with the gradients of the plain model."""
    import os
    import subprocess
    import sys

    from torch_world import ROOT

    env = {
        k: v
        for k, v in os.environ.items()
        if k not in ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")
    }
    env.update(PYTHONPATH=str(ROOT / "python"), RESULTS=str(tmp_path), SHOAL_RANK="0")
    env.pop("SHOAL_SOCKET", None)
    command = [sys.executable, __file__, "_check_alone", "[]"]
    subprocess.run(command, env=env, check=True, timeout=HANG)


if __name__ == "__main__":
    main(globals())
