"""A batch that changes between two steps, as a worker follows it: without an agent, which the tests
stand in for.
"""

import numpy
import pytest
from changing_job import ChangingSolo, changing_job

from shoal._live.epochs import End
from shoal._runtime.solo import Solo
from shoal.errors import ShoalError
from shoal.job import Job
from shoal.steps import steps_until


def test_each_sample_comes_once_whatever_the_batch_becomes():
    """Two epochs of 40 samples, whose batch grows and shrinks amid an epoch: each sample once an
    epoch, each batch as large as it is to be, and what was drawn ahead is drawn anew.
    """
    job, agent = changing_job()
    agent.rate = 1.5
    changes = {1: 16, 3: 4, 7: 8}  # after the step of the number
    seen, counts = [[], []], []
    for step in job.steps(40, 8, epochs=2, seed=3, batch_range=(4, 16)):
        seen[step.epoch] += list(step.indices)
        assert step.weight == len(step.indices) == step.count
        counts.append(step.count)
        job._progress.batch_ahead(2)  # as the loader does
        if step.number in changes:
            agent.change_batch(job, changes[step.number])
        step.allreduce(numpy.zeros(1))
    assert [sorted(epoch) for epoch in seen] == [list(range(40))] * 2
    assert counts == [8, 8, 16, 8, 4, 4, 4, 4, 8, 8, 8]
    # with batches of 8; of 16 (2 steps were made, of 24 samples); of 4 (4 steps); of 8 (8 steps)
    assert agent.goals == [10, 2 + 2 + 3, 4 + 10, 8 + 3] and agent.goals[-1] == len(counts)
    assert job._progress.rate == 1.5 and agent.declared == [(8, 8, (4, 16))]


def test_a_closed_batch_asks_for_nothing():
    """Without a range the agent is told none, and a view without the flag asks for no rate."""
    job, agent = changing_job()
    agent.rate = 2.0
    for step in job.steps(8, 4):
        agent.change_batch(job, 4, flags=0)
        step.allreduce(numpy.zeros(1))
    assert agent.declared == [(4, 4, None)] and job._progress.rate == 0


@pytest.mark.parametrize(
    "value, error, message",
    [
        ((16, 4), ValueError, r"batch_range=\(16, 4\) is reversed"),
        ((1, 7), ValueError, r"batch_range=\(1, 7\) does not contain batch=8"),
        ((9, 20), ValueError, r"batch_range=\(9, 20\) does not contain batch=8"),
        ((0, 8), ValueError, r"batch_range: the least=0: an integer from 1"),
        ((8, 2**63), ValueError, r"batch_range: the most=9223372036854775808: an integer"),
        ((4.0, 8), TypeError, r"batch_range: the least=4.0"),
        (8, TypeError, r"batch_range=8: the least and the most samples of a step"),
        ((4, 8, 16), TypeError, r"batch_range=\(4, 8, 16\): the least and the most"),
    ],
)
def test_ranges_that_make_no_sense(value, error, message):
    """A range that is reversed, does not contain the batch, or is none, is refused with its
    numbers.
    """
    with pytest.raises(error, match=message):
        next(iter(Job(Solo()).steps(8, 8, batch_range=value)))


def test_all_loops_have_one_range():
    """A second loop states the batch that the program began with, though another is in force, and
    the same range.
    """
    job, agent = changing_job()
    for step in job.steps(16, 8, batch_range=(4, 16)):
        agent.change_batch(job, 4)
        step.allreduce(numpy.zeros(1))
    assert job.place(16, 8, batch_range=(4, 16)).cursor.batch == 4
    with pytest.raises(ValueError, match="this job trains with .4, 16., and all its loops have"):
        job.place(16, 8)


def test_a_checkpoint_keeps_its_batch(tmp_path):
    """A program goes on with the batch of the checkpoint, and the rate that goes with it, where its
    range has the batch, and is refused where it has not. A checkpoint of a time without a range
    says nothing of the rate.
    """

    def begin(agent, **options):
        """A job that goes on from the newest checkpoint; returns its first step."""
        job = Job(agent)
        job.checkpoint(tmp_path, every=1)
        step = next(iter(job.steps(40, 8, **options)))
        return job, step

    first = ChangingSolo()
    job, step = begin(first)
    step.allreduce(numpy.zeros(1))
    job._progress.finish_step(End(9, None))
    job._checkpoints.wait()
    first = ChangingSolo()
    job, step = begin(first, batch_range=(4, 16))
    assert step.number == 1 and job._progress.rate == 0
    first.rate = 1.7
    first.change_batch(job, 16)
    step.allreduce(numpy.zeros(1))
    job._progress.finish_step(End(9, None))
    job._checkpoints.wait()
    second = ChangingSolo()
    job, step = begin(second, batch_range=(8, 32))
    assert step.number == 2 and step.count == 16
    assert job._progress.rate == second.rate == 1.7, "also what the agent was told"
    assert second.declared == [(8, 8, (8, 32)), (16, 8, (8, 32))]
    for options in ({}, {"batch_range": (8, 15)}):
        with pytest.raises(ShoalError, match=r"is of a job with .* = \(40, 16, 0, True\), this"):
            begin(ChangingSolo(), **options)


@pytest.mark.parametrize(
    "every, steps", [("auto", [6, 9, 12, 13, 15, 17, 19]), (4, [4, 8, 12, 16, 20])]
)
def test_steps_between_checkpoints_follow_the_setting(tmp_path, monkeypatch, every, steps):
    """Where the program leaves them to the job, a checkpoint is made as many steps after the one
    before as the setting says, from the step on in which it says so; else as the program says, and
    the agent is not told that the job may choose.
    """
    job, agent = changing_job()
    job.checkpoint(tmp_path, every=every)
    made, saves = [], {5: 3, 12: 1, 13: 2}  # after the step of the number
    monkeypatch.setattr(job._checkpoints, "_save", lambda cursor: made.append(cursor.step))
    for step in job.steps(80, 4, steps=20):
        if step.number in saves:
            agent.save = saves[step.number]
            agent.change_batch(job, 4)
        step.allreduce(numpy.zeros(1))
    assert made[: len(steps)] == steps and made[-1] == 20
    assert agent.told_save == (0 if every == "auto" else None)


def test_a_checkpoint_keeps_the_steps_between_checkpoints(tmp_path):
    """A program that leaves them to the job goes on with those that the job had chosen, which the
    agent is told; one that says itself goes on with its own.
    """

    def begin(every):
        """A job that goes on from the newest checkpoint, its agent, and its first step."""
        job, agent = changing_job()
        job.checkpoint(tmp_path, every=every)
        return job, agent, next(iter(job.steps(80, 4)))

    job, agent, step = begin("auto")
    agent.save = 3
    agent.change_batch(job, 4)
    for number in range(1, 4):
        step.allreduce(numpy.zeros(1))
        assert job._progress.finish_step(End(9, None)) is False
        job._checkpoints.wait()
        assert (job._checkpoints.schedule.newest_step == 3) == (number == 3)
        step = job._progress.open_step()
    for every, told, following in ("auto", 3, 6), (5, None, 8):
        job, agent, step = begin(every)
        assert step.number == 3 and agent.told_save == told
        assert job._checkpoints.schedule.get()[0] == following


def test_statistical_epochs_count_what_samples_bring():
    """Three statistical epochs of 40 samples: those of a batch of 16 whose step is worth 1.5 of the
    stated ones count three quarters, those of a smaller batch more than one, and a rate beyond what
    a step can be worth counts as the most. The loop ends with the step that comes to three.
    """
    job, agent = changing_job()
    # after the step of the number: the batch, the rate, and what a sample is worth from there on
    changes = {1: (16, 1.5, 0.75), 4: (4, 0.6, 1.2), 7: (16, 9.0, 1.0), 9: (16, 0.25, 0.5)}
    efficiency, worth = 1.0, 0.0
    for step in job.steps(40, 8, seed=3, batch_range=(4, 16), statistical_epochs=3):
        assert worth < 3 * 40 and job._progress.efficiency == efficiency
        assert job.statistical_epochs == worth / 40
        change = changes.get(step.number)
        if change is not None:
            agent.rate = change[1]
            agent.change_batch(job, change[0])
        step.allreduce(numpy.zeros(1))
        worth += efficiency * step.count
        assert job.statistical_epochs == worth / 40, "the step counts once it is committed"
        efficiency = efficiency if change is None else change[2]
    assert worth >= 3 * 40 and job._progress.cursor.committed() > worth
    with pytest.raises(ShoalError, match="all 3 statistical epochs of this loop are over"):
        next(job.steps(40, 8, seed=3, batch_range=(4, 16), statistical_epochs=3))


@pytest.mark.parametrize("steps", [None, 11])
def test_with_a_batch_that_stays_they_are_epochs(steps):
    """As many steps as of a loop over epochs, and an end by steps that comes first holds."""
    made = []
    for name in ("epochs", "statistical_epochs"):
        job, agent = changing_job()
        made.append([])
        for step in job.steps(20, 8, batch_range=(4, 16), steps=steps, **{name: 5}):
            made[-1].append((step.epoch, list(step.indices)))
            step.allreduce(numpy.zeros(1))
        assert agent.goals == [len(made[-1])]
    assert made[0] == made[1] and len(made[0]) == (steps or 15)
    with pytest.raises(TypeError, match="statistical_epochs=1.5: how many epochs of the stated"):
        job.steps(20, 8, batch_range=(4, 16), statistical_epochs=1.5)


def test_loops_over_statistical_epochs(tmp_path):
    """As many loops of an epoch as it takes, the last of which ends amid its epoch, with the last
    checkpoint. What the samples are worth is part of that, and a program that goes on from it has
    no loop to make for the same number, and goes on for a larger one.
    """

    def train(count):
        """Train for so many statistical epochs; returns the job and the steps of each loop."""
        job, agent = changing_job()
        job.checkpoint(tmp_path, every=1000)
        agent.rate, made = 1.0, []
        end = End(None, None)
        place = job.place(40, 8, batch_range=(4, 16))
        for epoch in place.epoch_loops(count, end, statistical=True):
            made.append((epoch, 0))
            for step in steps_until(place, end):
                agent.change_batch(job, 16)  # a sample is worth a half
                step.allreduce(numpy.zeros(1))
                made[-1] = epoch, made[-1][1] + 1
        return job, made

    job, made = train(2)
    assert job._backend.goals[-1] == 11
    # 8 samples in the first step, then 144 that are worth 72
    assert made == [(0, 3), (1, 3), (2, 3), (3, 2)] and job.statistical_epochs == 2
    step = job._progress.cursor.step
    job, made = train(2)
    assert made == [] and job.statistical_epochs == 2 and job._progress.cursor.step == step
    job, made = train(3)
    assert made == [(3, 1), (4, 3), (5, 2)] and job.statistical_epochs >= 3


def test_loops_that_are_refused_leave_no_end():
    """After a loop over epochs that are over already, a loop of its own is one epoch, as ever."""
    job, _ = changing_job()
    end = End(None, None)
    place = job.place(16, 8, batch_range=(4, 16))
    for _ in place.epoch_loops(1, end, statistical=True):
        for step in steps_until(place, end):
            step.allreduce(numpy.zeros(1))
    with pytest.raises(ShoalError, match="all 1 epochs of this loop are over"):
        next(place.epoch_loops(1, end, statistical=True))
    numbers = []
    for step in steps_until(place, end):
        numbers.append(step.number)
        step.allreduce(numpy.zeros(1))
    assert numbers == [2, 3]


def test_a_worker_tells_what_it_needs_of_its_gpu(monkeypatch):
    """Once some steps after the batch has changed, and nothing without a range or without a GPU. Of
    several GPUs it tells of the one that it uses, which need not be the current one of torch.
    """
    torch = pytest.importorskip("torch")
    from shoal.torch.device_memory import DeviceMemory

    had = [0, 7]  # by device
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(torch.cuda, "max_memory_reserved", lambda device=0: had[device])
    monkeypatch.setattr(torch.cuda, "memory_reserved", lambda device=0: 5 * device)
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device=0: (4 * device, 10))

    def run(batch_range):
        """The steps at which a worker tells, and what, where the batch becomes another one."""
        job, agent = changing_job()
        told, memory = [], None
        agent.tell_memory = lambda peak, room: told.append((step.number, peak, room))
        for step in job.steps(400, 8, epochs=1, batch_range=batch_range):
            memory = memory or DeviceMemory(job, job._progress)
            memory.begin_step()
            if step.number == 20 and batch_range:
                agent.change_batch(job, 4)
            step.allreduce(numpy.zeros(1))
        return told

    first = run((4, 8))
    assert [t[1:] for t in first] == [(7, 9)] * 2
    assert first[1][0] - first[0][0] == 21 and run(None) == []
    had[:] = [0, 0]
    assert run((4, 8)) == []
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: False)
    assert run((4, 8)) == []
