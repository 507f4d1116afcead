"""A worker that trains with NumPy in rounds of local steps: `seen` counts, by the committed rounds,
how often each sample was trained on.

    elastic_rounds.py SAMPLES BATCH LOCAL_STEPS DOOMED FILE

The worker DOOMED of the first ones dies by SIGKILL in the third local step of a round. The training
goes on until FILE exists.
"""

import json
import os
import signal
import sys

import numpy as np
from running_job import sleep_if_slowed

import shoal

samples, batch, local_steps, doomed = map(int, sys.argv[1:5])
end = sys.argv[5]
job = shoal.join()
number = -1 if job.outside else int(os.environ["SHOAL_RANK"])
seen = np.zeros(samples)
job.register("seen", lambda: seen, lambda value: np.copyto(seen, value))
mine = np.zeros(samples)  # what this worker was trained on in the round
rounds = set()
for step in job.steps(samples, batch, seed=3, epochs=1 << 40, local_steps=local_steps):
    sleep_if_slowed(end)
    if step.local_index == 0:
        mine[:] = 0
    if step.local_weight:
        mine[step.indices] += 1
    if number == doomed and step.number >= 40 and step.local_index == 2:
        os.kill(os.getpid(), signal.SIGKILL)
    assert step.number == job.committed + step.local_index
    assert mine.max(initial=0) <= 1
    if not step.ends_round:
        continue
    assert mine.sum() == step.weight
    rounds.add(step.local_steps)
    done = np.array([float(os.path.exists(end))])
    mean, done = step.allreduce(mine / max(step.weight, 1), done)
    contributed = mean > 0
    np.testing.assert_allclose(mean[contributed], 1 / contributed.sum(), rtol=1e-5)
    seen += contributed
    if step.number < local_steps and job.rank == 0:
        print("STEP 0", flush=True)
    if step.local_steps == 3 and job.size == 4 and job.rank == 0 and step.after.next:
        print("FOUR IN ROUNDS OF 3", flush=True)
    if done[0] > 0:
        break
cursor = job.place(samples, batch, 3).place
assert ((seen == cursor.epoch) | (seen == cursor.epoch + 1)).all(), np.unique(seen)
assert seen.sum() == cursor.committed()
told = [job.rank, job.size, job.committed, job.digest(), seen.sum(), cursor.round]
print("RESULT", json.dumps(told), flush=True)
