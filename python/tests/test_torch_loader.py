"""DataLoader workers are forked children of a rank: they may neither hang nor touch the arena of
their parent. And what shoal.torch.loader says of its batches. `_train` and `_compare_indices` run
on each rank of a job, in its own process.
"""

import sys
import types

import pytest

torch = pytest.importorskip("torch")
from torch.nn import functional as F
from torch.utils.data import DataLoader, Dataset, DistributedSampler
from torch_world import main, world


class _Rows(Dataset):
    """A dataset of rows of a tensor in the arena, which the DataLoader's workers read."""

    def __init__(self, rows, labels):
        """Rows, which lie in the arena, and a label for each."""
        self.rows, self.labels = rows, labels

    def __len__(self):
        """The number of rows."""
        return len(self.rows)

    def __getitem__(self, i):
        """A row, copied out of the arena, its label, and its number. Called in a DataLoader's
        process, where it overwrites the row.
        """
        row = self.rows[i].clone()
        self.rows[i] = -1  # a worker's write stays its own
        return row, self.labels[i], i


def _train():
    """Train with forked DataLoader workers, which read the arena; return the number of losses,
    whether they fell, and the parameters.
    """
    import shoal
    import shoal.torch

    job = shoal.join()
    torch.set_num_threads(1)
    rows = shoal.torch.empty((64, 3))
    original = torch.randn(64, 3, generator=torch.Generator().manual_seed(1))
    rows.copy_(original)
    data = _Rows(rows, (original.sum(1) > 0).long())
    model = shoal.torch.ddp(torch.nn.Linear(3, 2))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    sampler = DistributedSampler(data, job.size, job.rank, shuffle=True, seed=3)
    loader = DataLoader(
        data, batch_size=4, sampler=sampler, num_workers=2, multiprocessing_context="fork"
    )
    losses = []
    # fresh workers each time: forked while futures, bells and a waiter thread are in use
    for epoch in range(2):
        sampler.set_epoch(epoch)
        for x, y, index in loader:
            assert torch.equal(x, original[index]), "a worker read something else"
            optimizer.zero_grad()
            loss = F.cross_entropy(model(x), y)
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
        assert torch.equal(rows, original), "a worker wrote into the arena of its parent"
    return [len(losses), losses[-1] < losses[0], [p.sum().item() for p in model.parameters()]]


def test_two_fork_workers_a_rank():
    """Training with forked workers does not hang, and the ranks stay the same."""
    ranks = world(2, _train)
    assert ranks[0][0] == 16 and ranks[0][2] == ranks[1][2]


@pytest.mark.parametrize("options", [{}, {"drop_last": True}, {"weights": [1, 2, 3] * 7}])
def test_the_indices_of_a_step_are_the_samples_of_its_batch(options):
    """Also where an epoch leaves samples out, or draws them by weights, each once."""
    assert world(1, _compare_indices, options) == [[True, 42 if "weights" in options else 0]]


def _compare_indices(options):
    """Train for two epochs; return whether each batch had the samples of its step, and how many
    samples were drawn.
    """
    import shoal.torch

    loaders = sys.modules["shoal.torch.loader"]
    draw, drawn = loaders._WeightedDraws.at, []
    loaders._WeightedDraws.at = lambda *place: drawn.append(place) or draw(*place)
    data = torch.utils.data.TensorDataset(torch.arange(21))
    loader = shoal.torch.loader(data, 4, epochs=2, **options)
    model, same = shoal.torch.ddp(torch.nn.Linear(1, 1)), True
    for (x,) in loader:
        same = same and x.tolist() == [int(i) for i in loader.step.indices]
        model(x[:, None].float()).mean().backward()
    return [same, len(drawn)]


def _train_by_two_calls():
    """Train for an epoch, leave the loop over epochs, and train for the next one by another call of
    loader.epochs, with a process that loads; return the number of committed steps.
    """
    import shoal
    import shoal.torch

    data = torch.utils.data.TensorDataset(torch.arange(200))
    loader = shoal.torch.loader(data, 2, num_workers=1)
    for _ in range(2):
        for _ in loader.epochs(2):
            for _ in loader:
                loader.step.allreduce(torch.zeros(1))
            break
    return shoal.join().committed


def test_a_training_that_goes_on_by_another_call_of_epochs():
    """Batches are loaded for the loop that comes, not from where the one before began."""
    assert world(1, _train_by_two_calls) == [200]


def test_the_order_of_an_epoch_stays_where_a_program_states_another_batch():
    """The samples of an epoch come in the same order whatever batch of the range a program states
    that goes on from a checkpoint in its middle.
    """
    from shoal.cursor import Cursor
    from shoal.torch.loader import _BatchOrders

    orders = []
    for batch in (8, 32):
        start = Cursor.start(100, batch)
        progress = types.SimpleNamespace(stated_start=start, cursor=start, batch_range=(8, 64))
        orders.append(_BatchOrders(progress, None, 20, None)._samples_at(0, range(100)))
    assert orders[0] == orders[1] and len({*orders[0]}) == 100


if __name__ == "__main__":
    main(globals())
