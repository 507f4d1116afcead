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
