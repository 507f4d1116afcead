"""Who holds what of a sharded optimizer's state; and that sharding changes nothing but the memory,
as long as nobody comes or goes. Functions that tests give to `world` run on each rank of a job, in
its own process.
"""

import copy
import random

import pytest

torch = pytest.importorskip("torch")
from torch_world import main, world

from shoal.torch.zero.state_kinds import state_kinds
from shoal.torch.zero.layout import GRAIN, partition, round_up, slices


def random_case(seed):
    """A random number of elements, and the host of each of some workers, -1 = it holds nothing; at
    least one holds something.
    """
    choice = random.Random(seed)
    hosts = [choice.randrange(-1, 4) for _ in range(choice.randrange(1, 9))]
    return choice.randrange(5000), hosts if max(hosts) >= 0 else [0]


@pytest.mark.parametrize("seed", range(100))
def test_every_element_has_an_owner_and_a_buddy(seed):
    """The shares cover all elements once, and every one has two holders where there are two
    workers.
    """
    total, hosts = random_case(seed)
    dealt, here = partition(total, hosts), [r for r, host in enumerate(hosts) if host >= 0]
    at = 0
    for r in here:
        start, stop = dealt.shares[r]
        assert start == at and start % GRAIN == stop % GRAIN == 0
        assert abs((stop - start) - total / len(here)) <= 2 * GRAIN
        at = stop
        buddy = dealt.buddies[r]
        assert buddy in here and buddy != r if len(here) > 1 else buddy is None
    assert at == round_up(total)
    assert sorted(b for b in dealt.buddies if b is not None) == (here if len(here) > 1 else []), (
        "each is the buddy of one"
    )
    for r in range(len(hosts)):
        assert sorted(dealt.held(r)) == sorted(
            s
            for o, s in enumerate(dealt.shares)
            if r in (o, dealt.buddies[o]) and s[0] < s[1] and r in here
        )


@pytest.mark.parametrize("hosts", [[1, 1, 2, 2], [1, 2, 1, 2], [5, 5, 5, 7, 7, 7, 6, 6, 6], [1, 2]])
def test_a_host_does_not_hold_both_copies(hosts):
    """With as many workers on every host, the two holders of a share are on two hosts."""
    dealt = partition(1 << 16, hosts)
    assert all(hosts[owner] != hosts[buddy] for owner, buddy in enumerate(dealt.buddies))


@pytest.mark.parametrize("seed", range(50))
def test_runs_are_what_of_the_parameters_is_held(seed):
    """Slices are the parts of parameters within the held shares."""
    choice = random.Random(seed)
    places, at = [], 0
    for _ in range(choice.randrange(1, 8)):
        n = choice.choice([1, 3, GRAIN, GRAIN + 1, 700])
        places.append((at, at + n))
        at = round_up(at + n)
    dealt = partition(at, [0] * choice.randrange(1, 6))
    found = []
    for rank in range(len(dealt.shares)):
        found += list(slices(places, dealt.held(rank)))
    copies = 2 if len(dealt.shares) > 1 else 1
    for number, (first, last) in enumerate(places):
        held = sorted(
            x for run in found if run.parameter == number for x in range(run.start, run.stop)
        )
        assert held == sorted(list(range(first, last)) * copies)


OPTIMIZERS = {
    "sgd": lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9, weight_decay=0.01),
    "dampened": lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9, dampening=0.5),
    "adam": lambda p: torch.optim.Adam(p, lr=0.01, amsgrad=True),
    "adamw": lambda p: torch.optim.AdamW(p, lr=0.01),
    "rmsprop": lambda p: torch.optim.RMSprop(p, lr=0.01, centered=True, momentum=0.5),
    "adagrad": lambda p: torch.optim.Adagrad(p, lr=0.01),
}


def test_what_an_optimizer_keeps():
    """The kinds of state of several optimizers; one that works on rows is refused."""
    p = torch.nn.Parameter(torch.zeros(4, 3))
    known = state_kinds(OPTIMIZERS["adam"]([p]), 0, p)
    assert {name: kind.dtype for name, kind in known.items()} == {
        "step": None,
        "exp_avg": torch.float32,
        "exp_avg_sq": torch.float32,
        "max_exp_avg_sq": torch.float32,
    }
    assert float(known["step"].number(7.0)) == 7
    assert state_kinds(torch.optim.SGD([p], lr=1.0), 0, p) == {}
    with pytest.raises(TypeError, match="LBFGS cannot be sharded"):
        state_kinds(torch.optim.LBFGS([p]), 0, p)

    class Rows(torch.optim.Optimizer):
        """An optimizer with a state for each row."""

        def __init__(self, params):
            """No options."""
            super().__init__(params, {})

        def step(self):
            """Make the state of each parameter, two rows."""
            for p in self.param_groups[0]["params"]:
                self.state[p]["rows"] = torch.zeros(2)

    with pytest.raises(TypeError, match="neither a number nor as large"):
        state_kinds(Rows([p]), 0, p)


class Trust(torch.optim.SGD):
    """Scales the step of each parameter by its norm, as LARS does."""

    def step(self):
        """Update the parameters."""
        for group in self.param_groups:
            for p in group["params"]:
                p.sub_(group["lr"] * p.norm() / p.grad.norm() * p.grad)


def test_an_optimizer_that_looks_at_whole_parameters_is_refused():
    """A step with a part would be another one, whatever the learning rate is when it begins."""
    p = torch.nn.Parameter(torch.zeros(4, 3))
    for rate in (0.0, 1e-5, torch.tensor(0.0)):
        with pytest.raises(TypeError, match="Trust cannot be sharded: a step with a part of a par"):
            state_kinds(Trust([p], lr=rate), 0, p)
    loaded = Trust([p], lr=0.1)
    loaded.state[p]["step"] = torch.tensor(7.0)
    with pytest.raises(TypeError, match="Trust cannot be sharded: a step with a part of a par"):
        state_kinds(loaded, 0, p)
    if hasattr(torch.optim, "Adafactor"):
        with pytest.raises(TypeError, match="Adafactor cannot be sharded: a step with a part"):
            state_kinds(torch.optim.Adafactor([p]), 0, p)


class InPlace(torch.optim.SGD):
    """Adds its decay to the gradients themselves, as Adam with foreach=True does in PyTorch 1."""

    def step(self):
        """Update the parameters."""
        for group in self.param_groups:
            for p in group["params"]:
                p.sub_(group["lr"] * p.grad.add_(p, alpha=0.5))


def test_an_optimizer_that_changes_gradients_is_taken():
    """A step with a part of a parameter is the same one, though a step changes gradients."""
    p = torch.nn.Parameter(torch.ones(4, 3))
    assert state_kinds(InPlace([p], lr=0.1), 0, p) == {}


@pytest.mark.parametrize("name", OPTIMIZERS)
@pytest.mark.parametrize("shape", [(4, 3), (1,), ()])
def test_the_state_of_an_optimizer_that_has_made_a_step(name, shape):
    """It has the kinds that it had before, also for a parameter without dimensions, and stays as it
    is.
    """
    p = torch.nn.Parameter(torch.ones(shape))
    optimizer = OPTIMIZERS[name]([p])
    p.grad = torch.ones(shape)
    optimizer.step()
    before = copy.deepcopy(optimizer.state_dict())
    assert [k.dtype is None for k in state_kinds(optimizer, 0, p).values()] == [
        k == "step" for k in optimizer.state[p] if optimizer.state[p][k] is not None
    ]
    assert str(optimizer.state_dict()) == str(before)


@pytest.mark.parametrize("name", OPTIMIZERS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_part_is_updated_as_the_whole_is(name, dtype):
    """An update of a part of a parameter gives the same bits as one of all of it."""
    torch.set_num_threads(1)
    generator = torch.Generator().manual_seed(1)
    whole = torch.randn(1003, generator=generator, dtype=dtype)
    cuts = [0, 3 * GRAIN, 7 * GRAIN, 1003]
    copied = whole.clone()
    parts = [copied[start:stop] for start, stop in zip(cuts, cuts[1:])]
    one, other = OPTIMIZERS[name]([whole]), OPTIMIZERS[name](parts)
    for _ in range(5):
        whole.grad = torch.randn(1003, generator=generator, dtype=dtype)
        for part, start, stop in zip(parts, cuts, cuts[1:]):
            part.grad = whole.grad[start:stop]
        one.step()
        other.step()
    assert torch.equal(whole, copied)


def _train(way, name, clip):
    """Train on this rank for 12 steps; `way` is a stage of zero, or "ddp", `name` one of
    OPTIMIZERS, `clip` how gradients are clipped, "" for not. Return the losses and norms, a hash of
    the model, the bytes that zero holds of each kind, and the bytes of the parameters.
    """
    import hashlib

    import shoal
    import shoal.torch

    torch.set_num_threads(1)
    torch.manual_seed(shoal.join().rank)
    net = torch.nn.Sequential(
        torch.nn.Linear(20, 70),
        torch.nn.BatchNorm1d(70),
        torch.nn.Tanh(),
        torch.nn.Linear(70, 70),
        torch.nn.Tanh(),
        torch.nn.Linear(70, 4),
    )
    net.spare = torch.nn.Parameter(torch.ones(5))  # has no gradient
    generator = torch.Generator().manual_seed(1)
    x = torch.randn(320, 20, generator=generator)
    loader = shoal.torch.loader(
        torch.utils.data.TensorDataset(x, x[:, :4].argmax(1)), 30, seed=3, steps=12
    )
    inner = OPTIMIZERS[name](
        [
            {"params": [*net.parameters()][:3], "weight_decay": 0.1},
            {"params": [*net.parameters()][3:]},
        ]
    )
    scheduler = torch.optim.lr_scheduler.StepLR(inner, 4, 0.5)
    if way == "ddp":
        model, optimizer = shoal.torch.ddp(net, find_unused_parameters=True), inner
    else:
        model, optimizer = net, shoal.torch.zero(net, inner, scheduler, stage=way)
    losses = []
    for a, b in loader:
        optimizer.zero_grad()
        loss = torch.nn.functional.cross_entropy(model(a), b)
        loss.backward()
        if clip == "after the average":
            if way == 1:
                optimizer.average_gradients()
            torch.nn.utils.clip_grad_norm_([*net.parameters()], 0.5)
        elif clip:
            norm = (
                torch.nn.utils.clip_grad_norm_([*net.parameters()], 0.5)
                if way == "ddp"
                else optimizer.clip_grad_norm_(0.5)
            )
            losses.append(norm.item())
        optimizer.step()
        scheduler.step()
        losses.append(loss.item())
    assert net.spare.grad is None and torch.equal(net.spare, torch.ones(5))
    hashed = hashlib.sha256(
        b"".join(t.numpy().tobytes() for t in net.state_dict().values())
    ).hexdigest()
    return [
        losses,
        hashed,
        {} if way == "ddp" else optimizer.memory(),
        sum(p.numel() * p.element_size() for p in net.parameters()),
    ]


@pytest.mark.parametrize(
    "stage, workers, name, clip",
    [
        (1, 3, "sgd", "after the average"),
        (1, 3, "sgd", "by zero"),
        (2, 4, "adam", ""),
        (2, 4, "sgd", "by zero"),
    ],
)
def test_the_same_bits_as_ddp_in_less_memory(stage, workers, name, clip):
    """Training with sharded state gives the parameters of ddp, and each worker holds less."""
    sharded, whole = (
        world(workers, _train, stage, name, clip),
        world(workers, _train, "ddp", name, clip),
    )
    assert [r[:2] for r in sharded] == [r[:2] for r in whole]
    tensors = {"sgd": 1, "adam": 3}[name]
    for _, _, memory, parameters in sharded:
        # In the arena each parameter begins at a multiple of GRAIN.
        slack = 10 * GRAIN * 4
        assert parameters <= memory["parameters"] <= parameters + slack
        assert memory["state"] <= parameters * tensors * 2 / workers + tensors * slack
        assert (
            memory["gradients"] == memory["parameters"]
            if stage == 1 or clip
            else memory["gradients"] <= parameters * 2 / workers + slack
        )
    assert (
        sum(memory["state"] for _, _, memory, _ in sharded) >= (sharded[0][3] - 20) * tensors * 2
    ), "two workers have each part"


def _use_wrongly():
    """Use the optimizer on this rank in every wrong way; return the text of each error."""
    import shoal
    import shoal.torch

    net = torch.nn.Linear(3, 2)
    said = []

    def refuse(function, *args, **options):
        """Call a function that should raise an error, and keep its text in `said`."""
        try:
            function(*args, **options)
        except Exception as err:
            said.append(f"{type(err).__name__}: {err}")

    refuse(shoal.torch.zero, net, torch.optim.SGD(net.parameters(), lr=1.0))
    data = torch.utils.data.TensorDataset(torch.ones(4, 3))
    shoal.torch.loader(data, 2, averages=2)
    refuse(shoal.torch.zero, net, torch.optim.SGD(net.parameters(), lr=1.0))
    shoal.torch.loader(data, 2)
    refuse(shoal.torch.zero, net, torch.optim.SGD(net.parameters(), lr=1.0), stage=3)
    optimizer = shoal.torch.zero(net, torch.optim.SGD(net.parameters(), lr=1.0))
    for call in (
        optimizer.step,
        optimizer.state_dict,
        lambda: optimizer.step(lambda: 0),
        lambda: optimizer.load_state_dict({}),
        lambda: optimizer.add_param_group({}),
        lambda: copy.deepcopy(optimizer),
    ):
        refuse(call)
    refuse(shoal.torch.zero, torch.nn.Linear(3, 2, device="meta"), optimizer.inner)
    refuse(shoal.torch.zero, torch.nn.Linear(3, 2), optimizer.inner)
    refuse(shoal.torch.zero, net, torch.optim.SGD(net.parameters(), lr=1.0))
    wrapped = shoal.torch.ddp(torch.nn.Linear(3, 2))
    refuse(shoal.torch.zero, wrapped, torch.optim.SGD(wrapped.parameters(), lr=1.0))
    thawed = torch.nn.Linear(3, 2)
    thawed.bias.requires_grad_(False)
    optimizer = shoal.torch.zero(thawed, torch.optim.SGD(thawed.parameters(), lr=1.0))
    thawed.bias.requires_grad_(True)
    refuse(optimizer.step)
    return said


# What happens in the rounds of `_step_with_scalers`: what is called before the scaler's step, and
# whether a gradient of one worker overflows.
ROUNDS = [
    ("nothing", False),
    ("nothing", True),
    ("clip", False),
    ("clip", True),
    ("average", False),
    ("average", True),
]


def _step_with_scalers():
    """Step optimizers of three kinds on this rank in turn with GradScalers, where an element of a
    gradient overflows on rank 1; return the scale of each after each of its steps, and the texts
    of the errors of refused steps.
    """
    import shoal
    import shoal.torch
    from shoal.torch import registry

    job, size, turns = shoal.join(), 3, (len(ROUNDS) + 1) * 3
    loader = shoal.torch.loader(
        torch.utils.data.TensorDataset(torch.ones(2 * size)), size, steps=turns
    )
    nets = [torch.nn.Linear(100, 100, bias=False) for _ in range(3)]
    inner = [torch.optim.SGD(net.parameters(), lr=1.0) for net in nets]
    optimizers = [
        shoal.torch.zero(nets[0], inner[0]),
        shoal.torch.zero(nets[1], inner[1], stage=2),
        shoal.torch.optimizer(inner[2]),
    ]
    scalers = [torch.amp.GradScaler("cpu", init_scale=8.0, growth_interval=9) for _ in nets]
    scales, said = [[], [], []], []
    for _ in loader:
        turn, kind = divmod(loader.step.number, 3)
        optimizer, scaler, weight = optimizers[kind], scalers[kind], nets[kind].weight
        optimizer.zero_grad()
        before = weight.detach().clone()
        weight.grad = scaler.scale(torch.full_like(weight, job.rank + 1.0))
        if turn == len(ROUNDS):
            made = registry._created[:]
            registry._created[:] = made if kind else []  # as if the scaler was not known
            optimizer.average_gradients()
            registry._created[:] = made
            if kind == 1:
                scaler.unscale_(optimizer)  # too late
            said += _try_step(scaler, optimizer) if kind < 2 else []
            continue
        called, overflows = ROUNDS[turn]
        if overflows and job.rank == 1:
            weight.grad[3, 5] = float("inf")
        if called == "clip":
            scaler.unscale_(optimizer)
            if kind == 2:
                optimizer.average_gradients()
                torch.nn.utils.clip_grad_norm_([weight], 50.0)
            else:
                optimizer.clip_grad_norm_(50.0)
        elif called == "average":
            optimizer.average_gradients()
        scaler.step(optimizer)
        scaler.update()
        scales[kind].append(scaler.get_scale())
        step = 0.0 if overflows else 0.5 if called == "clip" else 2.0
        torch.testing.assert_close(weight.detach(), before - step, rtol=0, atol=1e-5)
    return [scales, said]


def _try_step(scaler, optimizer):
    """Step an optimizer by a scaler; return the text of the error, or "nothing", in a list."""
    try:
        scaler.step(optimizer)
    except RuntimeError as err:
        return [str(err)]
    return ["nothing"]


@pytest.mark.skipif(
    not hasattr(torch.amp, "GradScaler"), reason="PyTorch has GradScalers for GPUs only before 2.3"
)
def test_a_step_that_overflows_on_one_worker_is_skipped_by_all():
    """A step that overflows on one worker is skipped by all, with shoal.torch.zero and with
    shoal.torch.optimizer. The scale follows the same sequence on all workers.
    """
    ranks = world(3, _step_with_scalers)
    assert ranks[0] == ranks[1] == ranks[2]
    scales, said = ranks[0]
    assert scales == [[8.0, 4.0, 4.0, 2.0, 2.0, 1.0]] * 3
    assert "make it after `import shoal.torch`" in said[0] and "before the average" in said[1]
    assert len(said) == 2


def test_what_is_between_gradients_is_zero(monkeypatch):
    """Memory for gradients has nothing of before between two of them, which would be averaged."""
    from shoal.torch.zero import flat

    monkeypatch.setattr(flat, "empty", lambda n, dtype: torch.full((n,), 7.0, dtype=dtype))
    parameters = [torch.ones(3), torch.ones(GRAIN), torch.ones(2, dtype=torch.float64)]
    made = flat.FlatParameters(parameters)
    found = made.allocate()
    for i in range(3):
        made.elements_of(i, found).zero_()
    assert sorted(len(m) for m in found) == [GRAIN, 2 * GRAIN]
    assert not any(m.any() for m in found)


def test_what_cannot_be_is_refused():
    """Every wrong use raises an error that says what to do."""
    wants = [
        "make shoal.torch.loader first",
        "make the loader without averages",
        "stage=3",
        "outside of the loop",
        "job.checkpoint",
        "closure",
        "load the state",
        "add the group",
        "job.checkpoint writes it",
        "a parameter on meta",
        "a parameter of shape [2, 3] that is not in the model, so no other worker would get it",
        "averaged already, by shoal.torch.ddp or another optimizer of shoal: shoal.torch.zero aver",
        "averaged already, by shoal.torch.ddp or another optimizer of shoal: shoal.torch.zero aver",
        "a parameter is trained that was frozen",
    ]
    (said,) = world(1, _use_wrongly)
    assert len(said) == len(wants)
    for text, want in zip(said, wants):
        assert want in text


if __name__ == "__main__":
    main(globals())
