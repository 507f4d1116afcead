"""A worker that trains with NumPy: `seen` counts, by the committed gradients, how often each sample
was trained on.

    elastic_numpy.py SAMPLES BATCH PARTS SEED KILLS EPOCHS|FILE, and "shared" anywhere

Of the first workers, KILLS die by SIGKILL, each at a step and a place in the step that SEED
decides. With a FILE the training goes on until that exists. With "shared" the averages come into
shared results.
"""

import json
import os
import random
import signal
import sys

import numpy as np

import shoal

arguments = [a for a in sys.argv[1:] if a != "shared"]
samples, batch, parts, seed, kills = map(int, arguments[:5])
epochs, end = (int(arguments[5]), "") if arguments[5].isdigit() else (1 << 40, arguments[5])
PLACES = ["before", "between the parts", "before the answer", "after"]
job = shoal.join()
number = int(os.environ["SHOAL_RANK"])
first = int(os.environ["SHOAL_SIZE"])  # how many workers the job begins with
doomed = random.Random(seed).sample(range(first), kills) if not job.outside else []
# The first step in which this worker may die, and the place in it.
choice = random.Random(seed * 1000 + number)
fatal, place = choice.randrange(1, epochs * samples // batch - 1), choice.choice(PLACES)
if number not in doomed:
    fatal = 1 << 62  # no step


def die_if_doomed(here, submitted=0):
    """Die by SIGKILL if this is the step and place for it, after submitting the first `submitted`
    parts of the step. `here` is one of PLACES; it reads `step`, the step of the loop below.
    """
    if step.number >= fatal and place == here:
        for i, g in enumerate(gradients[:submitted]):
            step.share(g, last=i == parts - 1, out=averages and averages[i])
        os.kill(os.getpid(), signal.SIGKILL)


# Random where a worker comes late: what it does not get from the others is wrong.
noise = np.random.default_rng(number)
seen, total = (
    (noise.normal(size=samples), noise.normal(size=1))
    if job.outside
    else (np.zeros(samples), np.zeros(1))
)
job.register("seen", lambda: seen, lambda value: np.copyto(seen, value))
job.register(
    "total",
    lambda: {"total": (total, "a note", 0.1)},
    lambda value: np.copyto(total, value["total"][0]),
)
# in the arena, and not
gradients = [job.empty(samples)] + [np.empty(5, "float64") for _ in range(parts - 1)]
averages = (
    [job.shared(f"average {i}", g.shape, g.dtype) for i, g in enumerate(gradients)]
    if "shared" in sys.argv
    else None
)
latest = job.shared("latest", 1, "float64") if averages else None
done = np.zeros(1)
print("PID", os.getpid(), flush=True)
for step in job.steps(samples, batch, seed=seed, epochs=epochs):
    assert len(step.indices) == (step.weight or min(2, step.count)), step.indices
    assert step.weight <= step.count <= batch
    assert step.weight != 1 or step.count == 1 or batch < 2 * job.size
    for g in gradients:
        g.fill(step.weight and 1 / step.weight if g is not gradients[0] else 0)
    if step.weight:
        gradients[0][step.indices] = 1 / step.weight
    die_if_doomed("before")
    die_if_doomed("between the parts", submitted=1)
    die_if_doomed("before the answer", submitted=parts)
    done[0] = os.path.exists(end)
    if parts > 1:
        gradients[1][0] = done[0]
    if averages:  # and a call after the commit that is not waited for
        shares = [
            step.share(g, last=i == parts - 1, out=averages[i]) for i, g in enumerate(gradients)
        ]
        later = job.allreduce_async(np.full(1, float(step.number)), "max", out=latest)
        means = [share.wait() for share in shares]
        assert later.wait()[0] == step.number
    else:
        means = step.allreduce(*gradients)
        means = means if parts > 1 else [means]
    contributed = means[0] > 0
    np.testing.assert_allclose(means[0][contributed], 1 / contributed.sum(), rtol=1e-5)
    seen += contributed
    total += contributed.sum()
    die_if_doomed("after")
    # what is called between the commit and the next step is called by those who have made the step
    if parts == 2:
        assert job.allreduce(np.ones(1))[0] == job.size
        assert job.released or job.allgather(np.array([job.rank])).tolist() == list(range(job.size))
    if step.number % 100 == 0 and job.rank == 0:
        print("STEP", step.number, flush=True)
    if end and parts > 1 and means[1][0] > 0:
        break
if job.released:
    print("RELEASED", job.rank, flush=True)
else:
    cursor = job.place(samples, batch, seed).place
    assert ((seen == cursor.epoch) | (seen == cursor.epoch + 1)).all(), (
        f"samples seen how often: {np.unique(seen, return_counts=True)}"
    )
    assert (
        total[0]
        == seen.sum()
        == cursor.epoch * samples + cursor.next - sum(b - a for a, b in cursor.left)
    ), (total, seen.sum(), cursor)
    print(
        "RESULT",
        json.dumps([job.rank, job.size, job.committed, job.digest(), total[0]]),
        flush=True,
    )
