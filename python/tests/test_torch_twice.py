"""What is said where the same gradients would be averaged twice in a step of the loader, or two
loops take steps from each other; and what an optimizer is that averages nothing. Functions that
tests give to `world` run on each rank of a job, in its own process; an error there fails the job,
and `world` raises Failed with what was printed.
"""

import pytest

torch = pytest.importorskip("torch")
from torch.nn import functional as F
from torch.utils.data import TensorDataset
from torch_world import Failed, main, world


def _loop(model):
    """A loader of 32 samples in batches of 8, a model, and its optimizer."""
    import shoal.torch

    x = torch.randn(32, 3)
    loader = shoal.torch.loader(TensorDataset(x, x.sum(1, keepdim=True)), 8, seed=5)
    model = model(3, 1)
    return loader, model, torch.optim.SGD(model.parameters(), lr=0.1)


def _wrapped(*sizes):
    """A linear layer under shoal.torch.ddp."""
    import shoal.torch

    return shoal.torch.ddp(torch.nn.Linear(*sizes))


def _average_by_two(how):
    """Average the same gradients in two ways in a step, or in two calls of a closure."""
    import shoal.torch

    loader, model, optimizer = _loop(torch.nn.Linear)
    if how == "optimizer first":
        optimizer = shoal.torch.optimizer(optimizer)
    elif how == "LBFGS":
        optimizer = torch.optim.LBFGS(model.parameters())
    model = shoal.torch.ddp(model)
    if how == "wrapped twice":
        model = shoal.torch.ddp(model)
    for x, y in loader:

        def closure():
            """The loss, with its gradients."""
            optimizer.zero_grad()
            loss = F.mse_loss(model(x), y)
            loss.backward()
            return loss

        if how == "LBFGS":
            optimizer.step(closure)
        else:
            closure()
            optimizer.step()


@pytest.mark.parametrize(
    "how, said",
    [
        ("optimizer first", "shoal.torch.optimizer was called before shoal.torch.ddp"),
        ("LBFGS", "LBFGS computes gradients several times a step"),
        ("wrapped twice", "is a DistributedDataParallel already"),
    ],
)
def test_why_gradients_are_averaged_twice(how, said):
    """Where the same gradients would be averaged twice, the error says why that is."""
    with pytest.raises(Failed, match=said):
        world(1, _average_by_two, how)


def _train_with_a_frozen_layer():
    """Train a model with a frozen layer under ddp, all of which the optimizer has; return whether
    that is averaged by ddp alone, and how many steps were committed.
    """
    import shoal
    import shoal.torch

    x = torch.randn(32, 3)
    loader = shoal.torch.loader(TensorDataset(x, x.sum(1, keepdim=True)), 8, seed=5)
    layers = torch.nn.Sequential(torch.nn.Linear(3, 3), torch.nn.Linear(3, 1))
    layers[0].requires_grad_(False)
    model = shoal.torch.ddp(layers)
    plain = torch.optim.SGD(model.parameters(), lr=0.1)
    optimizer = shoal.torch.optimizer(plain)
    for x, y in loader:
        optimizer.zero_grad()
        F.mse_loss(model(x), y).backward()
        optimizer.step()
    return [optimizer is plain, shoal.join().committed]


def test_frozen_parameters_of_ddp_have_no_average_of_their_own():
    """An optimizer that has the frozen parameters of the model too is as one without them."""
    assert world(2, _train_with_a_frozen_layer) == [[True, 4]] * 2


def _loop_over_two(same):
    """Loop over two loaders at once, or over one twice."""
    import shoal.torch

    loader, model, _ = _loop(_wrapped)
    other = loader if same else shoal.torch.loader(TensorDataset(torch.zeros(32, 3)), 8, seed=5)
    for (x, _), _ in zip(loader, other):
        model(x).sum().backward()


@pytest.mark.parametrize("same", [True, False])
def test_two_loops_at_once(same):
    """Two loops over loaders at once are refused, with what to do."""
    with pytest.raises(Failed, match="another loop over a loader .* Of two datasets make one"):
        world(1, _loop_over_two, same)


def _evaluate_at_anchor():
    """Train a model that shoal.torch.ddp has, and evaluate it as one with local steps is; return
    whether that has changed the parameters.
    """
    import shoal.torch

    loader, model, plain = _loop(_wrapped)
    optimizer = shoal.torch.optimizer(plain)
    for x, y in loader:
        optimizer.zero_grad()
        F.mse_loss(model(x), y).backward()
        optimizer.step()
    before = [p.tolist() for p in model.parameters()]
    with optimizer.anchor():
        return [optimizer is plain, [p.tolist() for p in model.parameters()] == before]


def test_an_optimizer_that_averages_nothing_has_an_anchor():
    """A script that evaluates within `optimizer.anchor()` does so too where shoal.torch.ddp has all
    parameters.
    """
    assert world(1, _evaluate_at_anchor) == [[True, True]]


def _train_in_a_job(model, how):
    """Train a plain model for an epoch in a job of one, averaged in this way, and leave the job;
    return how many steps were committed.
    """
    import shoal
    import shoal.torch

    x = torch.randn(32, 3)
    with shoal.join() as job:
        loader = shoal.torch.loader(TensorDataset(x, x.sum(1, keepdim=True)), 8, seed=5)
        wrapped = shoal.torch.ddp(model) if how == "ddp" else model
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        if how == "zero":
            optimizer = shoal.torch.zero(model, optimizer)
        elif how != "ddp":
            sync = "local:every=2" if how == "local" else None
            optimizer = shoal.torch.optimizer(optimizer, model, sync=sync)
        for x, y in loader:
            optimizer.zero_grad()
            F.mse_loss(wrapped(x), y).backward()
            optimizer.step()
    return job.committed


@pytest.mark.parametrize("before", ["ddp", "zero", "optimizer", "local"])
@pytest.mark.parametrize("how", ["ddp", "zero", "optimizer", "local"])
def test_a_model_is_trained_again_in_the_next_job(before, how):
    """What a job has averaged that was left nobody averages in the next one, which takes the same
    model in any way.
    """
    model = torch.nn.Linear(3, 1)
    _train_in_a_job(model, before)
    assert _train_in_a_job(model, how) == 4


def test_a_model_without_a_loader_is_no_bar_to_the_next_job():
    """A loader is made in a job after one in which shoal.torch.ddp was called without."""
    import shoal
    import shoal.torch

    try:
        for _ in range(2):
            with shoal.join():
                model = _wrapped(3, 1)
                model(torch.zeros(2, 3)).sum().backward()
                with pytest.raises(RuntimeError, match="ddp was called before"):
                    shoal.torch.loader(TensorDataset(torch.zeros(32, 3)), 8)
        assert _train_in_a_job(model.module, "zero") == 4
    finally:
        torch.distributed.destroy_process_group()


if __name__ == "__main__":
    main(globals())
