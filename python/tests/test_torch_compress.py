"""Gradients in fewer bytes: what is given adds up, nothing is lost that a worker has, and all
workers get the same.

In most tests the buckets of all workers are in the test's process, and `_step` does the work of the
agent. Functions that tests give to `world` run on each rank of a job, in its own process.
"""

import math
import random
import sys

import pytest

torch = pytest.importorskip("torch")
from torch import nn
from torch.nn import functional as F
from torch_world import main, world

SEED = 20261122
LOSSY = ["int8", "topk", "power"]


def _compression(name):
    """The value of `compress` that a name in these tests stands for; other values as they are."""
    import shoal.torch

    return {"topk": shoal.torch.TopK(0.05), "power": shoal.torch.PowerSGD(rank=2)}.get(name, name)


def _parameters():
    """Parameters of several shapes, for one bucket."""
    return [nn.Parameter(torch.zeros(shape)) for shape in ((40, 30), (40,), (7, 5, 6), ())]


def _make_buckets(name, size):
    """The buckets of `size` workers for `_parameters`, with this compression, all in this process.
    """
    from shoal.torch.compress import bucket_maker

    return [bucket_maker(_compression(name))(_parameters()) for _ in range(size)]


def _step(team, number, gradients, shares, lost=None, fresh=False):
    """Make the step of this number with the buckets `team` as the workers would, with the agent's
    work done here; return the means, which must be the same on all, and the bytes that a worker
    sends. `gradients` has a list for each worker, `shares` its share of the mean. The worker of
    rank `lost`, None = none, negotiates, and sends nothing. With `fresh` the members are others
    than before.
    """
    from shoal.torch.bucket import StepInfo

    for rank, bucket in enumerate(team):
        bucket.begin_step(StepInfo(rank, len(team), number, shares[rank], fresh or number == 0))
        bucket.pack(gradients[rank])
    nbytes = _reduce([bucket.negotiation_calls() for bucket in team])
    members = [bucket for rank, bucket in enumerate(team) if rank != lost]
    nbytes += _reduce([bucket.payload_calls() for bucket in members])
    means = [bucket.unpack() for bucket in members]
    for other in means[1:]:
        for one, two in zip(means[0], other):
            assert (
                one is two is None or one.equal(two) or one.isnan().any() and two.isnan().any()
            ), "the workers differ"
    return means[0], nbytes


def _reduce(asked):
    """Do what the agent does with the calls `asked` of all workers, a list for each: put results
    into their tensors, in place; return how many bytes a worker sends.
    """
    nbytes = 0
    for parts in zip(*asked):
        tensors = [part.tensor for part in parts]
        nbytes += tensors[0].numel() * tensors[0].element_size()
        if parts[0].root is not None:
            total = tensors[parts[0].root].clone()
        else:
            # On one host 16-bit types add up in f32.
            total = sum(
                t.float() if t.dtype in (torch.float16, torch.bfloat16) else t for t in tensors
            )
            total = total / len(tensors) if parts[0].op == "mean" else total
        for tensor in tensors:
            tensor.copy_(total)
    return nbytes


def _gradients(generator, size, dtype=torch.float32):
    """Random gradients for `_parameters`, a list for each of so many workers."""
    return [
        [torch.randn(p.shape, generator=generator).to(dtype) for p in _parameters()]
        for _ in range(size)
    ]


def _flat(tensors):
    """All elements of some tensors as one vector of float64."""
    return torch.cat([t.reshape(-1).double() for t in tensors])


@pytest.mark.parametrize(
    "name, factor", [("bf16", 2), ("fp16", 2), ("int8", 3.8), ("topk", 10), ("power", 3.5)]
)
def test_bytes_fall_by_the_factor(name, factor):
    """A compression sends that many times fewer bytes."""
    gradients = _gradients(torch.Generator().manual_seed(SEED), 2)
    _, plain = _step(_make_buckets(None, 2), 0, gradients, [0.5, 0.5])
    _, small = _step(_make_buckets(name, 2), 0, gradients, [0.5, 0.5])
    print(name, plain / small)
    assert plain / small >= 0.95 * factor  # of a small model, whose marks count


@pytest.mark.parametrize("name", ["bf16", "fp16"])
def test_halves_are_means_that_were_rounded(name):
    """16-bit gradients give the mean up to their rounding."""
    gradients = _gradients(torch.Generator().manual_seed(SEED), 3)
    means, _ = _step(_make_buckets(name, 3), 0, gradients, [1 / 3] * 3)
    want = sum(_flat(g) for g in gradients) / 3
    torch.testing.assert_close(_flat(means), want, rtol=2**-7, atol=2**-7)


@pytest.mark.parametrize("name", LOSSY)
@pytest.mark.parametrize("size", [1, 2, 5])
def test_what_is_not_given_is_remembered(name, size):
    """Over any number of steps, what all got and what all still have is what all had."""
    generator = torch.Generator().manual_seed(SEED)
    team = _make_buckets(name, size)
    given = had = 0
    for number in range(12):
        weights = torch.rand(size, generator=generator)
        shares = (weights / weights.sum()).tolist()
        # the end of an epoch: a worker is without samples, and its gradient is of no interest
        if number % 4 == 3 and size > 1:
            shares = [0.0, *(s / (1 - shares[0]) for s in shares[1:])]
        gradients = _gradients(generator, size)
        if not shares[0]:
            gradients[0][0].fill_(math.nan)
        means, _ = _step(team, number, gradients, shares)
        given = given + _flat(means)
        had = had + sum(s * _flat(g) for s, g in zip(shares, gradients) if s)
        left = sum(_flat(bucket._own) for bucket in team)
        torch.testing.assert_close(given + left, had, rtol=1e-4, atol=1e-4)
    assert left.abs().max() > 0, "nothing was compressed"


@pytest.mark.parametrize("name", LOSSY)
def test_a_worker_lost_between_asking_and_giving_is_no_part_of_the_mean(name):
    """A worker that is lost between negotiation and payload does not count."""
    generator = torch.Generator().manual_seed(SEED)
    team = _make_buckets(name, 3)
    for lost in range(3):
        whole, gradients = _make_buckets(name, 3), _gradients(generator, 3)
        means, _ = _step(whole, lost, gradients, [0.5, 0.25, 0.25], lost=lost, fresh=True)
        rest = [(s, b) for r, (s, b) in enumerate(zip([0.5, 0.25, 0.25], whole)) if r != lost]
        weight = sum(s for s, _ in rest)
        want = sum(
            s * _flat(g) for r, (s, g) in enumerate(zip([0.5, 0.25, 0.25], gradients)) if r != lost
        )
        left = sum(_flat(bucket._own) for _, bucket in rest)
        torch.testing.assert_close(_flat(means) * weight + left, want, rtol=1e-4, atol=1e-4)
    del team


@pytest.mark.parametrize("name", LOSSY)
def test_what_is_not_finite_reaches_all_and_is_not_remembered(name):
    """An infinity makes the mean NaN on all workers in this step, and in no later one."""
    generator = torch.Generator().manual_seed(SEED)
    team, gradients = _make_buckets(name, 2), _gradients(generator, 2)
    gradients[1][0][3, 3] = math.inf
    means, _ = _step(team, 0, gradients, [0.5, 0.5])
    assert all(m.isnan().any() for m in means)
    for number in range(1, 4):
        means, _ = _step(team, number, _gradients(generator, 2), [0.5, 0.5])
        assert all(m.isfinite().all() for m in means)


@pytest.mark.parametrize("factor", [1e36, 1e37])
def test_power_goes_on_after_products_that_overflow(factor):
    """Gradients so large that the factors of their matrices overflow spoil the mean of that step,
    and of no later one, on workers that have the same means.
    """
    generator = torch.Generator().manual_seed(SEED)
    team = _make_buckets("power", 2)
    for number in range(4):
        gradients = _gradients(generator, 2)
        if number == 1:
            gradients = [[factor * g.abs() for g in of_worker] for of_worker in gradients]
        means, _ = _step(team, number, gradients, [0.5, 0.5])
        finite = all(m.isfinite().all() for m in means)
        assert finite == (number != 1), f"step {number}"


@pytest.mark.parametrize("name", LOSSY)
@pytest.mark.parametrize("factor", [1e20, 1e30])
def test_gradients_that_are_huge_in_a_step_spoil_no_mean(name, factor):
    """The means are finite in that step and in later ones, though products of such gradients are
    not.
    """
    generator = torch.Generator().manual_seed(SEED)
    team = _make_buckets(name, 2)
    for number in range(5):
        gradients = _gradients(generator, 2)
        if number == 1:
            gradients = [[factor * g for g in of_worker] for of_worker in gradients]
        means, _ = _step(team, number, gradients, [0.5, 0.5])
        assert all(m.isfinite().all() for m in means)


@pytest.mark.parametrize("name", LOSSY)
def test_a_bucket_of_no_elements(name):
    """It has means without elements: a model may have a parameter that has none."""
    from shoal.torch.compress import bucket_maker

    team = [bucket_maker(_compression(name))([nn.Parameter(torch.empty(0))]) for _ in range(2)]
    means, _ = _step(team, 0, [[torch.empty(0)]] * 2, [0.5, 0.5])
    assert [len(mean) for mean in means] == [0]


def test_missing_gradients_are_none_where_nobody_has_one():
    """A parameter without a gradient on any worker gets None."""
    for name in LOSSY:
        gradients = _gradients(torch.Generator().manual_seed(SEED), 2)
        gradients[0][1] = gradients[1][1] = gradients[0][2] = None
        means, _ = _step(_make_buckets(name, 2), 0, gradients, [0.5, 0.5])
        assert [m is None for m in means] == [False, True, False, False]


def test_what_is_left_is_given_also_where_nobody_has_a_gradient():
    """What earlier steps have left is sent in a step without gradients."""
    team = _make_buckets("int8", 2)
    one = [
        [
            torch.full((40, 30), 0.4),
            torch.tensor([0.6, *[100.0] * 39]),
            torch.zeros(7, 5, 6),
            torch.zeros(()),
        ]
    ] * 2
    _step(team, 0, one, [0.5, 0.5])
    assert team[0]._own[0].any()
    means, _ = _step(team, 1, [[None] * 4] * 2, [0.5, 0.5])
    assert means[0] is not None and means[3] is None


@pytest.mark.parametrize("name", LOSSY)
def test_the_agent_gets_a_sample_of_the_gradients_themselves(name, monkeypatch):
    """In some steps a part of the gradients goes as it is, by which the agent measures how noisy
    they are: elements at equal distances, and zeros for gradients that a worker lacks.
    """
    from shoal._runtime.protocol import SAMPLE
    from shoal.torch import sample
    from shoal.torch.bucket import StepInfo

    monkeypatch.setattr(sample, "_MOST", 100)
    (bucket,) = _make_buckets(name, 1)
    gradients = _gradients(torch.Generator().manual_seed(SEED), 1)[0]
    whole, taken = _flat(gradients), []
    for number in range(200):
        chosen = sample.sample_of_step(number, [bucket])
        bucket.begin_step(StepInfo(0, 2, number, 0.25, False, chosen))
        bucket.pack([None, *gradients[1:]])
        bucket.negotiation_calls()
        samples = [call for call in bucket.payload_calls() if call.tag == SAMPLE]
        assert len(samples) == (chosen is not None)
        for call in samples:
            want = torch.cat([torch.zeros(gradients[0].numel()), whole[gradients[0].numel() :]])
            assert call.op == "mean" and call.tensor.equal(want[chosen].float())
            taken.append(chosen.start)
    assert 15 <= len(taken) <= 40 and len(set(taken)) > 5


def test_bytes_never_wrap():
    """Whatever the workers have, the sum of what they round to fits into a byte; else the mean
    would have the other sign.
    """
    from shoal.torch.compress.int8 import Int8

    seed = random.randrange(1 << 32)
    print("seed", seed)
    generator = torch.Generator().manual_seed(seed)
    for size in (2, 3, 7, 64):
        for spread in (1e-20, 1, 1e20):
            team = [Int8([nn.Parameter(torch.zeros(1024))]) for _ in range(size)]
            base = spread * torch.randn(1024, generator=generator)
            for gradient in (base, base.sign() * spread):  # all agree: the largest sums that can be
                for bucket in team:
                    bucket.memory.zero_()
                means, _ = _step(team, 0, [[gradient]] * size, [1 / size] * size)
                # every worker rounds by half a step
                most = gradient.abs().max().item() * size / 2 / (127 - size / 2)
                torch.testing.assert_close(means[0], gradient, rtol=0, atol=1.01 * most)


def test_power_is_exact_for_a_matrix_of_that_rank():
    """PowerSGD gives a matrix of low rank exactly."""
    from shoal.torch import PowerSGD

    generator = torch.Generator().manual_seed(SEED)
    matrix = torch.randn(20, 2, generator=generator) @ torch.randn(2, 30, generator=generator)
    team = [PowerSGD(2).bucket([nn.Parameter(torch.zeros(20, 30))]) for _ in range(2)]
    means, _ = _step(team, 0, [[matrix], [3 * matrix]], [0.5, 0.5])
    torch.testing.assert_close(means[0], 2 * matrix, rtol=1e-4, atol=1e-4)
    # and a gradient of zeros is no end of it
    _step(team, 1, [[torch.zeros(20, 30)]] * 2, [0.5, 0.5])
    _step(team, 2, [[torch.zeros(20, 30)]] * 2, [0.5, 0.5])
    means, _ = _step(team, 3, [[matrix]] * 2, [0.5, 0.5])
    assert (means[0] - matrix).norm() < 0.9 * matrix.norm()


def test_top_k_gives_the_largest_of_who_chooses():
    """The elements of a step are the largest of the worker whose turn it is."""
    from shoal.torch import TopK

    team = [TopK(0.2).bucket([nn.Parameter(torch.zeros(10))]) for _ in range(2)]
    one, two = torch.arange(10.0), -torch.arange(10.0).flip(0)
    means, _ = _step(team, 0, [[one], [two]], [0.5, 0.5])
    assert means[0].tolist() == [0] * 8 + [3.5, 4.5]  # (8 - 1) / 2, (9 - 0) / 2
    means, _ = _step(team, 1, [[one], [two]], [0.5, 0.5])
    assert means[0].nonzero().flatten().tolist() == [0, 1]


@pytest.mark.parametrize("wrong", ["int4", 8, True])
def test_what_is_no_compression_is_refused(wrong):
    """Other values of `compress` raise ValueError, which lists those that there are."""
    from shoal.torch.compress import bucket_maker

    for value in (wrong, type(_compression("topk"))):
        with pytest.raises(ValueError, match="use one of 'bf16'"):
            bucket_maker(value)


def test_parameters_of_compressions():
    """Densities and ranks that cannot be are refused."""
    import shoal.torch

    for wrong in (0, 1.5, -1):
        with pytest.raises(ValueError):
            shoal.torch.TopK(wrong)
    with pytest.raises(ValueError):
        shoal.torch.PowerSGD(0)


# Between processes, in a job whose workers stay.


def _train_with_each(wrap):
    """Train on this rank with each compression, by "ddp" or "optimizer"; return what `_train`
    returns, by compression.
    """
    import shoal
    import shoal.torch

    torch.set_num_threads(1)
    shoal.torch.elastic._LEAST_BYTES = 3000  # several buckets
    return {
        str(name): _train(shoal.join(), wrap, _compression(name))
        for name in [None, "bf16", "fp16", *LOSSY]
    }


def _train(job, wrap, compress):
    """Train a small model for 120 steps; return the first loss over the whole batch, the mean of
    the last 20, and the sum of each parameter.
    """
    import shoal.torch

    torch.manual_seed(SEED)
    model = nn.Sequential(
        nn.Linear(12, 32), nn.Tanh(), nn.Linear(32, 32), nn.Tanh(), nn.Linear(32, 5)
    )
    if wrap == "ddp":
        model = shoal.torch.ddp(model, compress=compress)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    else:
        optimizer = shoal.torch.optimizer(
            torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9), compress=compress
        )
    generator, losses = torch.Generator().manual_seed(SEED), []
    for _ in range(120):
        x = torch.randn(32, 12, generator=generator)
        y = (x[:, :5] + x[:, 5:10]).argmax(1)
        own = slice(job.rank * 32 // job.size, (job.rank + 1) * 32 // job.size)
        optimizer.zero_grad()
        F.cross_entropy(model(x[own]), y[own]).backward()
        optimizer.step()
        losses.append(F.cross_entropy(model(x), y).item())
    return [
        losses[0],
        sum(losses[-20:]) / 20,
        [p.detach().double().sum().item() for p in model.parameters()],
    ]


@pytest.mark.parametrize("wrap", ["ddp", "optimizer"])
def test_workers_learn_with_fewer_bytes(wrap):
    """Every compression learns, with the same parameters on all workers."""
    ranks = world(2, _train_with_each, wrap)
    for name, (first, last, _) in ranks[0].items():
        assert ranks[1][name] == ranks[0][name], f"{name}: the workers differ"
        print(f"{wrap}, {name}: loss {first:.4f} falls to {last:.4f}")
        if name in ("bf16", "fp16", "int8"):
            assert last < 1.05 * ranks[0]["None"][1], name
        assert last < 0.5 * first, f"{name}: nothing was learned"


def _train_gpt_with_each(steps):
    """Train the GPT of the examples on this rank with each compression; return what `_train_gpt`
    returns, by compression.
    """
    import shoal

    torch.set_num_threads(1)
    return {
        str(name): _train_gpt(shoal.join(), _compression(name), steps)
        for name in [None, "bf16", "fp16", *LOSSY]
    }


def _train_gpt(job, compress, steps):
    """Train the GPT of the examples for so many steps on this repository's own prose; return the
    first loss of this rank, the mean of the last 20, and the sum of each parameter.
    """
    import shoal.torch
    from torch_world import ROOT

    sys.path.insert(0, str(ROOT / "examples" / "gpt"))
    from model import GPT

    text = torch.tensor(list((ROOT / "ARCHITECTURE.md").read_bytes().replace(b"\n", b" "))).clamp(
        max=127
    )
    torch.manual_seed(SEED)
    model = GPT(128, width=32)
    ddp = shoal.torch.ddp(model, compress=compress)
    optimizer = torch.optim.AdamW(ddp.parameters(), lr=3e-3)
    generator, losses = torch.Generator().manual_seed(SEED), []
    for _ in range(steps):
        starts = torch.randint(len(text) - 33, (16,), generator=generator)
        windows = torch.stack([text[start : start + 33] for start in starts])
        own = windows[job.rank * 16 // job.size : (job.rank + 1) * 16 // job.size]
        optimizer.zero_grad()
        loss = F.cross_entropy(ddp(own[:, :-1]).flatten(0, 1), own[:, 1:].flatten())
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return [
        losses[0],
        sum(losses[-20:]) / 20,
        [p.detach().double().sum().item() for p in model.parameters()],
    ]


def test_the_gpt_of_the_examples_learns_with_fewer_bytes():
    """With each compression the loss falls nearly as far as without, and both workers have the same
    parameters.
    """
    ranks = world(2, _train_gpt_with_each, 100)
    plain = ranks[0]["None"][1]
    for name, (first, last, parameters) in ranks[0].items():
        assert ranks[1][name][2] == parameters, f"{name}: the workers differ"
        print(f"{name}: loss {first:.4f} falls to {last:.4f}")
        assert last < (1.02 if name in ("None", "bf16", "fp16", "int8") else 1.15) * plain, name


if __name__ == "__main__":
    main(globals())
