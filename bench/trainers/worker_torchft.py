"""A worker that trains a GPT-2 in a loop of its own on torchft, as its own example train_ddp.py
does: a replica group of one process.

    worker_torchft.py CONFIG

CONFIG is JSON: `out` a folder for notes, `shape`, `batch` the batch of this worker, `steps` how
many, and `number` which makes the name of this worker. TORCHFT_LIGHTHOUSE is the address of the
lighthouse.
"""

import datetime
import json
import os
import sys

os.environ["HF_HUB_OFFLINE"] = "1"

import torch  # noqa: E402
from shape import Notes, model_of, rows_of  # noqa: E402
from torchft import DistributedDataParallel, Manager, Optimizer, ProcessGroupGloo  # noqa: E402

PATIENCE = datetime.timedelta(seconds=60)  # of all operations; never met unless something hangs


def main(config):
    """Train as the configuration says, until all have made so many steps together."""
    model, rows = model_of(config["shape"]), rows_of(config["shape"])
    store = torch.distributed.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)

    def load(state):
        """Takes over the state of another worker, for the Manager."""
        model.load_state_dict(state["model"])
        optimizer.load_state_dict(state["optimizer"])

    def save():
        """Returns the state that a worker which joins receives, for the Manager."""
        return {"model": model.state_dict(), "optimizer": optimizer.state_dict()}

    manager = Manager(
        pg=ProcessGroupGloo(timeout=PATIENCE),
        min_replica_size=1,
        load_state_dict=load,
        state_dict=save,
        replica_id=f"worker_{config['number']}",
        store_addr="127.0.0.1",
        store_port=store.port,
        rank=0,
        world_size=1,
        timeout=PATIENCE,
        hostname="127.0.0.1",
    )
    wrapped = DistributedDataParallel(manager, model)
    optimizer = Optimizer(manager, torch.optim.AdamW(model.parameters(), lr=5e-5))
    notes, generator = Notes(config["out"]), torch.Generator().manual_seed(config["number"])
    while manager.current_step() < config["steps"]:
        batch = rows[torch.randint(len(rows), (config["batch"],), generator=generator)]
        before = manager.current_step()
        optimizer.zero_grad()
        wrapped(input_ids=batch, labels=batch).loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        if manager.current_step() > before:
            notes.ended(manager.current_step(), config["number"])


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
