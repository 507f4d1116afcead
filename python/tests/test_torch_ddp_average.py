"""Averages of backward passes that DistributedDataParallel takes no part in. Functions that tests
give to `world` run on each rank of a job, in its own process.
"""

import pytest

torch = pytest.importorskip("torch")
from torch.nn import functional as F
from torch.utils.data import TensorDataset
from torch_world import main, world


class _Normed(torch.nn.Module):
    """A model with running means, and a head of which the loss depends in every second step."""

    def __init__(self):
        """Make its layers, with random parameters."""
        super().__init__()
        self.body = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.BatchNorm1d(4))
        self.head, self.extra = torch.nn.Linear(4, 1), torch.nn.Linear(4, 1)

    def forward(self, x, extra):
        """The output of the head, with that of the extra one where it is asked for."""
        found = self.body(x)
        return self.head(found) + self.extra(found) if extra else self.head(found)


def _train_beside(beside):
    """Train on this rank with backward passes by DDP, or `beside` it, of which a worker without
    samples makes none. Return the parameters and running means, in how many steps DDP's buckets
    have kept the gradients of the first step, and in how many this worker had no samples.
    """
    import shoal.torch
    from shoal.torch.elastic import average_beside_ddp

    torch.manual_seed(1)
    x = torch.randn(29, 3, generator=torch.Generator().manual_seed(2))
    loader = shoal.torch.loader(TensorDataset(x, x.sum(1, keepdim=True)), 9, seed=5)
    options = dict(gradient_as_bucket_view=True, find_unused_parameters=True)
    model = shoal.torch.ddp(_Normed(), **options)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    average = average_beside_ddp(model)
    model.module.head.bias.requires_grad_(False)  # frozen after the call
    parameters = [p for p in model.parameters() if p.requires_grad]
    kept, unchanged, idle = [], 0, 0
    for x, y in loader:
        step = loader.step
        idle, extra = idle + (not step.weight), step.number % 2 == 0
        if not beside or not kept:
            optimizer.zero_grad(set_to_none=True)
            F.mse_loss(model(x, extra), y).backward()
            kept = kept or [(p.grad, p.grad.clone()) for p in parameters]
        else:
            model.zero_grad(set_to_none=True)
            with model.no_sync(), average.averaging_pass() as complete:
                loss = F.mse_loss(model(x, extra), y)
                if step.weight:
                    loss.backward()
                assert all(p.grad is None for p in parameters)
                complete()
            unchanged += all(torch.equal(view, copy) for view, copy in kept)
        optimizer.step()
    return [[t.tolist() for t in model.state_dict().values()], unchanged, idle]


@pytest.mark.skipif(
    not hasattr(torch.Tensor, "register_post_accumulate_grad_hook"),
    reason="this PyTorch has no hooks behind gradients, which trainers need for it",
)
def test_a_pass_beside_ddp_gives_the_same_means():
    """Averages without DDP are those with it, running means as well, for a worker without samples
    too; what is in DDP's buckets stays.
    """
    by_ddp, beside = world(2, _train_beside, False), world(2, _train_beside, True)
    assert beside[0][0] == beside[1][0] == by_ddp[0][0] == by_ddp[1][0]
    assert [steps for _, steps, _ in beside] == [3, 3]
    assert sorted(idle for _, _, idle in beside) == [0, 1]


def _train_updates(trained):
    """Make an update of two steps, the second of which has two micro-batches, of which the first
    alone uses the extra head, and an update that does not use it. Return the gradients of both,
    where `trained` says whether passes beside DDP are made, where they can be.
    """
    import shoal
    import shoal.torch
    from shoal._trainers.update import Update

    torch.manual_seed(1)
    x = torch.randn(24, 3, generator=torch.Generator().manual_seed(2))
    loader = shoal.torch.loader(TensorDataset(x, x.sum(1, keepdim=True)), 8, seed=5)
    options = dict(gradient_as_bucket_view=True, find_unused_parameters=True)
    model = shoal.torch.ddp(_Normed(), **options)
    update, found = Update(shoal.join(), beside_ddp=trained), []
    for i, (x, y) in enumerate(loader):
        if i != 1:
            model.zero_grad(set_to_none=True)
        if i == 1:
            with update.accumulating(model):
                (F.mse_loss(model(x, True), y) / 2).backward()
        with update.averaging(model):
            (F.mse_loss(model(x, False), y) / 2).backward()
        update.add_step(8.0, i > 0, [model])
        if i > 0:
            found.append([None if p.grad is None else p.grad.tolist() for p in model.parameters()])
    return found


def test_micro_batches_of_which_the_last_leaves_out_a_parameter():
    """What only an earlier micro-batch of a step has used counts, and leaves nothing behind for the
    next update, which does not use it.
    """
    by_ddp, beside = world(2, _train_updates, False), world(2, _train_updates, True)
    assert beside[0] == beside[1]
    assert [v is None for v in beside[0][1]] == [v is None for v in by_ddp[0][1]]
    assert beside[0][0][-1] is not None
    for a, b in zip(beside[0][0] + beside[0][1], by_ddp[0][0] + by_ddp[0][1]):
        assert a is b is None or torch.allclose(torch.tensor(a), torch.tensor(b))


def _train_static():
    """Train with static_graph on a worker that is alone; return its parameters."""
    import shoal
    import shoal.torch
    from shoal._trainers.update import Update

    torch.manual_seed(1)
    x = torch.randn(24, 3, generator=torch.Generator().manual_seed(2))
    loader = shoal.torch.loader(TensorDataset(x, x.sum(1, keepdim=True)), 8, seed=5)
    model = shoal.torch.ddp(torch.nn.Linear(3, 1), static_graph=True)
    optimizer, update = torch.optim.SGD(model.parameters(), lr=0.1), Update(shoal.join())
    for x, y in loader:
        optimizer.zero_grad()
        with update.averaging(model):
            F.mse_loss(model(x), y).backward()
        update.commit_alone()
        optimizer.step()
    return [p.tolist() for p in model.parameters()]


def test_a_static_graph_of_a_worker_that_is_alone():
    """DDP takes part in the passes of a static graph, as it does in torch of one process: it
    refuses those that it has not prepared.
    """
    (weight, bias), = world(1, _train_static)
    assert len(weight[0]) == 3 and len(bias) == 1


class _Branched(torch.nn.Module):
    """A model whose ranks use different layers, with weights in the memory order channels_last."""

    def __init__(self):
        """Make its layers, the same on all ranks."""
        super().__init__()
        torch.manual_seed(1)
        self.layers = torch.nn.ModuleList(torch.nn.Conv2d(2, 3, 2) for _ in range(2))
        self.to(memory_format=torch.channels_last)

    def forward(self, x, layer):
        """The output of one of the layers."""
        return self.layers[layer](x)


def _average_branches():
    """Make a step in which each rank uses a layer of its own; return the gradients that the
    parameters have, and what they are by the samples of both ranks.
    """
    import shoal
    import shoal.torch

    job, x = shoal.join(), torch.randn(2, 2, 3, 3, generator=torch.Generator().manual_seed(2))
    loader = shoal.torch.loader(TensorDataset(x), 2, shuffle=False)
    model = shoal.torch.ddp(_Branched(), find_unused_parameters=True)
    for (mine,) in loader:
        model(mine, job.rank).square().sum().backward()
    plain = _Branched()
    for rank in range(2):
        (plain(x[rank : rank + 1], rank).square().sum() / 2).backward()
    return [[p.grad.tolist() for p in m.parameters()] for m in (model, plain)]


def test_what_another_worker_has_used_lies_in_the_memory_order_of_the_parameter():
    """A gradient that only another worker has is the same everywhere, in the elements of the
    parameter, also where these lie in another order than their numbers.
    """
    for got, expected in world(2, _average_branches):
        for a, b in zip(got, expected):
            assert torch.allclose(torch.tensor(a), torch.tensor(b), atol=1e-6), (got, expected)


class _Seen(torch.nn.Module):
    """A model that puts another tensor in the place of its buffer in each forward pass."""

    def __init__(self):
        """Make its layer, the same on all ranks, and the buffer."""
        super().__init__()
        torch.manual_seed(1)
        self.layer = torch.nn.Linear(3, 1)
        self.register_buffer("mean", torch.zeros(3))

    def forward(self, x):
        """The output of the layer, for samples without their running mean."""
        self.mean = 0.9 * self.mean + 0.1 * x.detach().mean(0)
        return self.layer(x - self.mean)


def _train_with_new_buffers(way):
    """Train on this rank: by "ddp", by "zero", or by local steps of that strategy. Return the
    running mean.
    """
    import shoal.torch

    x = torch.randn(24, 3, generator=torch.Generator().manual_seed(2))
    loader = shoal.torch.loader(TensorDataset(x), 4, epochs=1)
    model = _Seen()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    if way == "ddp":
        model = shoal.torch.ddp(model)
    elif way == "zero":
        optimizer = shoal.torch.zero(model, optimizer)
    else:
        optimizer = shoal.torch.optimizer(optimizer, model, sync=way)
    for (mine,) in loader:
        optimizer.zero_grad()
        model(mine).square().mean().backward()
        optimizer.step()
    return next(iter(model.buffers())).tolist()


@pytest.mark.parametrize("way", ["ddp", "zero", "local:every=2"])
def test_buffers_that_a_module_replaces(way):
    """A running mean is the same on all workers, and that of one worker, also where the module puts
    another tensor in its place.
    """
    one, other = world(2, _train_with_new_buffers, way)
    assert one == other
    if ":" not in way:
        (alone,) = world(1, _train_with_new_buffers, way)
        assert torch.allclose(torch.tensor(one), torch.tensor(alone), atol=1e-6), (one, alone)


class _Complex(torch.nn.Module):
    """A model with complex parameters beside a real one."""

    def __init__(self):
        """Make its parameters, the same on all ranks."""
        super().__init__()
        generator = torch.Generator().manual_seed(1)
        values = torch.randn(2, 3, 2, generator=generator)
        self.weight = torch.nn.Parameter(torch.view_as_complex(values))
        self.shift = torch.nn.Parameter(torch.tensor([1 + 2j]))
        self.scale = torch.nn.Parameter(torch.ones(1))

    def forward(self, x):
        """A real number for each sample."""
        found = x.to(self.weight.dtype) @ self.weight.t() + self.shift
        return self.scale * found.abs().square().sum(1)


def _train_complex(way):
    """Train complex parameters on this rank: by "ddp", by "optimizer", or by local steps of that
    strategy. Return the parameters, as real numbers.
    """
    import shoal.torch

    x = torch.randn(24, 3, generator=torch.Generator().manual_seed(2))
    loader = shoal.torch.loader(TensorDataset(x), 4, epochs=1)
    model = _Complex()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    if way == "ddp":
        model = shoal.torch.ddp(model)
    elif way == "optimizer":
        optimizer = shoal.torch.optimizer(optimizer)
    else:
        optimizer = shoal.torch.optimizer(optimizer, model, sync=way)
    for (mine,) in loader:
        optimizer.zero_grad()
        model(mine).mean().backward()
        optimizer.step()
    with optimizer.anchor() if hasattr(optimizer, "anchor") else torch.no_grad():
        found = [torch.view_as_real(p) if p.is_complex() else p for p in model.parameters()]
        return [p.tolist() for p in found]


@pytest.mark.parametrize("way", ["ddp", "optimizer", "diloco:every=2", "pair:every=2"])
def test_complex_parameters(way):
    """Complex parameters are averaged as real ones are: they train as on one worker, and by local
    steps are the same on all.
    """
    one, other = world(2, _train_complex, way)
    assert one == other
    if ":" not in way:
        (alone,) = world(1, _train_complex, way)
        for a, b in zip(one, alone):
            assert torch.allclose(torch.tensor(a), torch.tensor(b), rtol=1e-4, atol=1e-5)


if __name__ == "__main__":
    main(globals())
