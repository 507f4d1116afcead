"""Times whole steps of data-parallel training: one worker of bench/peers/step.py and
bench/hosts/compress.py.

usage: step_worker.py WAY MODEL STEPS [COMPRESS]

WAY is gloo or shoal (torch's DistributedDataParallel in a plain loop, on that backend) or elastic
(the loop of shoal.torch.loader, whose workers may come and go). With gloo it starts the SIZE
workers itself, for shoal it is one of them. Every way trains the same model on the same batches, so
they must end with the same loss. With COMPRESS, elastic compresses gradients. Rank 0 prints BEGIN
after the warm-up, and in the end one JSON object.
"""

import json
import os
import pathlib
import statistics
import subprocess
import sys
import time

import torch
from torch import nn
from torch.nn import functional as F

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "python"), str(ROOT / "examples" / "gpt")]
BATCH, VOCABULARY, CONTEXT, WARM_UP = 16, 91, 32, 3  # the batch is that of all workers together


class Block(nn.Module):
    """A residual block (He et al. 2016) with group norm, which needs no statistics: maps (batch,
    width, y, x) to the same shape.
    """

    def __init__(self, width):
        """Random parameters; 4 divides width."""
        super().__init__()
        self.layers = nn.Sequential(
            nn.Conv2d(width, width, 3, padding=1),
            nn.GroupNorm(4, width),
            nn.ReLU(),
            nn.Conv2d(width, width, 3, padding=1),
            nn.GroupNorm(4, width),
        )

    def forward(self, x):
        """Maps a batch through the block."""
        return F.relu(x + self.layers(x))


def resnet(blocks, width):
    """Returns a residual network of so many blocks for images of 3×8×8, with a class for each
    character.
    """
    return nn.Sequential(
        nn.Conv2d(3, width, 3, padding=1),
        *(Block(width) for _ in range(blocks)),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(width, VOCABULARY),
    )


def gpt(width, layers):
    """Returns the GPT of the examples in a size."""
    from model import GPT

    return GPT(VOCABULARY, CONTEXT, width, 4, layers)


MODELS = {
    "gpt": lambda: gpt(64, 2),  # as in examples/gpt
    "gpt-1M": lambda: gpt(128, 4),
    "gpt-3M": lambda: gpt(256, 4),
    "gpt-13M": lambda: gpt(512, 4),
    "resnet": lambda: resnet(6, 32),
    "resnet-5M": lambda: resnet(8, 192),
}


def samples(model, count):
    """Returns the inputs and targets of a whole training of `count` samples, the same for the same
    model's name.
    """
    generator = torch.Generator().manual_seed(1)
    if model.startswith("gpt"):
        text = torch.randint(VOCABULARY, (count, CONTEXT + 1), generator=generator)
        return text[:, :-1], text[:, 1:]
    return torch.randn(count, 3, 8, 8, generator=generator), torch.randint(
        VOCABULARY, (count,), generator=generator
    )


def processor_seconds(rank):
    """Returns the processor time of this worker in seconds; of rank 0 also that of the process that
    has started it, which for shoal is the agent.
    """
    ticks = (
        pathlib.Path(f"/proc/{os.getppid()}/stat").read_text().rpartition(")")[2].split()[11:13]
        if rank == 0
        else []
    )
    return time.process_time() + sum(map(int, ticks)) / os.sysconf("SC_CLK_TCK")


def train(ddp, batches, rank):
    """Trains on the batches, on this worker. Returns the seconds of each step after the warm-up;
    and as a tensor the last loss and the processor time of a step in seconds.
    """
    # A larger rate takes the residual networks over kinks of their ReLUs, where the last bits of a
    # gradient decide a thousandth of the loss.
    optimizer = torch.optim.SGD(ddp.parameters(), lr=0.01)
    times, start = [], time.perf_counter()
    for x, y in batches:
        optimizer.zero_grad(set_to_none=True)
        scores = ddp(x)
        loss = F.cross_entropy(scores.reshape(-1, VOCABULARY), y.reshape(-1))
        loss.backward()
        optimizer.step()
        now = time.perf_counter()
        times.append(now - start)
        start = now
        if len(times) == WARM_UP:
            before = processor_seconds(rank)
            if rank == 0:
                print("BEGIN", flush=True)
    times = times[WARM_UP:]
    return times, torch.tensor(
        [loss.item(), (processor_seconds(rank) - before) / len(times)], dtype=torch.float64
    )


def main():
    """Starts the workers of gloo, or is a worker; rank 0 prints the result."""
    way, name, steps = sys.argv[1], sys.argv[2], int(sys.argv[3])
    if way == "gloo" and "RANK" not in os.environ:
        workers = [
            subprocess.Popen([sys.executable, *sys.argv], env=dict(os.environ, RANK=str(r)))
            for r in range(int(os.environ["SIZE"]))
        ]
        sys.exit(max(abs(w.wait()) for w in workers))
    torch.set_num_threads(1)
    torch.manual_seed(2)
    model, (x, y) = MODELS[name](), samples(name, BATCH * steps)
    if way == "elastic":
        times, sums, rank, size = train_elastic(
            model, x, y, steps, sys.argv[4] if len(sys.argv) > 4 else "none"
        )
    else:
        times, sums, rank, size = train_plain(way, model, x, y)
    if rank == 0:
        result = dict(
            model=name,
            n=size,
            parameters=sum(p.numel() for p in model.parameters()),
            steps=len(times),
        )
        result.update(
            step_ms=1e3 * statistics.median(times),
            cpu_ms=1e3 * sums[1].item(),
            loss=sums[0].item() / size,
        )
        print("RESULT " + json.dumps(result), flush=True)


def train_plain(way, model, x, y):
    """Trains with DistributedDataParallel, on gloo or shoal (`way`), on all samples. Returns what
    train does, the numbers summed over the workers, and rank and size.
    """
    import torch.distributed as dist

    if way == "shoal":
        import shoal.torch

        ddp = shoal.torch.ddp(model)
    else:
        dist.init_process_group(
            "gloo",
            init_method=f"file://{os.environ['STORE']}",
            rank=int(os.environ["RANK"]),
            world_size=int(os.environ["SIZE"]),
        )
        ddp = nn.parallel.DistributedDataParallel(model)
    rank, size = dist.get_rank(), dist.get_world_size()
    own = BATCH // size
    parts = [slice(at + rank * own, at + (rank + 1) * own) for at in range(0, len(x), BATCH)]
    times, sums = train(ddp, ((x[p], y[p]) for p in parts), rank)
    dist.all_reduce(sums)
    return times, sums, rank, size


def train_elastic(model, x, y, steps, compress):
    """Trains in an elastic loop for so many steps, with a form of compression. Returns what
    train_plain does.
    """
    import shoal
    import shoal.torch

    job = shoal.join()
    loader = shoal.torch.loader(
        range(len(x)), BATCH, steps=steps, shuffle=False, collate_fn=lambda i: (x[i], y[i])
    )
    forms = {"none": None, "topk": shoal.torch.TopK(0.01), "powersgd": shoal.torch.PowerSGD(4)}
    ddp = shoal.torch.ddp(model, compress=forms.get(compress, compress))
    times, sums = train(ddp, loader, job.rank)
    return times, job.allreduce(sums), job.rank, job.size


if __name__ == "__main__":
    main()
