"""A worker with 64 MiB of state. Where a joiner gets the state, worker DOOMED is killed
at a PLACE of the handover.

    elastic_transfer.py DOOMED PLACE COUNT FILE

PLACE is the COUNTth call of "get" (of the state), "broadcast" (of its header) or "send_async" (of a
piece). The training goes on until FILE exists.
"""

import json
import os
import signal
import sys

import numpy as np

import shoal
from shoal._live import transfer

doomed, place, count, end = int(sys.argv[1]), sys.argv[2], int(sys.argv[3]), sys.argv[4]
job = shoal.join()
number = int(os.environ["SHOAL_RANK"])
calls, armed = 0, False
# how many bytes of memory were made for the state since this worker has entered
entered, made = False, 0
make = transfer.memory


def memory(nbytes):
    global made
    made += nbytes * entered
    return make(nbytes)


transfer.memory = memory


def fatal(name):
    """Count a call, and die where it is the one."""
    global calls, entered
    entered = entered or name == "broadcast"
    if armed and number == doomed and name == place:
        calls += 1
        if calls == count:
            os.kill(os.getpid(), signal.SIGKILL)


def watched(name):
    original = getattr(job, name)

    def call(*args, **options):
        fatal(name)
        return original(*args, **options)

    setattr(job, name, call)


watched("broadcast")
watched("send_async")
expected = np.arange(8 << 20, dtype="float64")
state = expected.copy() if not job.outside else np.full(expected.shape, -1.0)


def get():
    fatal("get")
    return state


def take(value):
    print("MADE", made, flush=True)
    np.copyto(state, value)


job.register("state", get, take)
armed = True
stop = np.zeros(1)
for step in job.steps(1000, 50, epochs=1 << 40):
    stop[0] = os.path.exists(end)
    step.allreduce(stop)
    if step.number % 100 == 0 and job.rank == 0:
        print("STEP", step.number, flush=True)
    if stop[0] > 0:
        break
if not job.released:
    assert np.array_equal(state, expected), "the state is not what the others have"
    print("RESULT", json.dumps([job.rank, job.size, job.committed, job.digest()]), flush=True)
