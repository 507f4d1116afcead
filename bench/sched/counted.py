"""A worker that writes the samples of each committed step into a file of its own, and a checkpoint
when it is parked. Arguments: a folder; its file `epochs` says how many epochs there are.
"""

import json
import os
import sys
import time
from pathlib import Path

import numpy as np

import shoal

FOLDER = Path(sys.argv[1])


def main():
    """Train as a worker of the job."""
    job = shoal.join()
    total = np.zeros(1)
    job.register("total", lambda: total, lambda others: np.copyto(total, others))
    job.checkpoint(str(FOLDER / "checkpoints"), every=10**6)
    epochs = int((FOLDER / "epochs").read_text())
    with open(FOLDER / f"steps-{os.getpid()}", "a") as file:
        for step in job.steps(997, batch=20, seed=3, epochs=epochs):
            time.sleep(0.008 * len(step.indices) / 20)  # so that more workers are faster
            total += step.allreduce(np.ones(1))
            mine = step.indices.tolist() if step.weight else []  # without: samples of another
            print(json.dumps([step.number, mine]), file=file, flush=True)


main()
