"""shoal.state with what FSDP and tensor parallelism make of a model, together and each alone.
`_save` and `_load` run on each rank of a job, in its own process.
"""

import types

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("torch.distributed.tensor")
from torch import nn
from torch.distributed.tensor import DTensor, Partial, Replicate, Shard
from torch.distributed.tensor.placement_types import _StridedShard
from torch_world import main, world

from shoal._checkpoint.placements import dtensor_placement


class _Tensor(torch.Tensor):
    """A tensor that can be given a mesh and placements, as a DTensor has, without processes."""


def _place(ranks, *placements, root=None):
    """What dtensor_placement says, (mesh, place), of a DTensor with these placements on a mesh of
    these ranks, cut from a root mesh if that is given: nested lists of ranks.
    """
    ranks, root = torch.tensor(ranks), root and torch.tensor(root)
    mesh = types.SimpleNamespace(mesh=ranks, mesh_dim_names=None)
    if root is not None:
        whole = types.SimpleNamespace(mesh=root, mesh_dim_names=["Dp", "cp", "tp"][: root.ndim])
        mesh._get_root_mesh = lambda: whole
    x = torch.empty(8, 8, 8).as_subclass(_Tensor)
    x.placements, x.device_mesh = placements, mesh
    return dtensor_placement(x)


SQUARE = [[0, 1], [2, 3]]
CUBE = [[[0, 1], [2, 3]], [[4, 5], [6, 7]]]


def test_a_strided_shard_is_cut_after_those_that_its_factor_counts():
    """The axes of a tensor come in the order in which torch cuts: a strided shard after the later
    axes that its factor counts.
    """
    twice = [_StridedShard(0, split_factor=2), Shard(-3)]
    assert _place(SQUARE, *twice) == ("d0=2,d1=2", "d1=shard(0,ceil), d0=shard(0,ceil)")
    assert _place(SQUARE, Shard(0), Shard(0))[1] == "d0=shard(0,ceil), d1=shard(0,ceil)"
    assert _place(SQUARE, Replicate(), Shard(1))[1] == "d1=shard(1,ceil)"
    assert _place([[0], [1]], Shard(0), Shard(0))[1] == "d0=shard(0,ceil)"
    last = [_StridedShard(1, split_factor=4), Shard(1), Shard(1)]
    assert _place(CUBE, *last)[1] == ", ".join(f"{a}=shard(1,ceil)" for a in ("d1", "d2", "d0"))
    both = [_StridedShard(1, split_factor=2), _StridedShard(1, split_factor=2), Shard(1)]
    assert _place(CUBE, *both)[1] == ", ".join(f"{a}=shard(1,ceil)" for a in ("d2", "d0", "d1"))


def test_a_mesh_that_is_cut_from_another():
    """The place is on the axes of the root mesh, also where two of them were made one."""
    assert _place([5, 7], Shard(0), root=CUBE) == ("dp=2,cp=2,tp=2", "cp=shard(0,ceil)")
    assert _place([[1, 5], [3, 7]], Shard(0), Shard(1), root=CUBE)[1] == (
        "dp=shard(1,ceil), cp=shard(0,ceil)"
    )
    assert _place([1, 3, 5, 7], Shard(0), root=CUBE)[1] == "dp*cp=shard(0,ceil)"
    assert _place([2], Shard(0), root=SQUARE)[1] == ""


@pytest.mark.parametrize(
    "ranks, placement, root, why",
    [
        (SQUARE, Partial("avg"), None, r"is Partial\(avg\) on the axis d0; redistribute it"),
        (SQUARE, _StridedShard(0, split_factor=3), None, "cut that dimension into 1, not into 3"),
        (SQUARE, type("Odd", (Shard,), {})(0), None, "does not know Odd: redistribute it"),
        ([1, 0], Shard(0), None, r"lies on the ranks \[1, 0\]: shoal.state takes DTensors on"),
        ([0, 3], Shard(0), SQUARE, r"the ranks \[0, 3\], which are no axis of the mesh"),
    ],
    ids=["partial", "strided", "unknown", "order", "axis"],
)
def test_what_is_not_known_is_refused(ranks, placement, root, why):
    """A placement or a mesh that a layout cannot express raises ValueError with what to do."""
    others = [Replicate()] * (torch.tensor(ranks).ndim - 1)
    with pytest.raises(ValueError, match=why):
        _place(ranks, placement, *others, root=root)


class _Net(nn.Module):
    """A model with sizes that come out uneven where two axes cut them."""

    def __init__(self, seed):
        """Make the model with random parameters."""
        super().__init__()
        torch.manual_seed(seed)
        self.up, self.down, self.norm = nn.Linear(6, 10), nn.Linear(10, 6), nn.LayerNorm(6)
        nn.init.normal_(self.norm.weight)

    def forward(self, x):
        """The outputs."""
        return self.norm(self.down(torch.relu(self.up(x))))


def _parallel(net, tensor=None, data=None):
    """Change a _Net to tensor parallelism on the mesh `tensor` and FSDP on the mesh `data`, None =
    without; return it. All ranks call it.
    """
    from torch.distributed.fsdp import fully_shard
    from torch.distributed.tensor.parallel import (
        ColwiseParallel,
        RowwiseParallel,
        parallelize_module,
    )

    if tensor is not None:
        parallelize_module(net, tensor, {"up": ColwiseParallel(), "down": RowwiseParallel()})
    if data is not None:
        fully_shard(net, mesh=data)
    return net


def _differences(net, whole):
    """The names of the parameters that are not the same in the whole model. All ranks call it, and
    wait for each other.
    """
    with torch.no_grad():
        return [
            name
            for name, p in net.named_parameters()
            if not torch.equal(
                p.full_tensor() if isinstance(p, DTensor) else p, whole.get_parameter(name)
            )
        ]


def _save(folder):
    """Save a model from meshes of four ranks into folders in `folder`, with the state of its
    optimizer; return the texts of the errors of what is refused.
    """
    import shoal.torch
    from torch.distributed.device_mesh import init_device_mesh

    torch.set_num_threads(1)
    torch.distributed.init_process_group("shoal")
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "tp"))
    tp = _parallel(_Net(1), tensor=mesh["tp"])
    shoal.state.save(tp.state_dict(), f"{folder}/tp")
    one = _parallel(_Net(1), data=mesh["dp", "tp"]._flatten("all"))
    shoal.state.save(one.state_dict(), f"{folder}/flat")
    net = _parallel(_Net(1), tensor=mesh["tp"], data=mesh["dp"])
    assert any(isinstance(p, _StridedShard) for p in net.up.weight.placements)
    shoal.state.save(net.state_dict(), f"{folder}/both")
    # What an optimizer has lies as the parameters do.
    optimizer = torch.optim.SGD(net.parameters(), lr=1.0, momentum=0.9)
    net(torch.ones(2, 6)).square().sum().backward()
    optimizer.step()
    state = {name: optimizer.state[p]["momentum_buffer"] for name, p in net.named_parameters()}
    shoal.state.save(state, f"{folder}/momentum")
    kept = {name: x.to_local().clone() for name, x in state.items()}
    for x in state.values():
        x.to_local().zero_()
    shoal.state.load(state, f"{folder}/momentum")
    assert all(torch.equal(x.to_local(), kept[name]) for name, x in state.items())
    other = _parallel(_Net(2), tensor=mesh["tp"], data=mesh["dp"])
    shoal.state.load(other.state_dict(), f"{folder}/flat")
    assert not _differences(other, _Net(1))
    sums = {"x": {"y": DTensor.from_local(torch.ones(2), mesh["tp"], [Partial()])}}
    said = []
    for call in (shoal.state.save, shoal.state.load):
        try:
            call(sums, f"{folder}/sums")
        except shoal.ShoalError as err:
            said.append(str(err))
    return said


def _load(folder):
    """Load the model that `_save` has written on meshes of two ranks; return the names of the
    parameters that differ.
    """
    import shoal.torch
    from torch.distributed.device_mesh import init_device_mesh

    torch.set_num_threads(1)
    torch.distributed.init_process_group("shoal")
    mesh = init_device_mesh("cpu", (1, 2), mesh_dim_names=("dp", "tp"))
    differ = []
    for name in ("tp", "flat", "both"):
        for options in ({"tensor": mesh["tp"]}, {"data": mesh["tp"]}):
            net = _parallel(_Net(2), **options)
            shoal.state.load(net.state_dict(), f"{folder}/{name}")
            differ += _differences(net, _Net(1))
    return differ


@pytest.mark.skipif(
    torch.__version__ < (2, 11),
    reason="its FSDP does not compute on the CPU, or takes no parts that are uneven",
)
def test_fsdp_with_tensor_parallelism(tmp_path):
    """A model is saved once from four ranks, and read back on two, cut otherwise."""
    for said in world(4, _save, str(tmp_path)):
        for operation, text in zip(("save", "load"), said):
            assert text.startswith(f"shoal.state.{operation}: rank 0: tensor x.y has no value of")
        assert len(said) == 2
    whole = sum(p.numel() * p.element_size() for p in _Net(1).parameters())
    for name in ("tp", "flat", "both"):
        assert sum(map(_data_bytes, (tmp_path / name).glob("rank-*.safetensors"))) == whole
    assert world(2, _load, str(tmp_path)) == [[], []]


def _data_bytes(path):
    """The bytes of the tensors in a safetensors file."""
    return path.stat().st_size - 8 - int.from_bytes(path.read_bytes()[:8], "little")


if __name__ == "__main__":
    main(globals())
