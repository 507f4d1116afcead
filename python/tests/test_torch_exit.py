"""No thread of shoal's is left in torch when the interpreter ends, however the script ends: torch
would abort the process.
"""

import pytest

torch = pytest.importorskip("torch")

PROGRAM = """
import atexit, sys, threading

def look():  # the first handler is called last
    print("LEFT", [t.name for t in threading.enumerate() if t.name.startswith("shoal")], flush=True)

atexit.register(look)
import torch, torch.distributed as dist
import shoal
FIRST
import shoal.torch

dist.init_process_group("shoal")
job, x = shoal.join(), torch.ones(1000)
works = [dist.all_reduce(x, async_op=True) for _ in range(3)]
futures = [w.get_future().then(lambda f: f.value()[0].clone()) for w in works]
dist.isend(x, (job.rank + 1) % 2).get_future()
future = dist.irecv(torch.empty(1000), (job.rank + 1) % 2).get_future()
futures[-1].wait()
future.wait()
print("TRAINED", flush=True)
ENDING
"""
# What rank 0 waits for and rank 1 never calls. Rank 1 is there as long as rank 0 is.
PENDING = """
if job.rank == 1:
    try:
        dist.recv(x, 0)
    except RuntimeError:
        sys.exit()
future = START
future.then(lambda f: f.value())
"""
ENDINGS = {
    "the last line": ("", 0),
    "destroyed": ("dist.destroy_process_group()", 0),
    "left": ("job.leave()", 0),
    "exit": ("sys.exit(3)", 3),
    "an exception": ("raise ValueError('the script is wrong')", 1),
    "a pending all-reduce": (
        PENDING.replace("START", "dist.all_reduce(x, async_op=True).get_future()"),
        0,
    ),
    "a pending receive": (
        PENDING.replace("START", "dist.irecv(torch.empty(3), 1, tag=7).get_future()"),
        0,
    ),
}


def program(ending, first=""):
    """The source of a script that trains and ends with this source; `first` is run after torch and
    shoal were imported, before shoal.torch.
    """
    return PROGRAM.replace("ENDING", ending).replace("FIRST", first)


@pytest.mark.parametrize("ending", ENDINGS)
def test_threads_end_before_the_interpreter(launch, ending):
    """Whatever way a script ends, no thread of shoal's is left when the interpreter ends, and the
    job fails only where the script does.
    """
    text, code = ENDINGS[ending]
    output = launch(2, program(text), code=1 if code else 0)
    # Of ranks that failed the launcher ends the second.
    assert output.count("] TRAINED") == 2, output
    assert output.count("] LEFT []") == output.count("] LEFT") >= (1 if code else 2), output


def test_a_job_that_was_joined_before_torch_was_there(launch):
    """Threads end before the interpreter, also where the exit handler of the job was registered
    before torch's.
    """
    output = launch(2, program(ENDINGS["a pending all-reduce"][0], "shoal.join()"))
    assert output.count("] LEFT []") == 2, output


def test_a_callback_under_way_ends_first(launch):
    """A callback that runs when the script ends is finished."""
    ending = """
begun, leaving = threading.Event(), threading.Event()

def slow(future):
    begun.set()
    leaving.wait()
    return torch.ones(2)

future = dist.all_reduce(x, async_op=True).get_future().then(slow)
future.then(lambda future: print("RETURNED", future.value().sum(), flush=True))
begun.wait()
atexit.register(leaving.set)
"""
    output = launch(2, program(ending))
    assert output.count("] RETURNED tensor(2.)") == output.count("] LEFT []") == 2, output
