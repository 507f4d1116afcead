"""Rounds of local steps, as a worker follows them: without an agent, for which the tests stand in,
and in a job.
"""

import pathlib

import numpy
import pytest
import running_job
from changing_job import ChangingSolo, changing_job

from shoal._live.epochs import End
from shoal._runtime.backend import DeclaredSync
from shoal.errors import ShoalError
from shoal.job import Job
from shoal.steps import steps_until


def _begin(job, sync="local", steps=4, samples=44, batch=4, **options):
    """The place of a job whose workers synchronise after so many steps."""
    place = job.place(samples, batch, seed=3, **options)
    place.declare_sync(sync, steps)
    return place


def test_each_local_step_has_its_samples():
    """Two epochs of 44 samples in rounds of 4 steps, and then of 2 and 5 steps by another way: each
    sample comes once an epoch, a step has a batch, and what ends a round is told before.
    """
    job, agent = changing_job()
    place = _begin(job)
    assert agent.declared_sync == DeclaredSync("local", 4)
    changes = {3: (2, "sma:alpha=0.1"), 9: (5, "")}  # after the step of the number
    seen, steps = [[], []], []
    for step in steps_until(place, End(2, None)):
        seen[step.epoch] += list(step.indices)
        steps.append((step.number, step.local_index, step.local_steps, place.sync))
        assert step.weight == step.count == place.cursor.count()
        assert step.local_weight == len(step.indices) == 4
        job._progress.batch_ahead(7)  # as the loader does
        if not step.ends_round:
            with pytest.raises(ShoalError, match="average in the last one, where step.ends_round"):
                step.allreduce(numpy.zeros(1))
            assert place.place.step == steps[-1][0] - step.local_index
            continue
        if step.number in changes:
            rounds, agent.sync = changes[step.number]
            agent.change(job, round=rounds)
        step.allreduce(numpy.zeros(1))
    assert [sorted(epoch) for epoch in seen] == [list(range(44))] * 2
    assert [n for n, *_ in steps] == list(range(22)) and agent.goals == [22]
    locals_ = [(4, "local")] * 4 + [(2, "sma:alpha=0.1")] * 6 + [(1, "local")]  # an epoch of 11
    locals_ += [(5, "local")] * 10 + [(1, "local")]
    assert [how for _, _, *how in steps] == [list(x) for x in locals_]


def test_a_part_that_is_left_comes_again():
    """With three workers, of which one is lost amid the round: its part of the whole round comes
    first in the next one. A loop that is left amid a round begins that again.
    """
    job, agent = changing_job()
    place = _begin(job, samples=200)
    first = []
    for step in steps_until(place, End(1, None)):
        first += list(step.indices)
        if step.local_index == 2:
            break
    again = []
    for step in steps_until(place, End(1, None)):
        again += list(step.indices)
        if step.ends_round:
            agent.change(job, size=3, done=[True, False, True])
            step.allreduce(numpy.zeros(1))
            break
    assert again[:12] == first and step.number == 3
    left = again[6:11]  # the second of parts of 6, 5 and 5
    step = next(steps_until(place, End(1, None)))
    assert (step.number, list(step.indices)) == (4, left[:4])


def test_a_worker_without_samples_makes_no_update():
    """In a local step without samples a worker gets those of others, and none of them counts."""
    job, _ = changing_job()
    place = _begin(job, steps=3, samples=5, batch=4)  # 5 samples in two steps: no piece of one
    steps = list(steps_until_ended(place))
    assert [step.local_weight for step in steps] == [5 // 2 + 1, 2] and steps[1].ends_round
    place = _begin(Job(ChangingSolo()), steps=3, samples=3, batch=2)
    steps = list(steps_until_ended(place))
    assert [step.local_weight for step in steps] == [3, 0]
    assert steps[1].weight == 3 and len(steps[1].indices) == 2
    assert not steps[0].skip(True) and steps[0].local_weight == 0, "waits for nobody"


def steps_until_ended(place):
    """The steps of one epoch, of which those that end a round are averaged."""
    for step in steps_until(place, End(1, None)):
        yield step
        if step.ends_round:
            step.allreduce(numpy.zeros(1))


def test_numbers_of_steps_count_local_steps(tmp_path, monkeypatch):
    """A loop of 10 steps ends with the first round that reaches them, and a checkpoint each 6 steps
    comes with the first round after each.
    """
    job, _ = changing_job()
    job.checkpoint(tmp_path, every=6)
    place, made = _begin(job, samples=400), []
    monkeypatch.setattr(job._checkpoints, "_save", lambda cursor: made.append(cursor.step))
    numbers = []
    for step in steps_until(place, End(None, 18)):
        numbers.append(step.number)
        if step.ends_round:
            step.allreduce(numpy.zeros(1))
    assert numbers == list(range(20)) and made == [8, 16, 20]


def test_a_checkpoint_keeps_its_round(tmp_path):
    """A program goes on with the round and the way to synchronise of the checkpoint, where it has
    opened them, and is refused where it has not.
    """

    def begin(opened=True):
        """A job that goes on from the newest checkpoint, its agent, and its first step."""
        job, agent = changing_job()
        job.checkpoint(tmp_path, every=1)
        place = _begin(job) if opened else job.place(44, 4, seed=3)
        return place, agent, next(steps_until(place, End(1, None)))

    place, agent, step = begin()
    assert (place.sync, step.local_steps, place.cursor.round) == ("local", 4, 4)
    place.drop_open_step()
    for step in steps_until(place, End(1, 4)):
        if step.ends_round:
            agent.sync = "diloco:lr=0.7"
            agent.change(place.job, round=3)
            step.allreduce(numpy.zeros(1))
    place.job._checkpoints.wait()
    place, agent, step = begin()
    assert (place.sync, step.number, step.local_steps) == ("diloco:lr=0.7", 4, 3)
    assert agent.declared_sync == DeclaredSync("local", 4, "diloco:lr=0.7")
    with pytest.raises(ShoalError, match="whose workers synchronise after 3 steps, and this one"):
        begin(opened=False)


def test_a_job_states_one_way_to_synchronise():
    """To state the same again changes nothing; another one, or one after the first step, is
    refused, and so is a round that cannot be.
    """
    job, _ = changing_job()
    place = _begin(job)
    place.declare_sync("local", 4)
    with pytest.raises(ShoalError, match="comes too late .local.: a job has one way"):
        place.declare_sync("local", 4, auto=True)
    with pytest.raises(ShoalError, match="comes too late .local.: a job has one way"):
        place.declare_sync("diloco", 4)
    job, _ = changing_job()
    place = job.place(44, 4)
    with pytest.raises(ValueError, match="a round of 65537 steps"):
        place.declare_sync("local", 65537)
    next(steps_until(place, End(1, None)))
    with pytest.raises(ShoalError, match="too late .its steps have begun."):
        place.declare_sync("local", 4)


def test_a_round_loses_a_worker_changes_and_takes_newcomers_in(launch, binary, tmp_path):
    """One of three workers is killed amid a round, then rounds become shorter, and others join:
    each sample counts once an epoch, and all workers have the same.
    """
    worker = pathlib.Path(__file__).with_name("elastic_rounds.py")
    with running_job.running(launch, binary, tmp_path / "end", 3, worker, 700, 20, 5, 1) as job:
        job.read_until("w1 was killed by SIGKILL")
        job.set("round=3")
        job.resize(4)
        job.read_until("FOUR IN ROUNDS OF 3")
        output = job.finish()
    ended = running_job.check_results(output)
    assert len(ended) == 4 and ended[0][5] == 3, output
    assert "round 5 -> 3" in output, output
