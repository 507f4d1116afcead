"""A character-level GPT that learns to write like Newton, trained with DistributedDataParallel by
workers that may come and go.

    $ TEXT=$(go env GOROOT)/src/testdata/Isaac.Newton-Opticks.txt
    $ shoal run -n 2 -- python3 examples/gpt/char_gpt.py $TEXT
    [0] 113,792 parameters, 567,038 characters of 91 kinds
    [0] step   50  loss 3.1642
    [0] step  100  loss 2.6687
    ...
    [0] step  300  loss 2.4294
    [0] 2 workers trained 300 steps; it writes:
    [0] The Rays...

The text is part of every Go installation. A second argument is the number of steps. Works alone,
too.
"""

import sys

import shoal
import shoal.torch
import torch
from model import GPT
from torch.nn import functional as F

BATCH, RATE, SEED = 16, 3e-3, 1


class Windows(torch.utils.data.Dataset):
    """The windows of a text: `context` characters, and those that follow each of them."""

    def __init__(self, text, context):
        """Of a tensor with the number of each character."""
        self.text, self.context = text, context

    def __len__(self):
        """How many windows there are."""
        return len(self.text) - self.context

    def __getitem__(self, start):
        """The window that begins at a character."""
        window = self.text[start : start + self.context + 1]
        return window[:-1], window[1:]


def train(job, path, steps):
    """Trains on a text file for so many steps and returns the loss of every global batch, which
    does not depend on the number of workers. Rank 0 prints.
    """
    with open(path, encoding="utf-8") as file:
        book = file.read()
    alphabet = sorted(set(book))
    text = torch.tensor([alphabet.index(character) for character in book])
    torch.manual_seed(SEED)
    model = GPT(len(alphabet))
    loader = shoal.torch.loader(Windows(text, model.context), BATCH, seed=SEED, steps=steps)
    if job.rank == 0 and not job.outside:
        parameters = sum(p.numel() for p in model.parameters())
        print(
            f"{parameters:,} parameters, {len(book):,} characters of {len(alphabet)} kinds",
            flush=True,
        )
    ddp = shoal.torch.ddp(model)
    optimizer = shoal.torch.optimizer(torch.optim.AdamW(ddp.parameters(), lr=RATE))
    losses = []
    for x, y in loader:
        loss = F.cross_entropy(ddp(x).flatten(0, 1), y.flatten())
        # the loss over all workers, in the step that the gradient commits
        mean = loader.step.share(loss.detach().clone(), last=False)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(mean.wait().item())
        step = loader.step.number + 1
        if job.rank == 0 and (step % 50 == 0 or step == steps):
            shown = losses[-50:]
            job.report(step=step, loss=sum(shown) / len(shown), samples=step * BATCH)
            print(f"step {step:4d}  loss {sum(shown) / len(shown):.4f}", flush=True)
    if job.rank == 0 and not job.released:
        print(f"{job.size} workers trained {steps} steps; it writes:")
        start = torch.tensor([[alphabet.index(c) for c in "The Rays"]])
        written = "".join(alphabet[i] for i in model.write(start, 150)[0].tolist())
        print(" ".join(written.split()))
    return losses


if __name__ == "__main__":
    if len(sys.argv) < 2:
        sys.exit(
            "usage: char_gpt.py TEXT [STEPS]; a text is $(go env"
            " GOROOT)/src/testdata/Isaac.Newton-Opticks.txt"
        )
    train(shoal.join(), sys.argv[1], steps=int(sys.argv[2]) if len(sys.argv) > 2 else 300)
