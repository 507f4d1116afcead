"""shoal.torch.optimizer: a torch optimizer that averages gradients itself. Functions that tests
give to `world` run on each rank of a job, in its own process.
"""

import pytest

torch = pytest.importorskip("torch")
from torch import nn
from torch.nn import functional as F
from torch_world import main, world

SEED = 20261121
STEPS = 30


def _model(dtype=torch.float64):
    """A small model, the same on every rank."""
    torch.manual_seed(SEED)
    return nn.Sequential(nn.Linear(6, 16), nn.Tanh(), nn.Linear(16, 3)).to(dtype)


def _data(step, dtype=torch.float64):
    """The batch of a step, the same on every rank."""
    x = torch.randn(
        12, 6, generator=torch.Generator().manual_seed(SEED + step), dtype=torch.float64
    )
    return x.to(dtype), x[:, :3].argmax(1)


def _part(x, job):
    """This rank's part of a batch, which is cut evenly."""
    size = len(x) // job.size
    return x[job.rank * size : (job.rank + 1) * size]


def _train(name):
    """Train on this rank with the optimizer called `name`; return the parameters, as one list, and
    what the last step(closure) gave, None for optimizers without a closure.
    """
    import shoal
    import shoal.torch

    job = shoal.join()
    model = _model()
    if job.rank:
        for parameter in model.parameters():
            parameter.data.zero_()  # rank 0's parameters must arrive
    make = {
        "sgd": lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9),
        "adam": lambda p: torch.optim.AdamW(p, lr=0.01),
        "lbfgs": lambda p: torch.optim.LBFGS(p, lr=0.5, max_iter=4, line_search_fn="strong_wolfe"),
        "scheduled": lambda p: torch.optim.SGD(p, lr=0.1),
    }[name]
    optimizer = shoal.torch.optimizer(make(model.parameters()))
    assert isinstance(optimizer, torch.optim.Optimizer)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 10) if name == "scheduled" else None
    loss = None
    # LBFGS wants the same data each time, and what it does with rounding errors grows from step to
    # step.
    for step in [0] * 4 if name == "lbfgs" else range(STEPS):
        x, y = (_part(t, job) for t in _data(step))

        def closure():
            """The loss of this rank's part, with its gradients."""
            optimizer.zero_grad()
            loss = F.cross_entropy(model(x), y)
            loss.backward()
            return loss

        if name == "lbfgs":
            loss = optimizer.step(closure)
        else:
            closure()
            optimizer.step()
        if scheduler:
            scheduler.step()
    return [
        torch.cat([p.detach().reshape(-1) for p in model.parameters()]).tolist(),
        None if loss is None else float(loss),
    ]


@pytest.mark.parametrize("name", ["sgd", "adam", "lbfgs", "scheduled"])
def test_three_workers_step_as_one(name):
    """Three workers with a third of each batch get the parameters of one with all of it."""
    alone, ranks = world(1, _train, name)[0], world(3, _train, name)
    assert ranks[0] == ranks[1] == ranks[2], "the ranks differ"
    torch.testing.assert_close(
        torch.tensor(ranks[0][0]), torch.tensor(alone[0]), rtol=1e-6, atol=1e-9
    )


def _check_details():
    """Check groups, clipping, missing gradients and checkpoints."""
    import shoal
    import shoal.torch

    job = shoal.join()
    model = _model()
    inner = torch.optim.SGD(
        [{"params": model[0].parameters()}, {"params": model[2].parameters(), "lr": 0.5}], lr=0.1
    )
    optimizer = shoal.torch.optimizer(inner)
    assert optimizer.param_groups is inner.param_groups and optimizer.state is inner.state
    optimizer.param_groups = [dict(group) for group in inner.param_groups]
    assert optimizer.param_groups is inner.param_groups, "who assigns them means the inner one's"
    x, y = (_part(t, job) for t in _data(0))
    # A parameter without a gradient anywhere keeps none; one that only rank 0 has a gradient for
    # gets a share of it.
    model(x)[:, :2].sum().backward()
    model[0].weight.grad = None
    model[0].bias.grad = torch.full_like(model[0].bias, 4.0) if job.rank == 0 else None
    optimizer.average_gradients()
    assert model[0].weight.grad is None and model[0].bias.grad[0].item() == 4.0 / job.size
    before = model[0].bias.detach().clone()
    nn.utils.clip_grad_norm_(model.parameters(), 1e9)
    optimizer.step()  # not averaged a second time
    torch.testing.assert_close(model[0].bias.detach(), before - 0.1 * 4.0 / job.size)
    # Checkpoints are those of the wrapped optimizer.
    saved = optimizer.state_dict()
    torch.optim.SGD(
        [{"params": model[0].parameters()}, {"params": model[2].parameters()}], lr=0.1
    ).load_state_dict(saved)
    optimizer.load_state_dict(saved)
    assert optimizer.param_groups[1]["lr"] == 0.5
    # A group that comes later, with rank 0's values.
    extra = nn.Parameter(torch.full((2,), float(job.rank + 1), dtype=torch.float32))
    optimizer.add_param_group({"params": [extra]})
    assert extra.tolist() == [1.0, 1.0]
    extra.grad = torch.full((2,), float(job.rank))
    optimizer.zero_grad(set_to_none=False)
    extra.grad += job.rank
    optimizer.step()
    torch.testing.assert_close(
        extra.detach(), torch.full((2,), 1 - 0.1 * sum(range(job.size)) / job.size)
    )


def test_groups_clipping_missing_gradients_and_checkpoints():
    """The wrapper behaves as the wrapped optimizer does."""
    world(2, _check_details)


def _train_with_gaps(stage):
    """Average gradients and then leave a step out, or add more gradients; return the parameters, as
    one list. `stage`: of shoal.torch.zero, which commits the steps of a loader; 0 = neither.
    """
    import shoal
    import shoal.torch

    job, net = shoal.join(), nn.Linear(2, 1).double()
    if stage:
        data = torch.utils.data.TensorDataset(torch.arange(24.0).double().view(12, 2))
        batches = shoal.torch.loader(data, 4, steps=3)
        optimizer = shoal.torch.zero(net, torch.optim.SGD(net.parameters(), lr=0.1), stage=stage)
    else:
        batches = ((_part(_data(n)[0][:, :2], job),) for n in range(3))
        optimizer = shoal.torch.optimizer(torch.optim.SGD(net.parameters(), lr=0.1))
    for n, (x,) in enumerate(batches):
        for p in net.parameters():
            p.grad = None  # as model.zero_grad() does
        net(x).square().mean().backward()
        optimizer.average_gradients()
        if n == 0:
            continue
        if n == 1 and not stage:
            net(x).square().mean().backward()
        optimizer.step()
    return torch.cat([p.detach().reshape(-1) for p in net.parameters()]).tolist()


@pytest.mark.parametrize("stage", [0, 1, 2])
def test_gradients_are_averages_up_to_the_next_backward_pass(stage):
    """Also where the script took no step with them, and model.zero_grad() has removed them: all
    workers go on with the same parameters.
    """
    ranks = world(2, _train_with_gaps, stage)
    assert ranks[0] == ranks[1]


def _check_scaled():
    """Do what GradScaler does around a step, without and then with an infinity on one rank, and
    check that all ranks step or none.
    """
    import shoal
    import shoal.torch

    job = shoal.join()
    weight = nn.Parameter(torch.ones(2))
    optimizer = shoal.torch.optimizer(torch.optim.SGD([weight], lr=1.0))
    # What GradScaler does around a step; the scales of the ranks differ here.
    for infinite_on in (None, 1):
        weight.grad = torch.full((2,), float(job.rank + 1)) * 2.0**job.rank
        if infinite_on == job.rank:
            weight.grad[0] = float("inf")
        optimizer.grad_scale, optimizer.found_inf = torch.tensor(2.0**job.rank), torch.zeros(1)
        optimizer.step()
        del optimizer.grad_scale, optimizer.found_inf
        # no rank takes the second step
        torch.testing.assert_close(weight.detach(), torch.full((2,), 1 - 1.5))


def test_scaled_gradients_step_on_all_ranks_or_none():
    """A GradScaler's step is that of the mean of unscaled gradients; an infinity on one rank keeps
    all of them from it.
    """
    world(2, _check_scaled)


def _check_scaled_beside_ddp():
    """Step, with a GradScaler, an optimizer that has a parameter of ddp and one of its own, without
    and then with an infinity in what ddp has averaged.
    """
    import shoal
    import shoal.torch

    rank = shoal.join().rank
    layer, own = nn.Linear(1, 1, bias=False), nn.Parameter(torch.ones(1))
    model = shoal.torch.ddp(layer)
    optimizer = shoal.torch.optimizer(torch.optim.SGD([layer.weight, own], lr=1.0))
    for factor in (1.0, float("inf")):
        before = layer.weight.item()
        optimizer.zero_grad()
        loss = model(torch.full((1, 1), (rank + 1) * factor)).sum() + own.sum() * rank
        (8 * loss).backward()
        optimizer.grad_scale, optimizer.found_inf = torch.tensor(8.0), torch.zeros(1)
        optimizer.step()
        del optimizer.grad_scale, optimizer.found_inf
        if factor == 1.0:
            assert layer.weight.item() == pytest.approx(before - 1.5)
        else:
            assert layer.weight.item() == before
        assert own.item() == 0.5


def test_a_grad_scaler_of_an_optimizer_with_parameters_of_ddp():
    """The gradients that ddp has averaged are divided by the scale too, and no rank steps where one
    of them is not finite.
    """
    world(2, _check_scaled_beside_ddp)


def _check_managed():
    """Check what the optimizer does with parameters of ddp, and with sparse gradients."""
    import shoal.torch

    model = shoal.torch.ddp(_model())
    inner = torch.optim.SGD(model.parameters(), lr=0.1)
    assert shoal.torch.optimizer(inner) is inner
    sparse = nn.Embedding(4, 2, sparse=True)
    optimizer = shoal.torch.optimizer(torch.optim.SGD(sparse.parameters(), lr=0.1))
    sparse(torch.tensor([1])).sum().backward()
    with pytest.raises(RuntimeError, match="with sparse=False; .* without shoal.torch.loader"):
        optimizer.step()


def test_parameters_of_ddp_are_left_alone_and_sparse_gradients_refused():
    """An optimizer of a wrapped model is returned as it is; a sparse gradient raises
    RuntimeError.
    """
    world(2, _check_managed)


if __name__ == "__main__":
    main(globals())
