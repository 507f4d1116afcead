"""Writes sharded checkpoints with torch's distributed checkpoint, four processes, and what is in them.

    .venv-torch2/bin/python format/dcp/testdata/make.py format/dcp/testdata

Makes dcp.zip (torch's own format), unknown.zip (with an object of a class of this script), and where the package safetensors is installed ../../hf/testdata/sharded.zip (the same
tensors as shards of safetensors). what.json in each has for every tensor element type, shape and bytes, row-major.
"""

import json
import os
import pathlib
import shutil
import sys
import tempfile
import zipfile

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
import torch.multiprocessing as mp
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Replicate, Shard, distribute_tensor


def tensors(mesh):
    def of(*shape, dtype=torch.float32):
        n = torch.Size(shape).numel()
        return torch.arange(n * torch.empty(0, dtype=dtype).element_size(), dtype=torch.uint8).view(dtype).reshape(shape)

    whole = {
        "model.embed.weight": (of(5, 4), [Shard(0), Shard(0)]),
        "model.up.weight": (of(6, 4, dtype=torch.bfloat16), [Shard(0), Shard(1)]),
        "model.down.weight": (of(4, 7), [Replicate(), Shard(1)]),
        "model.norm.weight": (of(4), [Replicate(), Replicate()]),
        "optimizer.exp_avg.up": (of(3, 2), [Shard(0), Replicate()]),
    }
    return {k: t for k, (t, _) in whole.items()}, {k: distribute_tensor(t, mesh, p) for k, (t, p) in whole.items()}


def rank(r, port, out):
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port))
    dist.init_process_group("gloo", rank=r, world_size=4)
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "tp"))
    whole, parts = tensors(mesh)
    state = {**parts, "plain": torch.arange(3), "step": 12, "lr": [0.1, 0.2], "nested": {"scalar": torch.tensor(2.5), "name": "x"}}
    whole |= {"plain": torch.arange(3), "nested.scalar": torch.tensor(2.5)}
    dcp.save(state, checkpoint_id=out / "dcp")
    try:
        dcp.save(parts, storage_writer=dcp.HuggingFaceStorageWriter(path=str(out / "sharded"), save_distributed=True))
    except ImportError:
        print("no package safetensors: sharded.zip is not made", file=sys.stderr)
    if r == 0:
        (out / "what.json").write_text(json.dumps({
            k: [str(t.dtype), list(t.shape), bytes(t.reshape(-1).view(torch.uint8).tolist()).hex()] for k, t in whole.items()
        }, indent=0))
    dist.destroy_process_group()


class Loader:
    """What no reader knows."""


def unknown(out):
    dcp.save({"w": torch.arange(3), "loader": Loader()}, checkpoint_id=out / "unknown", no_dist=True)


def pack(folder, what, to):
    with zipfile.ZipFile(to, "w", zipfile.ZIP_DEFLATED) as z:
        for path in sorted(p for p in folder.rglob("*") if p.is_file()):
            z.writestr(zipfile.ZipInfo(str(path.relative_to(folder))), path.read_bytes(), zipfile.ZIP_DEFLATED)
        if what:
            z.writestr(zipfile.ZipInfo("what.json"), what.read_bytes(), zipfile.ZIP_DEFLATED)


if __name__ == "__main__":
    target, tmp = pathlib.Path(sys.argv[1]), pathlib.Path(tempfile.mkdtemp())
    mp.spawn(rank, args=(29500 + os.getpid() % 1000, tmp), nprocs=4)
    pack(tmp / "dcp", tmp / "what.json", target / "dcp.zip")
    unknown(tmp)
    pack(tmp / "unknown", None, target / "unknown.zip")
    if (tmp / "sharded").exists():
        (target / "../../hf/testdata").mkdir(exist_ok=True)
        pack(tmp / "sharded", tmp / "what.json", target / "../../hf/testdata/sharded.zip")
    shutil.rmtree(tmp)
