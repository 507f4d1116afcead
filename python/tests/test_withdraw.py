"""A blocking call that a Ctrl-C has ended has not been made."""

AGAIN = """
import os, signal, sys, threading, shoal

def interrupt():
    while not calls._leader:
        os.sched_yield()
    os.kill(os.getpid(), signal.SIGINT)

signal.signal(signal.SIGINT, signal.default_int_handler)
job = shoal.join()
calls = job._backend.calls
own, foreign = job.zeros(4), job.zeros(4).copy()
for x in (own, foreign):
    if job.rank == 0:
        x[:] = 1
        thread = threading.Thread(target=interrupt)
        thread.start()
        try:
            job.allreduce(x)
            raise SystemExit("the call was not interrupted")
        except KeyboardInterrupt:
            thread.join()
        x[:] = 10
        job.send(job.zeros(1), 1)
    else:
        job.recv(job.zeros(1), 0)
        x[:] = 100
    job.allreduce(x)
    assert x[0] == 110, x
    job.barrier()
"""


def test_a_call_that_ctrl_c_has_ended_is_made_again(launch):
    """The same line again, after a Ctrl-C, meets the call of the other rank, which goes on."""
    launch(2, AGAIN)
