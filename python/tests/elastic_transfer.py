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
calls = 0  # how often the doomed worker has come to PLACE
armed = False  # whether it may die: set when the loop begins
entered = False  # whether it has made a broadcast, with which the handover begins
made = 0  # bytes of memory that were made for the state since then
make = transfer.allocate_touched


def allocate_counted(nbytes):
    """Allocate memory for the state, and count what is made after this worker has entered: stands
    in for transfer.allocate_touched.
    """
    global made
    made += nbytes * entered
    return make(nbytes)


transfer.allocate_touched = allocate_counted


def count_and_die(name):
    """Note a call of the name, and die by SIGKILL where it is the one of the command line."""
    global calls, entered
    entered = entered or name == "broadcast"
    if armed and number == doomed and name == place:
        calls += 1
        if calls == count:
            os.kill(os.getpid(), signal.SIGKILL)


def watch_method(name):
    """Have `count_and_die` called before each call of a method of the job, from now on."""
    original = getattr(job, name)

    def call(*args, **options):
        """Call the method after `count_and_die`."""
        count_and_die(name)
        return original(*args, **options)

    setattr(job, name, call)


watch_method("broadcast")
watch_method("send_async")
expected = np.arange(8 << 20, dtype="float64")
state = expected.copy() if not job.outside else np.full(expected.shape, -1.0)


def get_state():
    """The state, for a worker that joins: the getter that the job calls."""
    count_and_die("get")
    return state


def set_state(value):
    """Print how many bytes of memory were made, and take over the state: the setter that the job
    calls on a worker that joins.
    """
    print("MADE", made, flush=True)
    np.copyto(state, value)


job.register("state", get_state, set_state)
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
