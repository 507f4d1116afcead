"""The time of torch.distributed's in-place all-reduce over gloo, float32 sum, for each size given
in bytes.

usage: allreduce_gloo.py N BYTES…

Starts N processes that talk over loopback TCP, one torch thread each. Rank 0 prints one JSON object
a size; the method is that of shoal/bench.py.
"""

import json
import os
import pathlib
import subprocess
import sys
import tempfile

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "python"))


def run_rank(store: str, rank: int, ranks: int, sizes: list) -> bool:
    """Measures every size in bytes as one rank, together with the others, which meet in the file
    `store`; rank 0 prints. Returns whether all results were right.
    """
    import torch
    import torch.distributed as dist

    from shoal.bench import measure

    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=ranks)

    def slowest(values):
        """Returns the largest of each value over all ranks."""
        largest = torch.tensor(values, dtype=torch.float64)
        dist.all_reduce(largest, dist.ReduceOp.MAX)
        return largest.tolist()

    good = True
    for nbytes in sizes:
        x = torch.zeros(nbytes // 4, dtype=torch.float32)
        line = measure(x, x.numpy(), rank, ranks, dist.all_reduce, dist.barrier, slowest)
        good = good and line["verified"] == 1.0
        if rank == 0:
            line.update(n=ranks, dtype="f32", verified=line["verified"] == 1.0)
            print(json.dumps(line), flush=True)
    dist.barrier()
    dist.destroy_process_group()
    return good


def main() -> int:
    """Runs one rank, or starts all of them; returns the exit status."""
    if len(sys.argv) < 3:
        print("usage: allreduce_gloo.py N BYTES…", file=sys.stderr)
        return 2
    ranks, sizes = int(sys.argv[1]), [int(b) for b in sys.argv[2:]]
    if "GLOO_RANK" in os.environ:
        return (
            0
            if run_rank(os.environ["GLOO_STORE"], int(os.environ["GLOO_RANK"]), ranks, sizes)
            else 1
        )
    with tempfile.TemporaryDirectory() as folder:
        env = dict(
            os.environ, GLOO_STORE=f"{folder}/store", GLOO_SOCKET_IFNAME="lo", OMP_NUM_THREADS="1"
        )
        workers = [
            subprocess.Popen([sys.executable, *sys.argv], env=dict(env, GLOO_RANK=str(r)))
            for r in range(ranks)
        ]
        return max(abs(w.wait()) for w in workers)


if __name__ == "__main__":
    sys.exit(main())
