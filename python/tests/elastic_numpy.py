"""A worker that trains with NumPy and may kill itself: `seen` counts, by the committed gradients, how often each sample was trained on.

    elastic_numpy.py SAMPLES BATCH EPOCHS PARTS SEED KILLS

Of the first workers, KILLS die by SIGKILL, each at a step and a place in the step that SEED decides.
"""

import json
import os
import random
import signal
import sys

import numpy as np

import shoal

samples, batch, epochs, parts, seed, kills = map(int, sys.argv[1:7])
job = shoal.join()
seat = int(os.environ["SHOAL_RANK"])
doomed = random.Random(seed).sample(range(int(os.environ["SHOAL_SIZE"])), kills)
choice = random.Random(seed * 1000 + seat)
fatal = choice.randrange(1, epochs * samples // batch - 1) if seat in doomed else None
place = choice.choice(["before", "between the parts", "before the answer", "after"])


def die(here):
    if fatal is not None and step.number >= fatal and place == here:
        os.kill(os.getpid(), signal.SIGKILL)


seen, total = np.zeros(samples), np.zeros(1)
job.register("seen", lambda: seen, lambda value: np.copyto(seen, value))
job.register("total", lambda: total, lambda value: np.copyto(total, value))
gradients = [job.empty(samples)] + [np.empty(5, "float64") for _ in range(parts - 1)]  # in the arena, and not
for step in job.steps(samples, batch, seed=seed, epochs=epochs):
    assert len(step.indices) == max(step.weight, 1) and step.weight <= step.count <= batch
    for g in gradients:
        g.fill(step.weight and 1 / step.weight if g is not gradients[0] else 0)
    if step.weight:
        gradients[0][step.indices] = 1 / step.weight
    die("before")
    if place == "before the answer" and fatal is not None and step.number >= fatal:
        for g in gradients:
            step.share(g, last=g is gradients[-1])
        os.kill(os.getpid(), signal.SIGKILL)
    if place == "between the parts" and fatal is not None and step.number >= fatal:
        step.share(gradients[0], last=parts == 1)
        os.kill(os.getpid(), signal.SIGKILL)
    step.allreduce(*gradients)
    contributed = gradients[0] > 0
    np.testing.assert_allclose(gradients[0][contributed], 1 / contributed.sum(), rtol=1e-5)
    seen += contributed
    total += contributed.sum()
    die("after")
assert (seen == epochs).all(), f"samples seen how often: {np.unique(seen, return_counts=True)}"
print("RESULT", json.dumps([job.rank, job.size, job.committed, job.digest(), total[0]]))
