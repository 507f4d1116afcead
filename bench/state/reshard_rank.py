"""What one rank does with torch and safetensors; bench/state/reshard.py starts as many as there
are, with RANK and WORLD_SIZE.

    reshard_rank.py save STATE DST DIM     cuts the tensors of a safetensors file over the ranks and
                                           saves a distributed checkpoint
    reshard_rank.py reshard SRC DST DIM    loads one for the shards of these ranks, and saves it
                                           again
    reshard_rank.py slice STATE DST DIM    reads its shards out of a safetensors file, and writes
                                           them to a file of its own

The last two print how long the work took, from a barrier to a barrier: start, imports, process
group and memory of the shards are not counted.
"""

import os
import sys
import time

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from safetensors import safe_open
from safetensors.torch import save_file
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Shard


def main():
    """Does what the command line says, as one of the ranks."""
    what, src, dst, dim = sys.argv[1:4] + [int(sys.argv[4])]
    rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    torch.set_num_threads(1)  # as torchrun does
    dist.init_process_group(
        "gloo", init_method=f"file://{os.environ['RENDEZVOUS']}", rank=rank, world_size=size
    )
    mesh = init_device_mesh("cpu", (size,))
    if what == "save":
        with safe_open(src, "pt") as f:
            dcp.save(
                {name: distribute(f.get_slice(name), mesh, rank, dim) for name in f.keys()},
                checkpoint_id=dst,
            )
    elif what == "reshard":
        metadata = dcp.FileSystemReader(src).read_metadata().state_dict_metadata
        state = {
            name: torch.distributed.tensor.ones(
                t.size, dtype=t.properties.dtype, device_mesh=mesh, placements=[Shard(dim)]
            )
            for name, t in metadata.items()
        }
        print_times(
            rank,
            lambda: dcp.load(state, checkpoint_id=src),
            lambda: dcp.save(state, checkpoint_id=dst),
        )
    elif what == "slice":
        state = {}

        def read():
            """Reads the shards of this rank into state."""
            with safe_open(src, "pt") as f:
                state.update(
                    {
                        name: cut(f.get_slice(name), rank, size, dim).contiguous()
                        for name in f.keys()
                    }
                )

        print_times(rank, read, lambda: save_file(state, f"{dst}/rank-{rank:05d}.safetensors"))
    dist.destroy_process_group()


def distribute(whole, mesh, rank, dim):
    """Returns a tensor of a file as a DTensor, of which this rank has its shard."""
    shape = torch.Size(whole.get_shape())
    local = cut(whole, rank, mesh.size(), dim).contiguous()
    return DTensor.from_local(
        local, mesh, [Shard(dim)], shape=shape, stride=torch.empty(shape, device="meta").stride()
    )


def cut(whole, rank, size, dim):
    """Returns the shard of a rank along a dimension, 0 or 1, as torch.chunk cuts it."""
    n = whole.get_shape()[dim]
    each = -(-n // size)
    part = slice(min(rank * each, n), min((rank + 1) * each, n))
    return whole[part] if dim == 0 else whole[:, part]


def print_times(rank, load, save):
    """Calls load() and then save() together with the other ranks; rank 0 prints the seconds of
    each.
    """
    dist.barrier()
    started = time.time()
    load()
    dist.barrier()
    loaded = time.time()
    save()
    dist.barrier()
    if rank == 0:
        print(loaded - started, time.time() - loaded)


if __name__ == "__main__":
    main()
