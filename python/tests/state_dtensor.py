"""A worker of test_state.py: saves DTensors from a mesh of four ranks and loads them on others."""

import sys

import torch
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Partial, Replicate, Shard
from torch.distributed.tensor.placement_types import _StridedShard

import shoal
import shoal.torch  # noqa: F401  the backend


def whole(*shape):
    """A tensor of this shape whose elements all differ, in float64."""
    return torch.arange(torch.Size(shape).numel(), dtype=torch.float64).view(shape)


WHOLE = {
    "both": whole(12, 6),
    "uneven": whole(7, 3).to(torch.bfloat16),
    "few": whole(2, 4),
    "twice": whole(11),
    "plain": whole(3).to(torch.int32),
}


def chunk(x, dim, parts, i):
    """What torch.chunk gives to part i of `parts` along `dim`: a view, which may be empty."""
    chunks = x.chunk(parts, dim)
    return chunks[i] if i < len(chunks) else x.narrow(dim, 0, 0)


def dtensor_of(mesh, x, placements):
    """A DTensor of which this rank has what the placements say of the whole tensor x, cut here by
    hand: strided shards after all others.
    """
    part = x
    for strided in False, True:
        for axis, p in enumerate(placements):
            if type(p) is (_StridedShard if strided else Shard):
                part = chunk(part, p.dim, mesh.size(axis), mesh.get_local_rank(axis))
    return DTensor.from_local(
        part.contiguous().clone(),
        mesh,
        placements,
        run_check=False,
        shape=x.shape,
        stride=x.stride(),
    )


def state(mesh, placements):
    """The values of WHOLE as DTensors on a mesh, with these placements by name, and one plain
    tensor.
    """
    return {name: dtensor_of(mesh, WHOLE[name], placements[name]) for name in placements} | {
        "plain": WHOLE["plain"].clone()
    }


def set_to_zero(tensors):
    """Set the parts of tensors that are here to 0, in place; return the same dict."""
    for x in tensors.values():
        getattr(x, "_local_tensor", x).zero_()
    return tensors


def equal(tensors, others):
    """Whether the parts of tensors that are on this rank are equal to those of `others`."""
    return all(
        torch.equal(
            getattr(x, "_local_tensor", x), getattr(others[name], "_local_tensor", others[name])
        )
        for name, x in tensors.items()
    )


if __name__ == "__main__":
    folder = sys.argv[1]
    torch.distributed.init_process_group("shoal")
    square = init_device_mesh("cpu", (2, 2), mesh_dim_names=("DP", "tp"))
    line = init_device_mesh("cpu", (4,))
    on_square = {
        "both": [Shard(0), Shard(1)],
        "uneven": [Replicate(), Shard(-2)],
        "few": [Shard(0), Replicate()],
        "twice": [_StridedShard(0, split_factor=2), Shard(0)],
    }
    on_line = {"both": [Shard(1)], "uneven": [Shard(0)], "few": [Shard(0)], "twice": [Replicate()]}
    shoal.state.save({"model": state(square, on_square)}, folder)
    for mesh, placements in (square, on_square), (line, on_line):
        tensors = set_to_zero(state(mesh, placements))
        shoal.state.load({"model": tensors}, folder)
        assert equal(tensors, state(mesh, placements)), (mesh, tensors)
    # Beside DTensors a tensor that is cut by hand, of which a layout tells.
    rows = {"rows": whole(4, 2)[2 * square.get_local_rank(1) :][:2].clone()}
    names = {torch.float64: "f64", torch.bfloat16: "bf16", torch.int32: "i32"}
    catalogue = [
        {"name": name, "dtype": names[x.dtype], "shape": list(x.shape)}
        for name, x in {**WHOLE, "rows": whole(4, 2)}.items()
    ]
    where = {
        "layout": {"rules": [{"match": "rows", "place": "tp=shard(0)"}, {"match": "**"}]},
        "catalogue": catalogue,
    }
    shoal.state.save(state(square, on_square) | rows, folder + "-mixed", **where)
    tensors = set_to_zero(state(square, on_square) | {"rows": rows["rows"].clone()})
    shoal.state.load(tensors, folder + "-mixed", **where)
    assert equal(tensors, state(square, on_square) | rows), tensors
    try:
        shoal.state.save(
            {"sum": DTensor.from_local(whole(3), line, [Partial()], run_check=False)},
            folder + "-other",
        )
    except shoal.ShoalError as err:
        assert "tensor sum has no value of its own on a rank" in str(err), err
        print("EQUAL")
