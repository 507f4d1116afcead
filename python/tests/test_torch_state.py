"""What a worker that joins makes ready for the state of PyTorch."""

import resource

import pytest

torch = pytest.importorskip("torch")
import shoal
from shoal._runtime.tree import flatten, unflatten
from shoal.torch.state import (
    OwnedState,
    _zeros_like_each,
    initialize_state,
    load_state,
    without_functions,
)

OPTIMIZERS = {
    "adam": torch.optim.Adam,
    "adamw": torch.optim.AdamW,
    "momentum": lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9),
    "rmsprop": lambda p: torch.optim.RMSprop(p, momentum=0.5),
}


def described(optimizer):
    """The types and shapes of an optimizer's state, by name."""
    return {
        name: (value.shape, value.dtype) if isinstance(value, torch.Tensor) else type(value)
        for state in optimizer.state.values()
        for name, value in state.items()
    }


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_an_optimizer_has_its_state_before_its_first_step(name):
    """initialize_state makes the same kinds of state as a step, and leaves no gradient."""
    frozen, trained = (
        torch.nn.Parameter(torch.ones(2), requires_grad=False),
        torch.nn.Parameter(torch.ones(3, 4)),
    )
    filled, stepped = OPTIMIZERS[name]([frozen, trained]), OPTIMIZERS[name]([trained])
    initialize_state(filled)
    assert trained.grad is None and frozen not in filled.state
    trained.grad = torch.ones_like(trained)
    stepped.step()
    assert described(filled) == described(stepped) != {}


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_what_an_optimizer_makes_before_its_first_step_is_laid_out_as_its_parameters_are(name):
    """The tensors of an optimizer's first state have the strides and types of the parameters, are
    zero, and share no memory.
    """
    plain = torch.nn.Parameter(torch.ones(2, 3, 4, 5))
    double = torch.nn.Parameter(torch.ones(7, dtype=torch.float64))
    channels_last = torch.nn.Parameter(torch.ones(2, 3, 4, 5).to(memory_format=torch.channels_last))
    filled = OPTIMIZERS[name]([plain, channels_last, double])
    initialize_state(filled)
    made = [
        (v, p)
        for p in filled.state
        for v in filled.state[p].values()
        if isinstance(v, torch.Tensor) and v.dim()
    ]
    assert {p for _, p in made} == {plain, channels_last, double}
    assert all((v.stride(), v.dtype) == (p.stride(), p.dtype) and not v.any() for v, p in made)
    assert len({v.data_ptr() for v, _ in made}) == len(made)  # none shares its memory with another


def test_zeros_of_a_type_share_their_memory():
    """Zeros of one type share memory."""
    some = [torch.ones(3), torch.ones(2, 4), torch.ones(2, dtype=torch.float64)]
    zeros = _zeros_like_each(some)
    assert [(z.shape, z.dtype) for z in zeros] == [(t.shape, t.dtype) for t in some] and not any(
        z.any() for z in zeros
    )
    assert zeros[0].data_ptr() == zeros[1].data_ptr() != zeros[2].data_ptr()


def _resident():
    """The number of pages that this process has in memory."""
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1])


def test_zeros_take_no_memory_until_they_are_written_to():
    """Large zeros that are only read have no pages of their own."""
    parameter = torch.ones(5 << 20)
    before = _resident()
    (zeros,) = _zeros_like_each([parameter])
    assert not zeros.max() and zeros.shape == parameter.shape
    assert (_resident() - before) * resource.getpagesize() < zeros.numel() * 4 / 2
    zeros += parameter  # as an optimizer does that writes to its gradients
    assert zeros.min() == 1


def test_an_optimizer_that_cannot_step_on_zeros_leaves_no_gradient():
    """Where an optimizer refuses the step on zero gradients that would make its state, for it needs
    a closure or sparse gradients, that raises nothing, and no gradient stays.
    """
    trained = torch.nn.Parameter(torch.ones(3, 4))
    for optimizer in torch.optim.LBFGS([trained]), torch.optim.SparseAdam([trained]):
        initialize_state(optimizer)
        assert trained.grad is None


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_an_optimizer_takes_a_state_without_a_copy(name):
    """A state that is handed over is the optimizer's own memory then."""
    trained = torch.nn.Parameter(torch.ones(3, 4))
    filled, other = OPTIMIZERS[name]([trained]), OPTIMIZERS[name]([trained])
    initialize_state(filled)
    other.load_state_dict(OwnedState(filled.state_dict()))
    for key, value in filled.state[trained].items():
        taken = other.state[trained][key]
        assert (
            taken.data_ptr() == value.data_ptr()
            if isinstance(value, torch.Tensor)
            else taken == value
        )


class Watched(torch.nn.Linear):
    """A layer that keeps in `loaded` what it was asked to load last, by name."""

    def _load_from_state_dict(self, state_dict, prefix, *rest):
        """Keep the tensors, and load them."""
        self.loaded = dict(state_dict)
        super()._load_from_state_dict(state_dict, prefix, *rest)


def test_a_module_does_not_copy_what_lies_in_its_memory():
    """A tensor that lies in a parameter is loaded without a copy; another one is copied into it."""
    model, there = Watched(3, 2), torch.ones(2)
    weight = torch.frombuffer(memoryview(model.weight.detach().numpy()), dtype=torch.float32).view(
        2, 3
    )
    load_state(model, {"weight": weight, "bias": there})
    assert model.loaded["weight"] is model.weight and model.weight.data_ptr() == weight.data_ptr()
    assert (
        model.loaded["bias"] is there
        and torch.equal(model.bias, there)
        and model.bias.data_ptr() != there.data_ptr()
    )


def test_milestones_are_counted_again_after_a_state_was_sent():
    """MultiStepLR has a Counter in its state, of which a dict arrives; inside SequentialLR it needs
    the Counter when its turn comes.
    """

    def make():
        """An optimizer and its scheduler."""
        opt = torch.optim.SGD([torch.nn.Parameter(torch.ones(1))], lr=1.0)
        rise = torch.optim.lr_scheduler.LinearLR(opt, 0.5, total_iters=2)
        fall = torch.optim.lr_scheduler.MultiStepLR(opt, [2, 3], gamma=0.1)
        return opt, torch.optim.lr_scheduler.SequentialLR(opt, [rise, fall], [3])

    (opt, scheduler), (other_opt, other) = make(), make()
    rates = []
    for step in range(8):
        if step == 2:
            items = []
            states = [without_functions(scheduler.state_dict()), opt.state_dict()]
            sent = flatten("state", states, items)
            state, optimizer_state = unflatten(sent, items)
            load_state(other, state)
            load_state(other_opt, optimizer_state)
        for each, scheduled in ((opt, scheduler), (other_opt, other))[: 1 + (step >= 2)]:
            each.step()
            scheduled.step()
        rates.append((opt.param_groups[0]["lr"], other_opt.param_groups[0]["lr"]))
    assert all(a == b for a, b in rates[2:]) and rates[-1][0] < 0.02, rates


def test_a_view_that_is_conjugated_or_negated_has_its_own_values():
    """Such a tensor of torch has the memory of another, and a mark that says so."""
    z = torch.tensor([[1 + 2j], [3 - 4j]])
    items = []
    plan = flatten("state", [z.conj(), z[:1].conj().imag], items)
    conjugated, negated = unflatten(plan, [item.memory() for item in items])
    assert torch.equal(conjugated, torch.tensor([[1 - 2j], [3 + 4j]]))
    assert negated.tolist() == [[-2]]
    with shoal.join() as job:
        assert job.allgather(z[:1].conj().imag).tolist() == [[-2]]
        x = z[:1].conj().imag
        job.allreduce(torch.tensor([[5.0]]), out=x)
        assert x.tolist() == [[5]] and z[0] == 1 - 5j


def test_the_state_of_another_kind_of_optimizer_is_refused():
    """A checkpoint with the state of Adam is not for SGD, which torch would have train with the
    learning rate of Adam; that of an Adam of another version, with fewer or more options, is.
    """
    from shoal.torch.state import load_state

    parameter = torch.nn.Parameter(torch.zeros(2))
    saved = torch.optim.Adam([parameter], lr=0.5).state_dict()
    other = torch.optim.SGD([parameter], lr=0.1, momentum=0.9)
    with pytest.raises(ValueError, match="betas.* is not for SGD, which has .*momentum"):
        load_state(other, saved)
    assert other.param_groups[0]["lr"] == 0.1
    for change in (lambda group: group.pop("maximize"), lambda group: group.update(new=1)):
        adam = torch.optim.Adam([parameter])
        saved = torch.optim.Adam([parameter], lr=0.5).state_dict()
        change(saved["param_groups"][0])
        load_state(adam, saved)
        assert adam.param_groups[0]["lr"] == 0.5


def test_the_state_of_other_groups_of_parameters_is_refused():
    """A worker that joins after a group was added to an optimizer, and a program that goes on from
    a checkpoint of then, are told what to do.
    """
    one, two = (torch.nn.Parameter(torch.zeros(2)) for _ in range(2))
    trained = torch.optim.SGD([one], lr=0.1)
    trained.add_param_group({"params": [two]})
    new = torch.optim.SGD([one], lr=0.1)
    with pytest.raises(ValueError, match="the SGD here, .*: make all groups .*different number"):
        load_state(new, trained.state_dict())


def test_the_state_of_a_module_with_other_tensors_is_refused():
    """Where a buffer came later, or has grown, the error has what to do beside torch's words."""
    trained, new = torch.nn.BatchNorm1d(2), torch.nn.BatchNorm1d(2)
    trained.running_mean = torch.zeros(3)
    with pytest.raises(ValueError, match="the BatchNorm1d here, .*in __init__.*size mismatch"):
        load_state(new, trained.state_dict())


@pytest.mark.parametrize("wrap", ["ddp", "optimizer"])
def test_what_is_trained_comes_with_the_state(wrap):
    """A layer that was frozen while the others trained, and one that takes gradients again, are so
    in a worker that joins after that; a checkpoint leaves it to the program.
    """
    import shoal.torch

    with shoal.join() as job:
        shoal.torch.loader(torch.utils.data.TensorDataset(torch.zeros(4, 2)), 2)
        model = torch.nn.Sequential(torch.nn.Linear(2, 3), torch.nn.Linear(3, 1))
        if wrap == "ddp":
            shoal.torch.ddp(model, find_unused_parameters=True)
        else:
            shoal.torch.optimizer(torch.optim.SGD(model.parameters(), lr=0.1))
        model[0].requires_grad_(False)
        items = []
        notes = {
            name: job._state._plan_entry(name, entry, items)
            for name, entry in job._state._entries.items()
        }
        model.requires_grad_(True)
        model[1].requires_grad_(False)  # as in a worker that begins
        job._state.restore(notes, [item.memory() for item in items])
        assert [p.requires_grad for p in model.parameters()] == [False, False, True, True]
        model.requires_grad_(True)
        written = [name for part in job._state.plan_checkpoint([]) for name in part]
        assert written and not any("trained" in name for name in written)
