"""A character-level GPT that learns to write like Newton, trained with DistributedDataParallel on shoal.

    $ shoal run -n 2 -- python3 examples/gpt/char_gpt.py $(go env GOROOT)/src/testdata/Isaac.Newton-Opticks.txt
    [0] 113,792 parameters, 567,038 characters of 91 kinds
    [0] step   50  loss 3.1642
    [0] step  100  loss 2.6687
    ...
    [0] step  300  loss 2.4294
    [0] 2 workers trained 300 steps; it writes:
    [0] The Rays...

The text is part of every Go installation. A second argument is the number of steps. Works alone, too.
"""

import sys

import shoal
import shoal.torch
import torch
from model import GPT
from torch.nn import functional as F

BATCH, RATE, SEED = 16, 3e-3, 1


def windows(text, context, batch, generator):
    """Batch windows of the text, (batch, context), and the characters that follow each place of them."""
    starts = torch.randint(len(text) - context, (batch, 1), generator=generator)
    places = starts + torch.arange(context)
    return text[places], text[places + 1]


def train(job, path, steps):
    """Trains and returns the loss of every global batch, which does not depend on the number of workers."""
    with open(path, encoding="utf-8") as file:
        book = file.read()
    alphabet = sorted(set(book))
    text = torch.tensor([alphabet.index(character) for character in book])
    torch.manual_seed(SEED)
    model = GPT(len(alphabet))
    if job.rank == 0:
        parameters = sum(p.numel() for p in model.parameters())
        print(f"{parameters:,} parameters, {len(book):,} characters of {len(alphabet)} kinds", flush=True)
    ddp = shoal.torch.ddp(model)
    optimizer = torch.optim.AdamW(ddp.parameters(), lr=RATE)
    generator, losses, shown = torch.Generator().manual_seed(SEED), torch.zeros(steps), 0
    first, end = job.rank * BATCH // job.size, (job.rank + 1) * BATCH // job.size
    for step in range(1, steps + 1):
        x, y = windows(text, model.context, BATCH, generator)  # the same on all ranks, of which each takes its rows
        # This rank's part of the mean over the global batch. DDP takes the mean of the ranks' gradients: hence job.size.
        loss = F.cross_entropy(ddp(x[first:end]).flatten(0, 1), y[first:end].flatten(), reduction="sum") / y.numel()
        optimizer.zero_grad()
        (loss * job.size).backward()
        optimizer.step()
        losses[step - 1] = loss.detach()
        if step % 50 == 0 or step == steps:
            job.allreduce(losses[shown:step], op="sum")
            if job.rank == 0:
                loss = losses[shown:step].mean().item()
                job.report(step=step, loss=loss, samples=step * BATCH)
                print(f"step {step:4d}  loss {loss:.4f}", flush=True)
            shown = step
    if job.rank == 0:
        print(f"{job.size} workers trained {steps} steps; it writes:")
        start = torch.tensor([[alphabet.index(c) for c in "The Rays"]])
        written = "".join(alphabet[i] for i in model.write(start, 150)[0].tolist())
        print(" ".join(written.split()))
    return losses.tolist()


if __name__ == "__main__":
    if len(sys.argv) < 2:
        sys.exit("usage: char_gpt.py TEXT [STEPS]; a text is $(go env GOROOT)/src/testdata/Isaac.Newton-Opticks.txt")
    train(shoal.join(), sys.argv[1], steps=int(sys.argv[2]) if len(sys.argv) > 2 else 300)
