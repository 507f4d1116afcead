"""A worker of a job in which all workers write down which samples they took together in each step,
until there is a file `end` in its folder. Arguments: the folder, and the milliseconds of a step of
one worker. A line is [step, epoch, who made it, workers, time, samples, whether one came twice].
`who` is the mean of a random number of each worker: a step that was made twice has two of them.
"""

import json
import os
import random
import sys
import time
from pathlib import Path

import numpy as np

import shoal

FOLDER = Path(sys.argv[1])
SECONDS = float(sys.argv[2]) / 1000
SAMPLES, BATCH = 997, 20


def main():
    """Train as a worker of the job."""
    job = shoal.join()
    total = np.zeros(1)
    job.register("total", lambda: total, lambda others: np.copyto(total, others))
    job.checkpoint(str(FOLDER / "checkpoints"), every=200)
    own = random.SystemRandom().random()
    marks = np.zeros(SAMPLES + 2)  # a mark for each sample that was taken; who; whether to end
    with open(FOLDER / f"steps-{os.getpid()}", "a") as file:
        for step in job.steps(SAMPLES, batch=BATCH, seed=3, epochs=10**6):
            time.sleep(SECONDS * len(step.indices) / BATCH)  # so that more workers are faster
            marks[:SAMPLES] = 0
            marks[step.indices] = 1 / max(step.weight, 1)  # the mean weighs it with step.weight
            marks[-2:] = own, (FOLDER / "end").exists()
            step.allreduce(marks)
            total += 1
            taken = np.flatnonzero(marks[:SAMPLES])
            twice = len(taken) > 0 and marks[taken].max() > 1.5 * marks[taken].min()
            line = [step.number, step.epoch, marks[-2], job.size, time.time(), taken.tolist()]
            print(json.dumps([*line, bool(twice)]), file=file, flush=True)
            if marks[-1] > 0:
                break


main()
