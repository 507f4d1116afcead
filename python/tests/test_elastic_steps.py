"""Training in steps while workers are killed, stopped, added and released: every sample exactly
once an epoch, and the same state everywhere.
"""

import os
import pathlib
import re
import signal
import types

import pytest

import running_job
from running_job import check_results, results
from shoal._live.epochs import End, Epochs

pytest.importorskip("numpy")
WORKER = pathlib.Path(__file__).with_name("elastic_numpy.py")


@pytest.mark.parametrize("n", [1, 2, 3, 4])
@pytest.mark.parametrize("samples, batch", [(100, 8), (97, 10), (3, 2)])
def test_every_sample_once_an_epoch(launch, n, samples, batch):
    """Each number of workers takes every sample once an epoch, in as many steps as batches need."""
    ended = check_results(launch(n, WORKER, samples, batch, 2, 7, 0, 3))
    assert ended[0][1:3] == [n, 3 * -(-samples // batch)] and ended[0][4] == 3 * samples


@pytest.mark.parametrize("parts", [1, 3])
@pytest.mark.parametrize("n, kills", [(2, 1), (3, 2), (4, 1), (4, 3)])
@pytest.mark.parametrize("seed", [1, 2])
def test_killed_workers(launch, n, kills, parts, seed):
    """Workers die at random places of a step; every sample counts once."""
    output = launch(n, WORKER, 500, 32, parts, seed, kills, 8)
    ended = check_results(output)
    assert len(ended) == n - kills, output
    assert ended[0][4] == 8 * 500


@pytest.mark.parametrize("parts", [1, 3])
@pytest.mark.parametrize("seed", [1, 2, 3])
def test_killed_workers_with_shared_results(launch, parts, seed):
    """Workers die at random places of a step while the means go into shared results; every sample
    counts once.
    """
    output = launch(3, WORKER, 500, 32, parts, seed, 1, 8, "shared")
    ended = check_results(output)
    assert len(ended) == 2 and ended[0][4] == 8 * 500, output


@pytest.fixture
def running(launch, binary, tmp_path):
    """Returns running(n, arguments): a job of n workers that trains until it is told to finish, as
    a context manager around a running_job.Running; it is killed at the end of the block.
    """
    return lambda n, *arguments, program=WORKER: running_job.running(
        launch, binary, tmp_path / "end", n, program, *arguments
    )


@pytest.mark.parametrize("n, to", [(1, 2), (2, 4)])
def test_workers_join_and_are_released(running, n, to):
    """A job goes to another number of workers, back and there again: members have the same results,
    and who is released ends in order.
    """
    with running(n, 700, 32, 2, 3, 0) as job:
        job.resize(to)
        job.wait_for_new_step()
        job.resize(n)
        job.wait_for_new_step()
        job.resize(to)
        output = job.finish()
    ended = check_results(output)
    assert len(ended) == to and len(re.findall("RELEASED", output)) == to - n, output


def test_a_worker_that_is_turned_away_is_not_rank_0(running):
    """A worker that was ordered, and is not wanted any more before it is let in, goes on after its
    loop with a rank that no member has: rank 0 writes the results there.
    """
    with running(2, 700, 32, 2, 3, 0) as job:
        pid = job.workers()[1]
        running_job.freeze(pid)  # no step ends meanwhile
        job.resize(3, "--no-wait")
        job.read_until("PID")
        job.resize(2, "--no-wait")
        os.kill(pid, signal.SIGCONT)
        job.wait_for_new_step()
        output = job.finish()
    assert len(check_results(output)) == 2 and re.findall(r"RELEASED (\d+)", output) == ["2"]


def test_shared_results_while_workers_join_and_are_released(running):
    """Results in job.shared are right on the workers of each generation."""
    with running(2, 700, 32, 2, 3, 0, "shared") as job:
        for size in (4, 2, 3):
            job.resize(size)
            job.wait_for_new_step()
        output = job.finish()
    ended = check_results(output)
    assert len(ended) == 3 and len(re.findall("RELEASED", output)) == 2, output


def test_a_stopped_worker_is_waited_for(running):
    """The others wait for a worker that is stopped for a while."""
    with running(3, 700, 32, 3, 3, 0) as job:
        pid = job.workers()[1]
        running_job.freeze(pid)
        os.kill(job.workers()[2], 0)  # the others are there, and wait
        os.kill(pid, signal.SIGCONT)
        job.wait_for_new_step()
        job.resize(4)
        ended = check_results(job.finish())
    assert len(ended) == 4


TRANSFER = pathlib.Path(__file__).with_name("elastic_transfer.py")


@pytest.mark.parametrize("doomed", [0, 1])
@pytest.mark.parametrize(
    "place, count",
    [("get", 1), ("broadcast", 1), ("broadcast", 2), ("send_async", 1), ("send_async", 3)],
)
def test_a_member_is_killed_while_it_hands_over(running, doomed, place, count):
    """A newcomer whose sender dies asks again, and gets the state from the member that is left."""
    with running(2, doomed, place, count, program=TRANSFER) as job:
        job.resize(3, "--no-wait")
        job.read_until(r"asks again")
        job.read_until(r"generation \d+ .* 2 workers: .* asked for 3 workers")
        job.wait_for_new_step()
        output = job.finish()
    assert len(check_results(output)) == 2


def test_the_others_do_not_wait_for_a_joiner_to_make_memory(running):
    """A newcomer has its memory before it asks to enter."""
    with running(2, -1, "", 0, program=TRANSFER) as job:
        job.resize(3)
        output = job.finish()
    assert len(check_results(output)) == 3
    assert re.findall(r"MADE (\d+)", output) == ["0"], output


def test_the_last_member_is_killed_while_it_hands_over(running):
    """Without a member that has the state the job fails."""
    with running(1, 0, "send_async", 2, program=TRANSFER) as job:
        job.resize(2, "--no-wait")
        job.read_until("w0 was killed by SIGKILL")
        output = job.finish(code=1)
    assert "failed: rank 0 of 2 was killed by SIGKILL" in output and "Traceback" not in output, (
        output
    )


def test_a_job_whose_members_are_all_killed_has_failed(running):
    """A worker that was released does not keep a job alive whose last member is killed."""
    with running(2, 700, 32, 2, 3, 0) as job:
        job.resize(1)
        job.read_until("RELEASED")
        job.kill(0)
        output = job.finish(code=1)
    assert "failed: rank 0 of 2 was killed by SIGKILL" in output, output


IDLE = """
import numpy, shoal
job = shoal.join()
for step in job.steps(3, 4, epochs=2, seed=1):
    x = numpy.full(2, 1.0 if step.weight else numpy.nan, "float32")
    x.flags.writeable = False
    mean = step.allreduce(x, out=numpy.empty(2, "float32"))
    assert (mean == 1).all() and numpy.isnan(x).all() == (not step.weight), (mean, x)
print("RESULT", [job.rank], flush=True)
job.leave()
"""


def test_an_input_stays_as_it_is_also_on_a_worker_without_samples(launch):
    """With `out`, a gradient of weight 0 is not set to zeros."""
    assert len(results(launch(4, IDLE))) == 4


@pytest.mark.parametrize("first", [True, False])
def test_a_stopped_program_that_ends_with_its_loop_says_so(capsys, first):
    """A program that loops over the epochs itself ends with its next loop when the job is stopped.
    Rank 0 says how what is after those loops is run.
    """
    job = types.SimpleNamespace(released=True, first=first)
    epochs = Epochs(job, types.SimpleNamespace(register=lambda *args, **options: None))
    with pytest.raises(SystemExit) as ended:
        epochs.begin_loop(End(None, None))
    assert ended.value.code == 0
    assert ("if shoal.join().released: break" in capsys.readouterr().err) == first
