"""A worker that trains with NumPy and writes checkpoints: `seen` counts how often each sample was
trained on, over all starts.

    checkpoint_numpy.py FOLDER SAMPLES BATCH EPOCHS EVERY KEEP [ELEMENTS]

ELEMENTS float64 more are in the state. Before the step STOP of the environment each worker dies by
SIGKILL, or later, when a checkpoint is begun. The rank DOOMED dies in the first checkpoint before
its part is handed to the agent, the rank ORPHANED right after that, and the rank LOOKING when it is
to look for checkpoints. The rank CRAMPED has no memory for its part. The rank REFUSED may open no
file of a checkpoint that it is to read, and goes on to wait where it would raise the error.
"""

import errno
import json
import os
import signal
import sys

import numpy as np

import shoal
from shoal._checkpoint.resume import Resumer
from shoal._checkpoint.shards import ShardReader
from shoal._checkpoint.writer import AgentWriter


def refuse_memory(*_):
    """Refuse memory, as where the system gives no more: stands in for AgentWriter.allocate."""
    raise shoal.ArenaError("the job has no more")


def refuse_file(_, path, *__):
    """Refuse a file, as where the process has too many: stands in for ShardReader.read."""
    raise OSError(errno.EMFILE, os.strerror(errno.EMFILE), path)


folder = sys.argv[1]
samples, batch, epochs, every, keep = map(int, sys.argv[2:7])
more = int(sys.argv[7]) if len(sys.argv) > 7 else 1
stop = int(os.environ.get("STOP", 1 << 60))
job = shoal.join()
seen, weights = np.zeros((samples,), "int32"), np.zeros((samples, 3))
large = np.arange(more, dtype="float64")
noise = np.random.default_rng(os.getpid() if job.outside else 7 + job.rank)
job.register("seen", lambda: seen, lambda value: np.copyto(seen, value))
job.register(
    "weights",
    lambda: {"w": weights, "half": (np.float16([1, 2]), "a note")},
    lambda value: np.copyto(weights, value["w"]),
)
job.register("large", lambda: large, lambda value: np.copyto(large, value))
job.register(
    "noise",
    lambda: noise.bit_generator.state,
    lambda value: setattr(noise.bit_generator, "state", value),
    alike=False,
)
job.checkpoint(folder, every=every, keep=keep)
if os.environ.get("DOOMED") == str(job.rank):
    AgentWriter.write = lambda *_: os.kill(os.getpid(), signal.SIGKILL)
if os.environ.get("ORPHANED") == str(job.rank):
    hand_over = AgentWriter.write
    AgentWriter.write = lambda *part: (hand_over(*part), os.kill(os.getpid(), signal.SIGKILL))
if os.environ.get("LOOKING") == str(job.rank):
    type(job._checkpoints._source).newest = lambda *_: os.kill(os.getpid(), signal.SIGKILL)
if os.environ.get("CRAMPED") == str(job.rank):
    AgentWriter.allocate = refuse_memory
if os.environ.get("REFUSED") == str(job.rank):
    ShardReader.read = refuse_file
    Resumer._fail = lambda *_: signal.pause()  # the other workers end first
gradient = job.empty((samples, 3), "float64")
print("PID", os.getpid(), flush=True)
first = True
for step in job.steps(samples, batch, seed=3, epochs=epochs):
    if first:
        print("FROM", step.number, flush=True)
        first = False
    if step.number >= stop and job._checkpoints.schedule.newest_step < 0:
        job._checkpoints.wait()  # its memory is there then, and it is begun with the next step
    elif step.number >= stop:
        if job.name == "solo":  # else the agent writes to the end
            job._checkpoints._writer.wait()
        os.kill(os.getpid(), signal.SIGKILL)
    gradient.fill(0)
    if step.weight:
        gradient[step.indices, 0] = 1 / step.weight
    gradient[:, 1] = 0.5 * weights[:, 2] + noise.normal()
    gradient[:, 2] = np.sin(weights[:, 1] + step.number)
    step.allreduce(gradient)
    seen += gradient[:, 0] > 0
    weights += gradient
    large += 1
    if step.number % 10 == 0 and job.rank == 0:
        print("STEP", step.number, flush=True)
if not job.released:
    assert (seen == epochs).all(), f"samples seen how often: {np.unique(seen, return_counts=True)}"
    assert large[0] == job.committed and large[-1] == more - 1 + job.committed
    print("WEIGHTS", float(weights.sum()), flush=True)
    print(
        "RESULT",
        json.dumps([job.rank, job.size, job.committed, job.digest(), float(noise.normal())]),
        flush=True,
    )
