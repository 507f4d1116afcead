"""A worker whose step takes its share of a time, in place of a GPU. Arguments: steps, and the
milliseconds of a step of one worker.
"""

import sys
import time

import numpy as np

import shoal

STEPS, WORK = int(sys.argv[1]), float(sys.argv[2]) / 1000


def main():
    """Train as a worker of the job."""
    job = shoal.join()
    flat = np.zeros(1000, np.float32)
    job.register("flat", lambda: flat, lambda others: np.copyto(flat, others))
    for step in job.steps(1 << 20, 64, seed=1, steps=STEPS):
        time.sleep(WORK * len(step.indices) / 64)
        grad = np.ones(1000, np.float32)
        step.allreduce(grad)
        flat[:] += grad


main()
