"""Steps that are not one average of all samples drawn evenly: samples that are left out, several
averages, weights of samples, and none to average with. Functions that tests give to `world` run on
each rank of a job, in its own process.
"""

import collections
import math
import subprocess

import pytest

torch = pytest.importorskip("torch")
from torch.nn import functional as F
from torch.utils.data import TensorDataset
from torch_world import SHOAL, main, world


def _train_with_skips(compress):
    """Train on this rank with samples that are not finite, which it leaves out; return for each
    step the parameters after it, how many samples of this worker counted, and whether nobody's did;
    and the number of committed steps.
    """
    import shoal
    import shoal.torch

    x = torch.arange(32, dtype=torch.float32).reshape(16, 2) / 32
    x[4:8] = x[14:] = math.nan  # of two workers both have some in step 1, and rank 1 in step 3
    loader = shoal.torch.loader(TensorDataset(x, x.sum(1, keepdim=True)), 4, shuffle=False)
    torch.manual_seed(1)
    model = shoal.torch.ddp(torch.nn.Linear(2, 1), compress=compress)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.1)
    found = []
    for x, y in loader:
        loss = F.mse_loss(model(x), y)
        left_out = loader.step.skip(not torch.isfinite(loss))
        if not left_out:
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        found.append([[p.tolist() for p in model.parameters()], loader.step.weight, left_out])
    return [found, shoal.join().committed]


@pytest.mark.parametrize("compress", [None, "bf16"])
def test_samples_that_are_left_out(compress):
    """The average is over the samples that are not left out, and where there are none the step
    changes nothing.
    """
    (one, steps), (other, _) = world(2, _train_with_skips, compress)
    assert steps == 4 and [f[1] for f in one] == [2, 0, 2, 2], one
    assert [f[1] for f in other] == [2, 0, 2, 0], other
    assert [f[2] for f in one] == [f[2] for f in other] == [False, True, False, False]
    assert [f[0] for f in one] == [f[0] for f in other], "the workers differ"
    assert one[0][0] == one[1][0] != one[2][0] != one[3][0], one


def _average_with_a_skip():
    """Leave rank 1's samples out of the only step; return the gradients of this rank, and what they
    are of the samples of rank 0 alone.
    """
    import shoal
    import shoal.torch

    job = shoal.join()
    x = torch.randn(5, 3, generator=torch.Generator().manual_seed(1))
    loader = shoal.torch.loader(TensorDataset(x), 5, shuffle=False)
    torch.manual_seed(1)
    model = shoal.torch.ddp(torch.nn.Linear(3, 1))
    for (mine,) in loader:
        if job.rank == 1:
            mine = mine * math.nan
        assert not loader.step.skip(job.rank == 1)
        model(mine).square().mean().backward()
    kept = x[:3] if job.size == 2 else x
    expected = torch.autograd.grad(model.module(kept).square().mean(), model.module.parameters())
    return [[p.grad.tolist() for p in model.parameters()], [g.tolist() for g in expected]]


def test_the_average_is_over_the_others():
    """Samples that are left out do not make the average smaller, nor not finite."""
    for got, expected in world(2, _average_with_a_skip):
        for a, b in zip(got, expected):
            assert torch.allclose(torch.tensor(a), torch.tensor(b), rtol=1e-5), (got, expected)


def test_a_job_of_one_leaves_samples_out():
    """Samples can be left out without an agent too, and not after the average of the step."""
    import shoal

    with shoal.join() as job:
        for step in job.steps(6, batch=2):
            x = torch.full((1,), math.nan if step.number == 1 else 1.0)
            if step.skip(step.number == 1):
                continue
            step.allreduce(x)
            with pytest.raises(shoal.ShoalError, match="committed already"):
                step.skip(True)
        assert job.committed == 3


def _train_adversaries():
    """Train two models on this rank, each with an average of its own in every step; return their
    parameters, and how many steps were committed.
    """
    import shoal
    import shoal.torch

    real = torch.randn(32, 2, generator=torch.Generator().manual_seed(1))
    loader = shoal.torch.loader(TensorDataset(real), 8, averages=2)
    torch.manual_seed(1)
    judge, maker = (shoal.torch.ddp(torch.nn.Linear(2, n)) for n in (1, 2))
    judged, made = (torch.optim.SGD(m.parameters(), lr=0.1) for m in (judge, maker))
    for (x,) in loader:
        noise = x.flip(1)
        judged.zero_grad()
        (judge(x) - judge.module(maker.module(noise).detach())).mean().backward()
        judged.step()
        assert not loader.step.committed
        made.zero_grad()
        judge.module(maker(noise)).mean().backward()
        made.step()
        assert loader.step.committed
    return [[p.tolist() for m in (judge, maker) for p in m.parameters()], shoal.join().committed]


def test_two_averages_in_a_step():
    """Two models with losses of their own train in each step, as on one worker."""
    alone, steps = world(1, _train_adversaries)[0]
    (one, _), (other, _) = world(2, _train_adversaries)
    assert steps == 4 and one == other
    for a, b in zip(alone, one):
        assert torch.allclose(torch.tensor(a), torch.tensor(b), rtol=1e-4, atol=1e-6)


def _average_nothing(way):
    """Make two steps of which no samples count, as where the workers are lost that have some;
    return the running variances of the model in the end.
    """
    import shoal.torch

    x = torch.randn(8, 3, generator=torch.Generator().manual_seed(1))
    loader = shoal.torch.loader(TensorDataset(x), 4)
    model = torch.nn.Sequential(torch.nn.Linear(3, 2), torch.nn.BatchNorm1d(2))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    if way == "ddp":
        model = shoal.torch.ddp(model)
    else:
        optimizer = shoal.torch.zero(model, optimizer)
    for (mine,) in loader:
        loader.step.weight = 0
        model(mine).square().sum().backward()
        optimizer.step()
    return next(b for name, b in model.named_buffers() if "running_var" in name).tolist()


@pytest.mark.parametrize("way", ["ddp", "zero"])
def test_running_means_of_nobody_stay(way):
    """Where nobody is left whose samples count, running means and variances stay as they are."""
    assert min(world(1, _average_nothing, way)[0]) > 0.5


def _draw_by_weights():
    """The samples of each step of two epochs that are drawn by weights, on this rank; all are
    skipped.
    """
    import shoal.torch

    data = TensorDataset(torch.arange(10))
    loader = shoal.torch.loader(data, 4, weights=[0, 1, 0, 0, 5, 0, 0, 0, 1, 0], seed=3)
    found = []
    for epoch in loader.epochs(2):
        found.append([])
        for (x,) in loader:
            found[-1].append(x.tolist() if loader.step.weight else [])
            assert loader.step.skip(True)
    return found


def test_weights_of_samples():
    """Draws are in proportion to the weights, with replacement, and the same for any number of
    workers.
    """
    from shoal.torch.loader import _WeightedDraws

    alone, (one, other) = world(1, _draw_by_weights)[0], world(2, _draw_by_weights)
    assert [[a + b for a, b in zip(*epochs)] for epochs in zip(one, other)] == alone
    assert alone[0] != alone[1] and {i for e in alone for step in e for i in step} <= {1, 4, 8}
    draws = _WeightedDraws([0, 1, 2, 0, 5, 0], 6, 7)
    drawn = collections.Counter(draws.at(0, i) for i in range(8000))
    assert set(drawn) == {1, 2, 4}
    assert all(abs(drawn[i] - 1000 * w) < 150 for i, w in ((1, 1), (2, 2), (4, 5))), drawn
    for wrong in ([1, 2], [0] * 6, [1, -1, 1, 1, 1, 1], [math.nan] * 6):
        with pytest.raises(ValueError, match="weights"):
            _WeightedDraws(wrong, 6, 7)


def _train_alone():
    """Train a model with batch norm on this rank, the only one; return the sizes in bytes of what
    it gave to step.share, and whether the parameters are those of a plain loop.
    """
    from unittest import mock

    import shoal.torch

    def layers():
        """A model, always with the same parameters."""
        torch.manual_seed(3)
        return torch.nn.Sequential(torch.nn.Linear(3, 20), torch.nn.BatchNorm1d(20))

    x = torch.randn(32, 3, generator=torch.Generator().manual_seed(2))
    loader = shoal.torch.loader(TensorDataset(x), 8)
    model, plain, given = shoal.torch.ddp(layers()), layers(), []
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    beside, share = torch.optim.SGD(plain.parameters(), lr=0.1), shoal.Step.share

    def counted(self, x, *arguments, **options):
        """As step.share; notes the size of x."""
        given.append(memoryview(x).nbytes)
        return share(self, x, *arguments, **options)

    with mock.patch.object(shoal.Step, "share", counted):
        for (x,) in loader:
            for net, each in ((model, optimizer), (plain, beside)):
                each.zero_grad()
                net(x).square().sum().backward()
                each.step()
    mine, theirs = model.module.state_dict(), plain.state_dict()
    return given, all(torch.equal(mine[name], theirs[name]) for name in theirs)


def test_a_worker_that_is_alone_sends_no_gradients():
    """The only worker of a job trains as a plain loop does, bit by bit, and tells the agent that a
    step is made, in 8 bytes.
    """
    given, same = world(1, _train_alone)[0]
    assert same and given == [8] * 4


def _set_shares(plain, binary):
    """Train on this rank with torch's own DistributedDataParallel (`plain`) or with shoal's, and
    have rank 0 divide the work unequally after some steps: return the exit code and the words of
    the command, on the others None.
    """
    import shoal
    import shoal.torch
    from torch import distributed
    from torch.nn.parallel import DistributedDataParallel

    loader = shoal.torch.loader(TensorDataset(torch.zeros(64, 128), torch.zeros(64, 1)), 4)
    model, job, said = torch.nn.Linear(128, 1), shoal.join(), None
    if plain:
        distributed.init_process_group("shoal")
        model = DistributedDataParallel(model)
    else:
        model = shoal.torch.ddp(model)
    for x, y in loader:
        loss = F.mse_loss(model(x), y)
        loss.backward()
        if loader.step.number == 3 and job.rank == 0:
            words = [binary, "set", job._backend.name, "shares=2:1", "--no-wait"]
            ran = subprocess.run(words, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
            said = [ran.returncode, ran.stdout]
        if plain:
            loader.step.allreduce(loss.detach().reshape(1))  # commits the step
    return said


@pytest.mark.parametrize("plain", [True, False])
def test_shares_are_closed_where_workers_weigh_alike(plain):
    """Behind torch's own DistributedDataParallel, which averages the workers and not the samples,
    work cannot be divided unequally, and the reason is told; with shoal's it can.
    """
    (code, words), _ = world(2, _set_shares, plain, str(SHOAL))
    assert code == (1 if plain else 0), words
    assert ("shares of work are closed" in words and "shoal.torch.ddp" in words) is plain, words


if __name__ == "__main__":
    main(globals())
