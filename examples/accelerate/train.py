"""A small GPT-2 learns to write like Newton in the plain loop of Accelerate, on workers that may
come and go. One line is not Accelerate's own: the import of Accelerator.

    $ TEXT=$(go env GOROOT)/src/testdata/Isaac.Newton-Opticks.txt
    $ shoal run -n 2 -- python3 examples/accelerate/train.py $TEXT
    [0] step    1  loss 5.5556
    [0] step   21  loss 3.1446
    ...
    [0] loss 3.1575 on 156 windows that it has not seen
"""

import sys

import torch
from shoal.accelerate import Accelerator
from torch.utils.data import DataLoader
from transformers import GPT2Config, GPT2LMHeadModel, get_scheduler

CONTEXT, EPOCHS = 64, 2


def windows(text):
    """The rows of CONTEXT bytes of a text, without a rest."""
    return torch.tensor(list(text[: len(text) // CONTEXT * CONTEXT])).view(-1, CONTEXT)


def main(path):
    with open(path, "rb") as file:
        text = file.read()[:140_000]
    accelerator = Accelerator(gradient_accumulation_steps=2)
    torch.manual_seed(1)
    shape = dict(vocab_size=256, n_positions=CONTEXT, n_embd=64, n_layer=2, n_head=4)
    model = GPT2LMHeadModel(GPT2Config(bos_token_id=0, eos_token_id=0, **shape))
    loader = DataLoader(windows(text[:-10_000]), batch_size=16, shuffle=True)
    held = DataLoader(windows(text[-10_000:]), batch_size=16)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    schedule = get_scheduler("linear", optimizer, 5, EPOCHS * len(loader) // 2)
    model, optimizer, loader, held, schedule = accelerator.prepare(
        model, optimizer, loader, held, schedule
    )
    for _ in range(EPOCHS):
        for i, batch in enumerate(loader, 1):
            with accelerator.accumulate(model):
                loss = model(batch, labels=batch).loss
                accelerator.backward(loss)
                optimizer.step()
                schedule.step()
                optimizer.zero_grad()
            if i % 40 == 2:
                accelerator.print(f"step {i // 2:4d}  loss {loss.item():.4f}", flush=True)
        with torch.no_grad():
            losses = [
                accelerator.gather_for_metrics(model(x, labels=x).loss.repeat(len(x))) for x in held
            ]
    mean, rows = torch.cat(losses).mean().item(), len(torch.cat(losses))
    accelerator.print(f"loss {mean:.4f} on {rows} windows that it has not seen")


if __name__ == "__main__":
    main(sys.argv[1])
