"""One average a step of the loader: what accumulates gradients within it, and what is said of loops
that average never or twice. Functions that tests give to `world` run on each rank of a job, in its
own process; an error there fails the job, and `world` raises Failed with what was printed.
"""

import gc
import sys

import pytest

torch = pytest.importorskip("torch")
from torch.nn import functional as F
from torch.utils.data import TensorDataset
from torch_world import Failed, main, world


class _TwoHeads(torch.nn.Module):
    """A model with two heads, of which the loss of a step depends on one."""

    def __init__(self):
        """Make both heads, with random parameters."""
        super().__init__()
        self.used, self.spare = torch.nn.Linear(3, 1), torch.nn.Linear(3, 1)

    def forward(self, x):
        """The output of the head that is used."""
        return self.used(x)


def _loop(make, batch=8, samples=32):
    """A loader of so many samples in batches of `batch`, a model made by make(), and its
    optimizer: the same on every rank, to be used in one loop.
    """
    import shoal.torch

    torch.manual_seed(1)
    x = torch.randn(samples, 3, generator=torch.Generator().manual_seed(2))
    loader = shoal.torch.loader(TensorDataset(x, x.sum(1, keepdim=True)), batch, seed=5)
    model = make()
    return loader, model, torch.optim.SGD(model.parameters(), lr=0.1)


def _linear():
    """A linear layer under shoal.torch.ddp."""
    import shoal.torch

    return shoal.torch.ddp(torch.nn.Linear(3, 1))


def _train(parts):
    """Train on this rank, with each batch cut into so many parts; return the parameters."""
    loader, model, optimizer = _loop(_linear)
    for x, y in loader:
        optimizer.zero_grad(set_to_none=True)
        cuts = list(zip(x.chunk(parts), y.chunk(parts)))
        with model.no_sync():
            for part, truth in cuts[:-1]:
                (F.mse_loss(model(part), truth, reduction="sum") / len(x)).backward()
        part, truth = cuts[-1]
        (F.mse_loss(model(part), truth, reduction="sum") / len(x)).backward()
        optimizer.step()
    return [p.tolist() for p in model.parameters()]


def test_gradients_accumulate_within_a_step():
    """Parts of a batch give the gradients of the whole batch."""
    whole, cut = world(2, _train, 1), world(2, _train, 4)
    assert cut[0] == cut[1]
    for one, other in zip(whole[0], cut[0]):
        assert torch.allclose(torch.tensor(one), torch.tensor(other), rtol=1e-5)


def _train_batch_norm(samples, size):
    """Train a batch norm on this rank of `size`, with so many samples in batches of 4; return how
    many samples of this rank counted, or the text of what was raised, and what was said of batch
    norms.
    """
    import shoal
    import shoal.torch

    said = []
    sys.modules["shoal.torch.ddp"].log_line = said.append
    norm = torch.nn.Sequential(torch.nn.Linear(3, 2), torch.nn.BatchNorm1d(2))
    loader, model, optimizer = _loop(lambda: shoal.torch.ddp(norm), 4, samples)
    seen, job = [0.0], shoal.join()
    assert job.size == size
    try:
        for x, _ in loader:
            optimizer.zero_grad()
            model(x).sum().backward()
            optimizer.step()
            seen[0] += loader.step.weight
    except ValueError as err:
        seen = [str(err)]
    return [seen[0], said]


def test_no_worker_gets_one_of_several_samples():
    """A batch norm computes in the small batch at the end of an epoch, and where a worker has a
    single sample the way out is said.
    """
    (first, said), (second, _) = world(2, _train_batch_norm, 7, 2)  # a batch of 4, one of 3
    assert first + second == 7 and not said
    for raised, said in world(2, _train_batch_norm, 5, 2):  # a batch of 4, one of 1
        assert "more than 1 value per channel" in raised and len(said) == 1
        assert "one sample in step 1, of 1 on 2 workers" in said[0] and "drop_last" in said[0]


def _train_in_loops(how, options):
    """Train on this rank for three epochs, with options of the loader, in a loop of a kind: "flat",
    or one for each epoch. Return how many steps were committed, the length of the loader, the text
    of what a second loop raises, in a list, and the parameters.
    """
    import shoal.torch

    torch.manual_seed(1)
    x = torch.randn(20, 3, generator=torch.Generator().manual_seed(2))
    data = TensorDataset(x, x.sum(1, keepdim=True))
    loader = shoal.torch.loader(data, 8, seed=5, epochs=3 if how == "flat" else None, **options)
    model = _linear()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    schedule = torch.optim.lr_scheduler.StepLR(optimizer, 1, gamma=0.5)

    def train(batches):
        """Train on the batches."""
        for x, y in batches:
            optimizer.zero_grad()
            F.mse_loss(model(x), y).backward()
            optimizer.step()
            if loader.step.last and how == "flat":
                schedule.step()

    if how == "flat":
        train(loader)
    for epoch in () if how == "flat" else loader.epochs(3) if how == "epochs" else range(3):
        assert loader.epoch == epoch
        train(
            shoal.torch.loader(data, 8, seed=5, **options) if how == "a loader for each" else loader
        )
        schedule.step()
    job = shoal.join()
    again = []
    if how == "epochs":
        try:
            next(loader.epochs(3))
        except shoal.ShoalError as err:
            again.append(str(err))
    return [job.committed, len(loader), again, [p.tolist() for p in model.parameters()]]


@pytest.mark.parametrize(
    "options", [{}, {"num_workers": 2, "persistent_workers": True}, {"num_workers": 1}], ids=str
)
def test_a_loop_for_each_epoch_trains_as_one_over_all_of_them(options):
    """All ways to loop make the same steps and end with the same parameters; only loader.epochs
    refuses to begin again.
    """
    flat, same = world(2, _train_in_loops, "flat", options)
    assert flat == same and flat[:2] == [9, 9]
    for how in ("range", "epochs", "a loader for each"):
        for rank in world(2, _train_in_loops, how, options):
            assert rank[:2] == [9, 3] and rank[3] == flat[3], how
            assert (how == "epochs") == any(
                "all 3 epochs of this loop are over" in text for text in rank[2]
            )


def _train_without_average(how):
    """Train on this rank in a way in which the first step has no average, or with "find" has one;
    return the number of committed steps.
    """
    import shoal.torch

    two = how in ("unused", "find")
    loader, model, optimizer = _loop(
        lambda: (
            shoal.torch.ddp(_TwoHeads(), find_unused_parameters=how == "find") if two else _linear()
        )
    )
    for x, y in loader:
        optimizer.zero_grad(set_to_none=True)
        if how == "accumulate":
            with model.no_sync():
                F.mse_loss(model(x), y).backward()
        elif how != "nothing":
            F.mse_loss(model(x), y).backward()
        optimizer.step()
    return shoal.join().committed


def test_a_step_without_an_average_says_what_may_be_wrong():
    """A step without an average raises an error, which names the step and the likely cause."""
    for how, wants in {
        "unused": [
            "step 0",
            "2 of 4 parameters got none (spare.weight, spare.bias)",
            "find_unused_parameters=True",
        ],
        "accumulate": ["step 0", "cut the batch of a step", "no_sync()"],
        "nothing": ["step 0", "No backward pass went through the model"],
    }.items():
        with pytest.raises(Failed) as failed:
            world(1, _train_without_average, how)
        for want in wants:
            assert want in str(failed.value), how
    assert world(1, _train_without_average, "find") == [4]


def _drop_models(options):
    """Wrap a model again and again, with these options of shoal.torch.ddp, and drop what that
    returns; return how many buckets and averages are left, and how much advice.
    """
    import shoal.torch
    from shoal.torch.bucket import Bucket
    from shoal.torch.ddp_average import Average

    _loop(lambda: torch.nn.Linear(3, 1))
    model = torch.nn.Linear(3, 1)
    for _ in range(2):
        shoal.torch.ddp(model, **options)
        shoal.torch.optimizer(torch.optim.SGD(torch.nn.Linear(3, 1).parameters(), lr=0.1))
    gc.collect()
    left = sum(type(thing) in (Bucket, Average) for thing in gc.get_objects())
    return [left, sum(1 for hint in shoal.join()._progress.hints if hint())]


@pytest.mark.parametrize("options", [{}, {"find_unused_parameters": True}], ids=["plain", "find"])
def test_what_averages_goes_with_its_model(options):
    """What averages a wrapped model, with its buckets in the arena, is gone when the wrapped model
    is, and so is the advice about it.
    """
    assert world(1, _drop_models, options) == [[0, 0]]


def _average_twice(how):
    """Average twice in the first step: of "one model", of "two models", or by "optimizers"."""
    import shoal.torch

    loader, first, optimizer = _loop(_linear)
    if how == "one model":
        second = first
    elif how == "two models":
        second = _linear()
    else:
        second = torch.nn.Linear(3, 1)
        other = shoal.torch.optimizer(torch.optim.SGD(second.parameters(), lr=0.1))
    for x, y in loader:
        F.mse_loss(first(x), y).backward()
        optimizer.step()
        F.mse_loss(second(x), y).backward()
        if how == "optimizers":
            other.step()


@pytest.mark.parametrize("how", ["one model", "two models", "optimizers"])
def test_a_second_average_is_refused_with_what_to_do(how):
    """A second average in a step raises an error, which says how several passes or models go
    together.
    """
    with pytest.raises(Failed) as failed:
        world(1, _average_twice, how)
    for want in ("was committed by an average", "forward pass in the block", "averages=2"):
        assert want in str(failed.value)


def _train_in_turns():
    """Train two models on this rank in turns; return the number of committed steps, and the
    parameters of both.
    """
    import shoal
    import shoal.torch

    loader, first, optimizer = _loop(_linear)
    second = _linear()
    other = torch.optim.SGD(second.parameters(), lr=0.1)
    for x, y in loader:
        model, step = [(first, optimizer), (second, other)][loader.step.number % 2]
        step.zero_grad(set_to_none=True)
        F.mse_loss(model(x), y).backward()
        step.step()
    return [
        shoal.join().committed,
        *(p.tolist() for model in (first, second) for p in model.parameters()),
    ]


def test_two_models_take_turns():
    """Two models that are averaged in alternate steps are each the same on both ranks."""
    one, other = world(2, _train_in_turns)
    assert one == other and one[0] == 4 and one[1] != one[3]


def _draw_samples(samples, batch, options):
    """Train with drop_last for three epochs; return the samples that this rank got, by epoch, and
    the size of each of its batches.
    """
    import shoal.torch

    loader = shoal.torch.loader(
        TensorDataset(torch.arange(samples)), batch, epochs=3, drop_last=True, **options
    )
    model = shoal.torch.ddp(torch.nn.Linear(1, 1))
    epochs, sizes = [[], [], []], []
    for (x,) in loader:
        model(x[:, None].float()).mean().backward()
        epochs[loader.step.epoch] += x.tolist()
        sizes.append(len(x))
    return [epochs, sizes]


def test_drop_last_leaves_out_others_in_each_epoch():
    """Each epoch has whole batches of different samples; those left out are others in the next, but
    the same without shuffle.
    """
    ranks = world(2, _draw_samples, 23, 6, {})
    left = []
    for one, other in zip(*(epochs for epochs, _ in ranks)):
        assert len({*one, *other}) == len(one) + len(other) == 18
        left.append({*range(23)} - {*one, *other})
    assert (
        not left[0] & left[1]
        and not left[1] & left[2]
        and all(sizes == [3] * 9 for _, sizes in ranks)
    )
    options = {"shuffle": False, "num_workers": 2, "samples_per_epoch": 13}
    ((epochs, _),) = world(1, _draw_samples, 23, 6, options)
    assert epochs == [[*range(12)]] * 3


def test_samples_of_an_epoch_come_from_the_whole_dataset():
    """Of a dataset that may be sorted, each epoch of fewer samples has some of all its quarters,
    and the epochs have all of it.
    """
    ((epochs, _),) = world(1, _draw_samples, 120, 8, {"samples_per_epoch": 40})
    for epoch in epochs:
        assert len({*epoch}) == 40
        assert all(len([i for i in epoch if i // 30 == quarter]) >= 4 for quarter in range(4))
    assert {i for epoch in epochs for i in epoch} == {*range(120)}


def _ask_for_too_few_samples():
    """Ask for a loader with drop_last of fewer samples than a batch; return the text of the
    error.
    """
    import shoal.torch

    try:
        shoal.torch.loader(TensorDataset(torch.arange(5)), 6, drop_last=True)
    except ValueError as err:
        return str(err)


def test_drop_last_of_less_than_a_batch_is_refused():
    """A dataset with no whole batch raises ValueError with its length."""
    assert "5 samples" in world(1, _ask_for_too_few_samples)[0]


def _thaw(wrapped_first):
    """Train a layer on this rank from the third step on, which ddp has seen frozen, or with
    `wrapped_first` has not; return the parameters.
    """
    import shoal.torch

    def make():
        """The model, and the layer that is frozen at first."""
        model = _TwoHeads()
        model.used.requires_grad_(wrapped_first)
        return shoal.torch.ddp(model, find_unused_parameters=True)

    loader, model, optimizer = _loop(make)
    layer, out = model.module.used.requires_grad_(False), model.module.spare
    model.module.forward = lambda x: out(layer(x).expand(-1, 3))
    for x, y in loader:
        layer.requires_grad_(loader.step.number >= 2)
        optimizer.zero_grad()
        F.mse_loss(model(x), y).backward()
        optimizer.step()
    with torch.no_grad():
        model(x)
    return [p.tolist() for p in model.parameters()]


def test_a_layer_that_thaws_is_averaged_or_refused():
    """A layer that ddp has seen with gradients is averaged when it thaws; one that was frozen then
    raises an error that names its parameters.
    """
    one, other = world(2, _thaw, True)
    assert one == other
    with pytest.raises(
        Failed,
        match=(
            "used.weight, used.bias took no gradient when shoal.torch.ddp wrapped the model, and"
            " takes one now"
        ),
    ):
        world(2, _thaw, False)


def _add_parameter(how):
    """Train a parameter that is made in the third step, "in the model" or "in an optimizer" only,
    which must raise an error on this rank.
    """
    import shoal.torch

    loader, model, optimizer = _loop(
        lambda: shoal.torch.ddp(
            torch.nn.Sequential(torch.nn.Linear(3, 3)), find_unused_parameters=True
        )
    )
    beside = torch.nn.Linear(3, 1)
    for x, y in loader:
        if loader.step.number == 2 and how == "in the model":
            model.module.add_module("late", beside)
            kept = torch.optim.SGD(beside.parameters(), lr=0.1)
        elif loader.step.number == 2:
            optimizer.add_param_group({"params": beside.parameters()})
        optimizer.zero_grad()
        F.mse_loss(beside(model(x)[:, :3]), y).backward()
        optimizer.step()
    return kept


@pytest.mark.parametrize(
    "how, named",
    [
        ("in the model", "late.weight, late.bias"),
        ("in an optimizer", r"one of shape \[1, 3\], one of shape \[1\]"),
    ],
)
def test_a_parameter_that_comes_later_is_refused(how, named):
    """A parameter that is made after the model was wrapped raises an error, with its name or
    shape.
    """
    with pytest.raises(
        Failed,
        match=(
            r"did not find when it wrapped the model, so their gradients would not be averaged"
            rf" \({named}\)"
        ),
    ):
        world(2, _add_parameter, how)


def _train_sparse():
    """Train an embedding with sparse gradients under ddp, which must raise an error on this rank.
    """
    import shoal.torch

    loader = shoal.torch.loader(TensorDataset(torch.arange(12) % 4), 4)
    layers = torch.nn.Sequential(torch.nn.Embedding(4, 2, sparse=True), torch.nn.Linear(2, 1))
    model = shoal.torch.ddp(layers)
    for (x,) in loader:
        model(x).sum().backward()


def test_what_would_not_be_averaged_is_an_error():
    """Gradients that torch does not hand over raise an error, which names the parameter and what to
    do.
    """
    named = "has not handed over the gradients of 0.weight.* sparse=False"
    for n in (1, 2):
        with pytest.raises(Failed, match=named):
            world(n, _train_sparse)


def _thaw_with_optimizer():
    """Train on this rank a layer that was frozen when ddp wrapped it, with shoal.torch.optimizer
    beside; return the parameters.
    """
    import shoal.torch

    torch.manual_seed(1)
    model = _TwoHeads()
    model.used.requires_grad_(False)
    layer, out = model.used, model.spare
    model.forward = lambda x: out(layer(x).expand(-1, 3))
    wrapped = shoal.torch.ddp(model)
    optimizer = shoal.torch.optimizer(torch.optim.SGD(model.parameters(), lr=0.1))
    layer.requires_grad_(True)
    for step in range(3):
        optimizer.zero_grad()
        wrapped(torch.full((2, 3), shoal.join().rank + 1.0)).mean().backward()
        optimizer.step()
    return [p.tolist() for p in model.parameters()]


def test_a_layer_that_thaws_is_averaged_by_the_optimizer():
    """The layer that ddp does not average is the same on both ranks."""
    one, other = world(2, _thaw_with_optimizer)
    assert one == other


if __name__ == "__main__":
    main(globals())
