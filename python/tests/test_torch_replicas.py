"""What users are told where the workers do not train the same model."""

import resource

import pytest

torch = pytest.importorskip("torch")
from shoal.torch.replicas import bit_sum
from torch.utils.data import TensorDataset
from torch_world import Failed, main, world


def _step_on_rank_0():
    """Train with an optimizer that only rank 0 steps, and then end with an error."""
    import shoal.torch

    loader = shoal.torch.loader(TensorDataset(torch.zeros(32, 1)), 8)
    model = shoal.torch.ddp(torch.nn.Linear(1, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for (x,) in loader:
        optimizer.zero_grad()
        model(x).sum().backward()
        if loader._job.rank == 0:
            optimizer.step()
    raise SystemExit("the loop has ended")


def test_a_worker_that_steps_alone_is_told_once():
    """The user is told once that the parameters differ."""
    with pytest.raises(
        Failed,
        match=(
            "the parameters of the workers differ after 1 step, though all gradients are averaged."
            " Every worker must call optimizer.step"
        ),
    ) as ended:
        world(2, _step_on_rank_0)
    assert str(ended.value).count("[0] shoal: the parameters") == 1 and "the loop has ended" in str(
        ended.value
    )


def _load_on_rank_0(sync):
    """Train a model that only rank 0 changes before the loop, and then end with an error."""
    import shoal.torch

    data, job = TensorDataset(torch.zeros(16, 1)), shoal.join()
    loader = shoal.torch.loader(data, 4)
    model = torch.nn.Linear(1, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    optimizer = shoal.torch.optimizer(optimizer, model, sync=sync)
    if job.rank == 0:
        torch.nn.init.zeros_(model.weight)
    for (x,) in loader:
        optimizer.zero_grad()
        model(x).sum().backward()
        optimizer.step()
    raise SystemExit("the loop has ended")


@pytest.mark.parametrize(
    "sync, text",
    [
        (None, "the parameters of the workers differ after 1 step"),
        ("local:every=2", "before step 0 not all workers have the same anchor: rank 1 has another"),
    ],
)
def test_weights_that_one_worker_loads_are_told_once(sync, text):
    """The user is told once that the models differ, also where an optimizer averages."""
    with pytest.raises(Failed, match=text) as ended:
        world(2, _load_on_rank_0, sync)
    said = str(ended.value)
    assert said.count(f"[0] shoal: {text}") == 1 and "the loop has ended" in said


@pytest.mark.parametrize(
    "dtype, word", [(torch.float32, torch.int32), (torch.bfloat16, torch.int16)]
)
def test_the_bits_of_parameters_are_summed_without_fresh_memory(dtype, word):
    """The sum of the bits of a tensor is that of its words, and touches no memory of its size."""
    tensor = torch.arange(5 << 20).to(dtype)  # as words of 64 bits too large for memory of before
    expected = int(tensor.view(word).sum(dtype=torch.int64))
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    assert bit_sum(tensor) == expected
    touched = resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before
    assert touched * resource.getpagesize() < tensor.numel() * tensor.element_size() / 2


if __name__ == "__main__":
    main(globals())
