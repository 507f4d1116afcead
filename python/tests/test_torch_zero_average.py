"""What shoal.torch.zero averages before a step: what is done to it, and what is left of it.
Functions that tests give to `world` run on each rank of a job, in its own process.
"""

import pytest

torch = pytest.importorskip("torch")
from torch_world import main, world


def _clip_late():
    """Clip what stage 2 has averaged already; return the text of the error, None without one."""
    import shoal
    import shoal.torch

    net = torch.nn.Linear(3, 2)
    loader = shoal.torch.loader(torch.utils.data.TensorDataset(torch.ones(4, 3)), 2)
    optimizer = shoal.torch.zero(net, torch.optim.SGD(net.parameters(), lr=1.0), stage=2)
    for (x,) in loader:
        net(x).sum().backward()
        optimizer.average_gradients()
        try:
            optimizer.clip_grad_norm_(1.0)
        except RuntimeError as err:
            return str(err)


def test_clipping_after_the_average_of_stage_2_is_refused():
    """clip_grad_norm_ after average_gradients() raises RuntimeError, which says what to call
    instead.
    """
    assert "in place of average_gradients()" in world(1, _clip_late)[0]


def _leave_out_a_step(stage):
    """Average the gradients of two parameters without a step, and then take a step in which one of
    them has a gradient; return both.
    """
    import shoal
    import shoal.torch

    net = torch.nn.ParameterList([torch.nn.Parameter(torch.ones(2)) for _ in range(2)])
    loader = shoal.torch.loader(torch.utils.data.TensorDataset(torch.ones(6, 2)), 3, epochs=1)
    inner = torch.optim.SGD(net.parameters(), lr=1.0, weight_decay=0.5)
    optimizer = shoal.torch.zero(net, inner, stage=stage)
    for (x,) in loader:
        optimizer.zero_grad(set_to_none=True)
        used = [net[0]] if loader.step.number else net
        sum((x * p).mean() for p in used).backward()
        optimizer.average_gradients()
        if loader.step.number:
            optimizer.step()
    return [p.tolist() for p in net]


@pytest.mark.parametrize("stage", [1, 2])
def test_a_step_has_no_gradient_of_one_that_was_left_out(stage):
    """Gradients that were averaged and of which no step was made change nothing later, on a
    parameter that has none then.
    """
    assert world(3, _leave_out_a_step, stage) == [[[0.0, 0.0], [1.0, 1.0]]] * 3


def _step_by_a_scaler(average):
    """Have a GradScaler step stage 1, where `average` after the gradients were averaged; return the
    gradient and the parameter after that.
    """
    import shoal
    import shoal.torch

    net = torch.nn.ParameterList([torch.nn.Parameter(torch.ones(256))])
    loader = shoal.torch.loader(torch.utils.data.TensorDataset(torch.ones(3)), 3, epochs=1)
    optimizer = shoal.torch.zero(net, torch.optim.SGD(net.parameters(), lr=1.0))
    scaler = torch.amp.GradScaler("cpu", init_scale=8.0)
    for _ in loader:
        scaler.scale(net[0].sum() * shoal.join().rank).backward()
        if average:
            optimizer.average_gradients()
        scaler.step(optimizer)
    return [net[0].grad.tolist(), net[0].tolist()]


@pytest.mark.skipif(
    not hasattr(torch.amp, "GradScaler"), reason="PyTorch has GradScalers for GPUs only before 2.3"
)
@pytest.mark.parametrize("average", [False, True])
def test_all_averages_are_unscaled(average):
    """After a step by a GradScaler every worker has the averages of all parameters, divided by the
    scale, and not of its own parts alone.
    """
    assert world(3, _step_by_a_scaler, average) == [[[1.0] * 256, [0.0] * 256]] * 3


if __name__ == "__main__":
    main(globals())
