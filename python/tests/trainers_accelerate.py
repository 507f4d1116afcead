"""A worker that trains with Accelerate, in the loop of its own examples, and writes down what each
step had.

    trainers_accelerate.py CONFIG END

CONFIG is JSON: `out` a folder, and what it has of DEFAULTS: `gates` steps to wait at, `resume` how
many batches were done before, None = none, `save` the step after which Accelerate saves,
`checkpoint` a folder for the checkpoints of the job, one every `save` steps, and `breaks` whether
the loop over epochs ends where the job is stopped. END is not used.
"""

import json
import pathlib
import sys

import torch
from accelerate.utils import ProjectConfiguration
from shoal.accelerate import Accelerator
from trainers_common import (
    Data,
    Gates,
    Net,
    append_json_line,
    make_optimizer,
    make_scheduler,
    worker_number,
)

import shoal

DEFAULTS = dict(
    samples=96,
    batch=4,
    accumulate=2,
    epochs=3,
    gates=[],
    resume=None,
    save=None,
    checkpoint=None,
    breaks=False,
)


def main(config):
    """Train as the config says; return the rank, the size, how many samples the last evaluation had
    and its accuracy, which all workers must have found alike.
    """
    config = {**DEFAULTS, **config}
    accelerator = Accelerator(
        cpu=True,
        gradient_accumulation_steps=config["accumulate"],
        mixed_precision="no",
        project_config=ProjectConfiguration(config["out"], automatic_checkpoint_naming=True),
    )
    job, out = shoal.join(), pathlib.Path(config["out"])
    gates, file = Gates(out, config["gates"]), open(out / f"ledger-{worker_number()}.jsonl", "a")
    net, held = Net(config["samples"]), Data(37, seed=1)
    batch, epochs = config["batch"], config["epochs"]
    steps = -(-config["samples"] // (batch * config["accumulate"])) * epochs
    loader = torch.utils.data.DataLoader(Data(config["samples"]), batch_size=batch, shuffle=True)
    evaluation = torch.utils.data.DataLoader(held, batch_size=4)
    optimizer = make_optimizer(net)
    scheduler = make_scheduler(optimizer, steps)
    model, optimizer, loader, evaluation, scheduler = accelerator.prepare(
        net, optimizer, loader, evaluation, scheduler
    )
    accelerator.register_for_checkpointing(torch.nn.Linear(2, 2))  # has tensors
    if config["checkpoint"]:
        job.checkpoint(config["checkpoint"], every=config["save"])
    shoal.goal(epochs=epochs)
    metrics, resumed = [], None
    if config["resume"]:
        accelerator.load_state()
        resumed = accelerator.skip_first_batches(loader, config["resume"] % len(loader))
    for epoch in range((config["resume"] or 0) // len(loader), epochs):
        model.train()
        found, resumed = resumed or loader, None
        for batch in found:
            if job.step.epoch == epoch and not job.step.committed:
                gates.wait(job.rank, job.step.number)
            with accelerator.accumulate(model):
                output = model(**batch)
                accelerator.backward(output["loss"])
                if accelerator.sync_gradients:
                    accelerator.clip_grad_norm_(model.parameters(), 0.5)
                rate = scheduler.get_last_lr()[0]
                optimizer.step()
                scheduler.step()
                optimizer.zero_grad()
            if accelerator.sync_gradients:
                done = scheduler.scheduler.last_epoch
                digest = net.layers[0].weight.sum().item().hex()
                append_json_line(file, step=done, rate=rate, taken=net.take_marks(), digest=digest)
                if config["save"] == done:
                    accelerator.save_state()
        model.eval()
        rows = []
        for batch in evaluation:
            with torch.no_grad():
                predicted = model(**batch)["logits"].argmax(1)
            found, truth = accelerator.gather_for_metrics((predicted, batch["labels"]))
            rows += [(a == b).item() for a, b in zip(found, truth)]
        metrics.append(sum(rows) / len(rows))
        if config["breaks"] and job.released:
            break
    if accelerator.is_main_process:
        print("MAIN", flush=True)
    return [job.rank, job.size, len(rows), metrics[-1]]


if __name__ == "__main__":
    print("RESULT", json.dumps(main(json.loads(sys.argv[1]))), flush=True)
