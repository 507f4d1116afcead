"""The torch.distributed backend "shoal": collectives, types, reductions, sub-groups, works,
futures, errors.

Functions that tests give to `world` run on each rank of a job, in its own process, and make the
process group first; where a check fails there the job fails, and so the test.
"""

import itertools
import os

import pytest

torch = pytest.importorskip("torch")
import torch.distributed as dist
from torch_world import Failed, main, world

SEED = 20261121
TYPES = [
    "float64",
    "float32",
    "float16",
    "bfloat16",
    "int64",
    "int32",
    "uint8",
    "int8",
    "int16",
    "bool",
    "complex64",
    "complex128",
]


def _init_group():
    """Make the process group of all ranks with the backend; return this rank and the size. Waits
    for the other ranks.
    """
    import shoal.torch  # noqa: F401

    dist.init_process_group("shoal")
    return dist.get_rank(), dist.get_world_size()


def _tensor(rank, dtype, shape=(3, 5)):
    """The input of a rank: small whole numbers, the same wherever they are computed, so that every
    type holds sums exactly.
    """
    numbers = torch.randint(0, 5, shape, generator=torch.Generator().manual_seed(SEED + rank))
    return numbers.to(getattr(torch, dtype))


def _expect_same(got, want):
    """Check that two tensors have the same type, shape and elements."""
    assert got.dtype == want.dtype and got.shape == want.shape and torch.equal(got, want), (
        f"got {got}\nwant {want}"
    )


def _check_groups_without_backends(folder):
    """Check meshes of devices, DTensors, the end of one group, and checkpoints in `folder`, where
    groups have no Backend.
    """
    from unittest.mock import patch

    os.environ["TORCH_FR_BUFFER_SIZE"] = "0"  # what torch 2.15 records, it asks Backends for
    with patch("shoal.torch.c10d.attach_backend", lambda group: None):
        rank, _ = _init_group()
        mesh = dist.device_mesh.init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "tp"))
        part = torch.full((1, 3), float(rank))
        rows = dist.tensor.DTensor.from_local(part, mesh["tp"], [dist.tensor.Shard(0)])
        _expect_same(rows.full_tensor()[:, 0], torch.tensor([0.0, 1.0]) + rank // 2 * 2)
        group = mesh.get_group("dp")
        assert dist.get_process_group_ranks(group) == [rank % 2, rank % 2 + 2]
        assert group.group_name and group.group_desc
        # init_process_group with a device_id asks this.
        assert not group._get_backend(torch.device("cpu")).supports_splitting
        dist.destroy_process_group(group)
        _check_checkpoint_of_torch(folder, rank)


def _check_checkpoint_of_torch(folder, rank):
    """Check torch's own way to write a checkpoint beside the training, and to deal out rank 0's."""
    import torch.distributed.checkpoint as checkpoint
    from torch.distributed.checkpoint.state_dict import StateDictOptions, set_model_state_dict

    checkpoint.async_save({"x": torch.arange(5.0)}, checkpoint_id=folder).result()
    read = {"x": torch.zeros(5)}
    checkpoint.load(read, checkpoint_id=folder)
    _expect_same(read["x"], torch.arange(5.0))
    net = torch.nn.Linear(2, 1)
    state = {"weight": torch.ones(1, 2), "bias": torch.zeros(1)} if rank == 0 else {}
    options = StateDictOptions(full_state_dict=True, broadcast_from_rank0=True)
    set_model_state_dict(net, state, options=options)
    _expect_same(net.weight.detach(), torch.ones(1, 2))


def test_groups_without_backends(tmp_path):
    """What torch asks the Backend of a group for, the group answers where it has none, as with
    PyTorch 2.13: a mesh of devices needs the names of groups, checkpoints their devices.
    """
    pytest.importorskip("torch.distributed.tensor")
    world(4, _check_groups_without_backends, str(tmp_path))


def _check_every_type():
    """Check the result of every collective with every element type."""
    rank, size = _init_group()
    for dtype in TYPES:
        rows = [_tensor(r, dtype) for r in range(size)]
        total = (
            torch.stack(rows).sum(0).to(rows[0].dtype)
            if dtype != "bool"
            else torch.stack(rows).any(0)
        )
        mine = rows[rank].clone()
        dist.all_reduce(mine)
        _expect_same(mine, total)
        mine = rows[rank].clone()
        dist.reduce(mine, dst=1)
        _expect_same(mine, total if rank == 1 else rows[rank])
        mine = rows[rank].clone()
        dist.broadcast(mine, src=2)
        _expect_same(mine, rows[2])
        gathered = [torch.empty_like(mine) for _ in range(size)]
        dist.all_gather(gathered, rows[rank])
        for got, want in zip(gathered, rows):
            _expect_same(got, want)
        gathered = [torch.empty_like(mine) for _ in range(size)] if rank == 1 else None
        dist.gather(rows[rank], gathered, dst=1)
        for got, want in zip(gathered or [], rows):
            _expect_same(got, want)
        dist.scatter(mine, rows if rank == 0 else None, src=0)
        _expect_same(mine, rows[rank])
        dist.reduce_scatter(mine, rows)
        _expect_same(
            mine, rows[rank] if dtype == "bool" else (rows[rank] * size).to(rows[rank].dtype)
        )
        blocks = [torch.empty_like(mine) for _ in range(size)]
        dist.all_to_all(blocks, [rows[rank]] * size)
        for got, want in zip(blocks, rows):
            _expect_same(got, want)
        request = dist.isend(rows[rank], (rank + 1) % size, tag=7)
        dist.recv(mine, (rank - 1) % size, tag=7)
        request.wait()
        _expect_same(mine, rows[(rank - 1) % size])


def test_every_collective_on_every_type():
    """Every collective gives the elements that plain torch computes, on three ranks."""
    world(3, _check_every_type)


def _check_every_reduction():
    """Check the result of every reduction that torch knows, of the types that have it."""
    rank, size = _init_group()
    fold = {"SUM": torch.add, "PRODUCT": torch.mul, "MIN": torch.minimum, "MAX": torch.maximum}
    fold.update(BAND=torch.bitwise_and, BOR=torch.bitwise_or, BXOR=torch.bitwise_xor)
    for (name, combine), dtype in itertools.product(
        fold.items(), ["int64", "int32", "uint8", "int16", "bool", "float32"]
    ):
        if name.startswith("B") and dtype == "float32":
            continue
        want = _tensor(0, dtype)
        for r in range(1, size):
            want = combine(want, _tensor(r, dtype))
        got = _tensor(rank, dtype)
        dist.all_reduce(got, getattr(dist.ReduceOp, name))
        _expect_same(got, want)
        got = _tensor(rank, dtype)
        dist.reduce(got, 0, getattr(dist.ReduceOp, name))
        _expect_same(got, want if rank == 0 else _tensor(rank, dtype))
    got = _tensor(rank, "float64")
    dist.all_reduce(got, dist.ReduceOp.AVG)
    torch.testing.assert_close(got, sum(_tensor(r, "float64") for r in range(size)) / size)


def test_every_reduction():
    """Every reduction gives what torch's own operator does on the inputs of all ranks."""
    world(3, _check_every_reduction)


def _check_every_layout():
    """Check the results of calls with strided tensors, scalars, empty tensors, parameters and
    tensors of the arena.
    """
    rank, size = _init_group()
    whole = torch.zeros(4, 6)
    for view in (whole.t(), whole[:, ::2], whole[1], whole[2, 3], whole[:0]):
        want = torch.full_like(view, sum(range(size)))
        view.fill_(rank)
        dist.all_reduce(view)
        _expect_same(view, want)
        view.fill_(rank)
        dist.broadcast(view, 1)
        _expect_same(view, torch.ones_like(view))
    leaf = torch.nn.Parameter(torch.full((3,), float(rank)))
    dist.broadcast(leaf, 1)
    _expect_same(leaf.detach(), torch.ones(3))
    import shoal.torch

    inside = shoal.torch.empty((2, 3), torch.bfloat16).fill_(rank)
    dist.all_reduce(inside)
    _expect_same(inside, torch.full((2, 3), float(sum(range(size))), dtype=torch.bfloat16))
    assert shoal.torch.empty(0).shape == (0,) and shoal.torch.empty(()).shape == ()


def test_strides_scalars_nothing_parameters_and_the_arena():
    """All layouts of a tensor can take part in calls."""
    world(2, _check_every_layout)


def _check_uneven_sizes():
    """Check the results of a gather, an exchange and a scatter of different lengths."""
    rank, size = _init_group()
    mine = torch.full((rank + 1,), float(rank))
    parts = [torch.empty(r + 1) for r in range(size)]
    dist.all_gather(parts, mine)
    for r, part in enumerate(parts):
        _expect_same(part, torch.full((r + 1,), float(r)))
    # Rank s sends s + d rows to rank d.
    send = torch.cat([torch.full((rank + d, 2), 10.0 * rank + d) for d in range(size)])
    got = torch.empty(sum(s + rank for s in range(size)), 2)
    dist.all_to_all_single(
        got, send, [s + rank for s in range(size)], [rank + d for d in range(size)]
    )
    _expect_same(got, torch.cat([torch.full((s + rank, 2), 10.0 * s + rank) for s in range(size)]))
    out = torch.empty(rank + 1)
    dist.reduce_scatter(out, [torch.full((r + 1,), float(r)) for r in range(size)])
    _expect_same(out, torch.full((rank + 1,), float(rank * size)))


def test_uneven_sizes():
    """Blocks may differ in length where torch lets them."""
    world(3, _check_uneven_sizes)


def _check_rows_that_do_not_split():
    """Check that an exchange of rows that are no multiple of the ranks is refused, and the next one
    is made.
    """
    rank, size = _init_group()
    got = torch.empty(size + 1, 2)
    with pytest.raises(RuntimeError, match="3 rows, which do not split evenly over 2 ranks"):
        dist.all_to_all_single(got, torch.ones(size + 1, 2))
    dist.all_to_all_single(got[:size], torch.full((size, 2), float(rank)))
    _expect_same(got[:size], torch.arange(float(size)).view(-1, 1).expand(size, 2))


def test_rows_that_do_not_split():
    """No row is cut in two, as by other backends of torch."""
    world(2, _check_rows_that_do_not_split)


def _check_groups():
    """Check calls in sub-groups, and that a second process group can follow the first one."""
    rank, size = _init_group()
    pairs = [dist.new_group([0, 2]), dist.new_group([1, 3]), dist.new_group([0, 2])]
    own = pairs[rank % 2]
    x = torch.tensor([float(rank)])
    dist.all_reduce(x, group=own)
    assert x.item() == (2.0 if rank % 2 == 0 else 4.0)
    if rank % 2 == 0:
        y, z = torch.tensor([1.0]), torch.tensor([2.0])
        # Two groups of the same ranks do not mix, even when their calls come in another order.
        order = [(pairs[0], y), (pairs[2], z)]
        works = [
            dist.all_reduce(t, group=g, async_op=True)
            for g, t in (order if rank == 0 else order[::-1])
        ]
        for work in works:
            work.wait()
        assert (y.item(), z.item()) == (2.0, 4.0)
        b = torch.tensor([rank])
        dist.broadcast(b, src=2, group=pairs[2])
        assert b.item() == 2
    objects = [None] * size
    dist.all_gather_object(objects, {"rank": rank})
    assert objects == [{"rank": r} for r in range(size)]
    dist.destroy_process_group()
    # Not through env:// again: torch's TCP store has a race when it is set up twice on one port.
    dist.init_process_group(
        "shoal", init_method=f"file://{os.environ['RESULTS']}/store", rank=rank, world_size=size
    )
    dist.barrier()


def test_sub_groups_and_a_second_init():
    """Groups of the same ranks do not mix, and a new process group can follow."""
    world(4, _check_groups)


def _check_works():
    """Check works and futures, with callbacks that make calls, raise errors, or wait long."""
    rank, size = _init_group()
    x = torch.ones(1000) * rank
    work = dist.all_reduce(x, async_op=True)
    work.wait()
    assert work.is_completed() and work.is_success() and work.exception() is None
    assert work.result()[0].data_ptr() == x.data_ptr() and x[0].item() == sum(range(size))
    # Each callback calls the next collective, and waits for its future; meanwhile the script calls
    # others.
    seen = []

    def then(future):
        """Make another collective in a callback, wait for it, and keep its result in `seen`."""
        y = future.value()[0] + 1
        seen.append(dist.all_reduce(y, async_op=True).get_future().wait()[0][0].item())
        return y

    futures = []
    for i in range(20):
        futures.append(
            dist.all_reduce(torch.full((4,), float(i)), async_op=True)
            .get_future()
            .then(then)
            .then(lambda f: f.value()[0])
        )
        if i % 3 == rank:
            futures[-1].wait()  # the ranks run at their own pace
    assert [f.wait().item() for f in futures] == [size * (size * i + 1) for i in range(20)] == seen

    def fails(future):
        """Raise an error in a callback."""
        raise ValueError("on purpose")

    with pytest.raises(ValueError, match="on purpose"):
        dist.all_reduce(torch.ones(1), async_op=True).get_future().then(fails).then(
            lambda f: f.value()
        ).wait()
    # A future of recv that is late does not hold up the others.
    y = torch.zeros(1)
    if rank == 0:
        late = dist.irecv(y, 1).get_future()
    assert dist.all_reduce(torch.ones(1), async_op=True).get_future().wait()[0].item() == size
    if rank == 1:
        dist.send(torch.ones(1), 0)
    if rank == 0:
        assert late.wait()[0].item() == 1
    for i in range(600):  # works that nobody waits for
        dist.all_reduce(torch.ones(1), async_op=True)
    dist.barrier()


def test_works_and_futures():
    """Works and futures behave as torch's own, and callbacks run in the same order on every
    rank.
    """
    world(2, _check_works)


def _check_sparse_sum():
    """Check the sum of sparse tensors."""
    rank, size = _init_group()
    indices = torch.tensor([[rank, rank + 1, rank]])
    x = torch.sparse_coo_tensor(indices, torch.ones(3, 2), (size + 1, 2))
    want = torch.zeros(size + 1, 2)
    for r in range(size):
        want += torch.sparse_coo_tensor(
            torch.tensor([[r, r + 1, r]]), torch.ones(3, 2), (size + 1, 2)
        ).to_dense()
    dist.all_reduce(x)
    _expect_same(x.to_dense(), want)


def test_sparse_sum():
    """The sum of sparse tensors is that of their dense forms."""
    world(3, _check_sparse_sum)


def _make_different_calls(kind):
    """Make a call that differs between the ranks in its `kind`: "shape", "dtype" or "call"; return
    the text of its error, and the sum over the ranks of 1 by the next call.
    """
    rank, size = _init_group()
    x = torch.zeros(
        4 + rank if kind == "shape" else 4,
        dtype=torch.float64 if kind == "dtype" and rank else torch.float32,
    )
    try:
        if kind == "call" and rank:
            dist.broadcast(x, 0)
        else:
            dist.all_reduce(x)
    except RuntimeError as error:
        y = torch.ones(1)
        dist.all_reduce(y)  # the group goes on
        return [str(error), y.item()]
    return ["no error", 0]


@pytest.mark.parametrize(
    "kind, words",
    [("shape", ["[4]", "[5]"]), ("dtype", ["f32", "f64"]), ("call", ["all_reduce", "broadcast"])],
)
def test_a_mismatch_names_both_calls_on_both_ranks(kind, words):
    """Both ranks get an error that names the calls of both, and the next call succeeds."""
    for text, after in world(2, _make_different_calls, kind):
        assert "rank 0" in text and "rank 1" in text and all(word in text for word in words), text
        assert after == 2


def _wait_for_failed_future():
    """Make a call that differs between the ranks; return the text of what its future raises."""
    rank, _ = _init_group()
    future = dist.all_reduce(torch.zeros(2 + rank), async_op=True).get_future()
    try:
        future.wait()
    except RuntimeError as error:
        return str(error)
    return "no error"


def test_a_future_raises_too():
    """The error of a call is raised by its future as well."""
    for text in world(2, _wait_for_failed_future):
        assert "rank 0" in text and "rank 1" in text, text


def _make_refused_calls():
    """Make calls that mean nothing, which must raise errors; return the texts of these."""
    rank, _ = _init_group()
    texts = []
    for call in (
        lambda: dist.all_reduce(torch.zeros(2, dtype=torch.complex64), dist.ReduceOp.MAX),
        lambda: dist.all_reduce(torch.zeros(2).to_sparse(), dist.ReduceOp.MAX),
        lambda: dist.reduce_scatter(torch.zeros(1), [torch.zeros(1, dtype=torch.int64)] * 2),
    ):
        with pytest.raises((RuntimeError, ValueError)) as caught:
            call()
        texts.append(str(caught.value))
    return texts


def test_calls_without_meaning_are_refused():
    """Each such call raises an error with a text, on every rank."""
    for texts in world(2, _make_refused_calls):
        assert all(texts)


def _check_wrong_size():
    """Check that a group with another size than the job's is refused."""
    import shoal.torch  # noqa: F401

    with pytest.raises(RuntimeError, match="shoal run -n 1"):
        dist.init_process_group("shoal", store=dist.HashStore(), rank=0, world_size=1)


def test_a_group_that_is_not_the_job_is_refused():
    """A world size other than the job's raises RuntimeError, with the command that would start
    one.
    """
    world(2, _check_wrong_size)


def _fail_on_one_rank():
    """End rank 1 with exit code 3, while the other waits for it."""
    rank, _ = _init_group()
    if rank == 1:
        raise SystemExit(3)
    dist.barrier()


def test_a_rank_that_fails_ends_the_job():
    """A rank that waits for one that has failed does not hang: the job fails."""
    with pytest.raises(Failed):
        world(2, _fail_on_one_rank)


if __name__ == "__main__":
    main(globals())
