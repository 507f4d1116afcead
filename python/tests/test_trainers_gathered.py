"""What Accelerate gathers and reduces, over the workers of a job."""

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("accelerate")
from torch_world import TRAINERS, main, world


def _reduce():
    """The largest of the workers' numbers, and the sum of large whole numbers. Given to
    `world`.
    """
    import shoal.accelerate

    import shoal

    accelerator, rank = shoal.accelerate.Accelerator(cpu=True), shoal.join().rank
    largest = accelerator.reduce({"x": torch.tensor([rank, -rank])}, "max")["x"]
    total = accelerator.reduce(torch.tensor((1 << 40) + rank))
    mean = accelerator.reduce(torch.tensor([rank]), "mean")
    return [largest.tolist(), total.item(), str(total.dtype), mean.item()]


def test_what_is_reduced():
    """With "max" the largest is returned, and the sum of whole numbers is a whole number, with all
    of its digits.
    """
    found = [[1, 0], (1 << 41) + 1, "torch.int64", 0.5]
    assert world(2, _reduce, modules=TRAINERS.split(",")) == [found, found]


@pytest.mark.parametrize(
    "dtype, values, weights, mean",
    [
        ("float16", [61440.0, 40960.0], [3, 1], 56320.0),  # the sum is beyond what it holds
        ("bfloat16", [1.0, 1 + 2**-6], [256, 256], 1 + 2**-7),
        ("float32", [float("nan"), 2.0], [0, 4], 2.0),
        ("float32", [1.0, 4.0], [0, 0], 2.5),  # a batch of which nobody has samples
        ("int64", [1, 2], [1, 1], 1.5),
    ],
)
def test_a_mean_by_weights(dtype, values, weights, mean):
    """A mean is right wherever its type holds it, also of a batch for which no worker has samples;
    it keeps the type, unless that is of whole numbers.
    """
    from shoal._trainers.gathered import mean_scaled

    tensors = [{"x": torch.tensor(v, dtype=getattr(torch, dtype))} for v in values]
    found = mean_scaled(tensors, weights, 2.0 if dtype == "float32" else 1.0, "cpu")["x"]
    assert found.item() == (2 * mean if dtype == "float32" else mean)
    assert found.dtype == (torch.float32 if dtype == "int64" else tensors[0]["x"].dtype)


def _reduce_in_training(size):
    """Train for a step of eight batches of `size` samples; return the mean over the batches of what
    `reduce` makes of a loss of 1. Given to `world`.
    """
    import shoal.accelerate

    accelerator = shoal.accelerate.Accelerator(cpu=True, gradient_accumulation_steps=8)
    model, rows = torch.nn.Linear(1, 1), torch.utils.data.TensorDataset(torch.ones(8 * size, 1))
    loader = torch.utils.data.DataLoader(rows, batch_size=size, shuffle=True)
    model, loader = accelerator.prepare(model, loader)
    found = []
    for (x,) in loader:
        with accelerator.accumulate(model):
            accelerator.backward(model(x).mean())
        found.append(accelerator.reduce(torch.tensor(1.0, dtype=torch.float16), "mean").item())
    return sum(found) / len(found)


def test_the_mean_loss_of_a_step():
    """The mean over the batches of a step is that of the loss, also where a step has more batches
    than a worker has samples.
    """
    assert world(2, _reduce_in_training, 1, modules=TRAINERS.split(",")) == [1.0, 1.0]


def _gather_objects():
    """What a worker gathers of texts, and of tensors of several lengths, outside of an evaluation,
    and of the latter in one. Given to `world`.
    """
    import shoal.accelerate

    import shoal

    accelerator, rank = shoal.accelerate.Accelerator(cpu=True), shoal.join().rank
    load, found = torch.utils.data.DataLoader, []
    texts = accelerator.gather_for_metrics([f"of {rank}"] * (rank + 1))
    _, held = accelerator.prepare(load(range(4)), load(range(3), batch_size=2))
    for batch in held:
        rows = [torch.ones(int(n)) for n in batch]
        found += accelerator.gather_for_metrics(rows, use_gather_object=True)
    return [texts, [len(x) for x in found]]


def test_objects_are_gathered():
    """gather_for_metrics gives what all workers have, also of objects, and after an evaluation."""
    found = [["of 0", "of 1", "of 1"], [0, 1, 2]]
    assert world(2, _gather_objects, modules=TRAINERS.split(",")) == [found, found]


if __name__ == "__main__":
    main(globals())
