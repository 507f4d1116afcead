"""Wrong arguments of shoal.torch's functions are refused with an error that names them. Functions
that tests give to `world` run on each rank of a job, in its own process.
"""

import pytest

torch = pytest.importorskip("torch")
from torch_world import main, world


def _refusals():
    """The wrong uses: for each a call, the type of its error, and a pattern of its text."""
    import shoal.torch

    linear = torch.nn.Linear(1, 1)
    opt = torch.optim.SGD(linear.parameters(), lr=0.1)

    class Stream(torch.utils.data.IterableDataset):
        """A dataset without numbers of its samples, which tells a length."""

        def __len__(self):
            """The number of samples."""
            return 2

        def __iter__(self):
            """The two samples."""
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
            lambda: shoal.torch.loader([], global_batch=2, weights=[]),
            ValueError,
            "the dataset is empty: shoal.torch.loader takes one of 1 sample or more",
        ),
        (
            lambda: shoal.torch.loader([1, 2], global_batch=2, num_workers=2, in_order=False),
            ValueError,
            "in_order=False would give a step the batch of another one",
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
        (lambda: shoal.torch.empty(-1), ValueError, "shape=-1: the length of a tensor"),
        (lambda: shoal.torch.empty([2, -1]), ValueError, r"shape=\[2, -1\]: the length of a"),
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


def _check_refusals():
    """Check on this rank that every wrong use raises the error that is expected of it."""
    for call, error, message in _refusals():
        with pytest.raises(error, match=message):
            call()
    with pytest.raises(TypeError, match="bucket_cap_mb='x': how large a bucket may be"):
        import shoal.torch

        shoal.torch.loader([1, 2], global_batch=2)
        shoal.torch.ddp(torch.nn.Linear(1, 1), bucket_cap_mb="x")
    waves = torch.nn.Linear(1, 1, dtype=torch.complex64)
    with pytest.raises(TypeError, match="cannot divide weight, which has complex numbers"):
        shoal.torch.zero(waves, torch.optim.SGD(waves.parameters(), lr=0.1))


def test_wrong_arguments_are_named():
    """Every wrong use raises the error that is expected of it."""
    world(1, _check_refusals)


if __name__ == "__main__":
    main(globals())
