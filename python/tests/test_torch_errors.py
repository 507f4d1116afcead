"""What torch's own C++ code makes of an error of the agent: an exception that says what is wrong,
never the end of the process.
"""

import pytest

torch = pytest.importorskip("torch")
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from torch_world import Failed, main, world

import shoal


def _train(ending, wrap):
    """Rank 1 makes fewer steps than rank 0, which waits for it in its backward pass."""
    import shoal.torch

    if wrap == "plain":
        dist.init_process_group("shoal")
    model = torch.nn.Linear(4, 1)
    model = DistributedDataParallel(model) if wrap == "plain" else shoal.torch.ddp(model)
    for _ in range(3 if shoal.join().rank == 0 else 2):
        model(torch.ones(2, 4)).mean().backward()
    if ending == "another call":
        dist.all_reduce(torch.ones(7))


@pytest.mark.parametrize("wrap", ["plain", "shoal.torch.ddp"])
@pytest.mark.parametrize(
    "ending, wants",
    [
        ("another call", r"the ranks disagree .* rank 1 called all_reduce\(f32\[7\]"),
        ("none", "rank 1 exited with code 0, while rank 0 waits"),
    ],
)
def test_a_rank_with_fewer_steps_is_named(ending, wants, wrap):
    with pytest.raises(Failed, match=wants) as failed:
        world(2, _train, ending, wrap, forked=False)
    assert "SIG" not in str(failed.value)


def test_a_failed_future_raises_its_error():
    from shoal.torch.future import set_error

    future = torch.futures.Future()
    set_error(future, ValueError("what was wrong"))
    with pytest.raises(ValueError, match="what was wrong"):
        future.wait()
    with pytest.raises(Exception, match="what was wrong"):
        future.then(lambda f: f.value()).wait()


def _refusals():
    """The wrong uses: for each a call, and the type and the text of its error."""
    import shoal.torch

    linear = torch.nn.Linear(1, 1)
    opt = torch.optim.SGD(linear.parameters(), lr=0.1)

    class Stream(torch.utils.data.IterableDataset):
        def __iter__(self):
            return iter([1, 2])

    return [
        (
            lambda: shoal.torch.loader([1, 2], global_batch=0),
            ValueError,
            "global_batch=0: how many samples a step takes",
        ),
        (
            lambda: shoal.torch.loader([1, 2], global_batch="2"),
            TypeError,
            "global_batch='2': how many samples a step takes",
        ),
        (
            lambda: shoal.torch.loader(Stream(), global_batch=2),
            TypeError,
            "dataset is Stream: .* takes a map-style one",
        ),
        (
            lambda: shoal.torch.loader(torch.utils.data.DataLoader([1, 2]), global_batch=2),
            TypeError,
            "dataset is DataLoader: .* Of a DataLoader give the dataset",
        ),
        (
            lambda: shoal.torch.loader([1, 2], global_batch=2).epochs("3"),
            TypeError,
            "epochs='3': how many epochs",
        ),
        (lambda: shoal.torch.empty("x"), TypeError, "shape='x': the length of a tensor"),
        (lambda: shoal.torch.ddp([linear]), TypeError, "model=.*: a torch.nn.Module"),
        (
            lambda: shoal.torch.optimizer(linear.parameters()),
            TypeError,
            "opt=.*: an optimizer, as torch.optim.SGD",
        ),
        (
            lambda: shoal.torch.optimizer(torch.optim.SGD),
            TypeError,
            "opt=.*: an optimizer, as torch.optim.SGD",
        ),
        (
            lambda: shoal.torch.optimizer(opt, 3),
            TypeError,
            "others=3: what workers that join get too",
        ),
        (lambda: shoal.torch.zero(3, opt), TypeError, "model=3: a torch.nn.Module"),
        (
            lambda: shoal.torch.zero(linear, opt, 3),
            TypeError,
            "others=3: what workers that join get too",
        ),
        (lambda: shoal.torch.TopK("x"), TypeError, "density='x': the density is the part"),
        (lambda: shoal.torch.PowerSGD(1.5), TypeError, "rank=1.5: how many columns"),
    ]


def _is_refused():
    """Check every refusal on this rank."""
    for call, error, message in _refusals():
        with pytest.raises(error, match=message):
            call()
    with pytest.raises(TypeError, match="bucket_cap_mb='x': how large a bucket may be"):
        import shoal.torch

        shoal.torch.loader([1, 2], global_batch=2)
        shoal.torch.ddp(torch.nn.Linear(1, 1), bucket_cap_mb="x")


def test_wrong_arguments_are_named():
    world(1, _is_refused)


if __name__ == "__main__":
    main(globals())
