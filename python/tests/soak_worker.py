"""A worker that trains on nothing, for tests of what the agent takes.

    soak_worker.py STEPS FOLDER FILE

It ends after STEPS steps, 0 = never, or when FILE exists. Every 200 steps the state goes into a
checkpoint in FOLDER, unless that is -.
"""

import os
import sys

import numpy as np
import running_job

import shoal

steps, folder, end = int(sys.argv[1]), sys.argv[2], sys.argv[3]
job = shoal.join()
state = np.zeros(1000)
job.register("state", lambda: state, lambda value: np.copyto(state, value))
if folder != "-":
    job.checkpoint(folder, every=200)
gradient = np.zeros(1001)
for step in job.steps(1 << 40, 64, seed=1, steps=steps or None):
    running_job.sleep_if_slowed(end)
    gradient[:] = 1
    gradient[1000] = os.path.exists(end)
    mean = step.allreduce(gradient)
    state += mean[:1000]
    if step.number % 20 == 0 and job.rank == 0:
        print("STEP", step.number, flush=True)
    if step.last and mean[1000] > 0 or mean[1000] > 0 and not steps:
        break
print("RESULT", job.rank, float(state[0]), flush=True)
