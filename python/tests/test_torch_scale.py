"""The learning rate follows the batch: by which factor, and that nothing but the step sees it. In a
job of one, whose place in the data the tests change.
"""

import copy
import dataclasses
import inspect
import sys

import pytest

torch = pytest.importorskip("torch")
from torch import optim

import shoal
import shoal.torch
from shoal.torch import averaged
from shoal.torch.scale import rate_factor


@pytest.fixture
def job():
    """A job of one, left at the end of the test."""
    with shoal.join() as job:
        yield job


def _parameter():
    """A parameter of one element, 0, whose gradient is 1."""
    parameter = torch.nn.Parameter(torch.zeros(1))
    parameter.grad = torch.ones(1)
    return parameter


@pytest.mark.parametrize(
    "rule, kind, ratio, rate, factor",
    [
        ("auto", optim.SGD, 4, 0, 4),
        ("auto", optim.SGD, 0.5, 0, 0.5),
        ("auto", optim.SGD, 32, 0, 16),  # linear to 8, then with the square root
        ("auto", optim.SGD, 4, 2.5, 2.5),
        ("auto", optim.Adam, 4, 2.5, 2),
        ("auto", optim.RMSprop, 0.25, 0, 0.5),
        ("auto", optim.Rprop, 4, 0, 1),
        ("linear", optim.Adam, 32, 2.5, 32),
        ("sqrt", optim.SGD, 4, 2.5, 2),
        ("none", optim.SGD, 4, 2.5, 1),
    ],
)
def test_factors(rule, kind, ratio, rate, factor):
    """The factor by rule, optimizer, batch and the rate of the job's setting."""
    assert rate_factor(rule, kind([_parameter()], lr=1.0), ratio, rate) == factor


def _place_at(job, batch, number):
    """Have the step under way be of a batch, and give it a number of its own."""
    progress = job._progress
    progress.cursor = dataclasses.replace(progress.cursor, batch=batch, step=number)


@pytest.mark.parametrize("scheduled_before", [False, True])
def test_only_the_step_sees_the_factor(job, scheduled_before):
    """The parameter moves by the multiplied rate of the schedule; the groups, state_dict and the
    schedule have the rate without it, whether the schedule was made before the optimizer or after.
    """
    shoal.torch.loader([0] * 64, global_batch=4, batch_range=(2, 16))
    parameter = _parameter()
    opt = optim.SGD([parameter], lr=1.0)
    schedule = optim.lr_scheduler.StepLR(opt, 1, 0.5) if scheduled_before else None
    averaging = shoal.torch.optimizer(opt)
    assert len(inspect.signature(opt.step).parameters) == 2, "any arguments"
    shoal.torch.optimizer(opt)  # once is enough: the factor does not count twice
    schedule = schedule or optim.lr_scheduler.StepLR(opt, 1, 0.5)
    moved = []
    for number, batch in enumerate((4, 16, 2)):
        _place_at(job, batch, number)
        job._progress.open_step()
        before = parameter.item()
        parameter.grad = torch.ones(1)
        averaging.step()
        moved.append(before - parameter.item())
        assert opt.param_groups[0]["lr"] == 0.5**number == averaging.state_dict()["param_groups"][
            0
        ]["lr"], "the factor was taken back"
        schedule.step()
        averaging.zero_grad()
    assert moved == [1.0, 4 * 0.5, 0.5 * 0.25]
    assert opt._step_count if hasattr(opt, "_step_count") else opt._opt_called


def test_an_optimizer_that_ddp_averages_for_follows_too(job):
    """What shoal.torch.optimizer returns where another averages is the optimizer itself, and its
    step follows the batch; a rate that the step itself sets stays, and an error takes the factor
    back.
    """
    shoal.torch.loader([0] * 64, global_batch=4, batch_range=(2, 16))

    class Setting(optim.SGD):
        """Sets its own rate in each step; fails where the rate is above 9."""

        def step(self, closure=None):
            """Step, and halve the rate."""
            if self.param_groups[0]["lr"] > 9:
                raise OverflowError
            super().step(closure)
            self.param_groups[0]["lr"] /= 2

    parameter = _parameter()
    averaged.of(job).by_ddp.update([parameter])
    opt = Setting([parameter], lr=2.0)
    assert shoal.torch.optimizer(opt) is opt and job._progress.rate_decided
    _place_at(job, 8, 1)
    opt.step()
    assert parameter.item() == -4 and opt.param_groups[0]["lr"] == 2.0
    opt.param_groups[0]["lr"] = 8.0
    with pytest.raises(OverflowError):
        opt.step()
    assert opt.param_groups[0]["lr"] == 8.0


def test_a_sharded_optimizer_follows_too(job):
    """The step of shoal.torch.zero moves its parameters by the multiplied rate."""
    shoal.torch.loader([0] * 64, global_batch=4, batch_range=(2, 16))
    model = torch.nn.Linear(1, 1, bias=False)
    sharded = shoal.torch.zero(model, optim.Adam(model.parameters(), lr=0.25))
    moved = []
    for number, batch in enumerate((4, 16)):
        _place_at(job, batch, number)
        job._progress.open_step()
        before = model.weight.item()
        model(torch.ones(1, 1)).sum().backward()
        sharded.step()
        moved.append(before - model.weight.item())
        sharded.zero_grad()
    # Adam's first steps along a gradient that stays are as long as the rate.
    assert moved == pytest.approx([0.25, 0.5], rel=1e-4)
    assert sharded.param_groups[0]["lr"] == 0.25


def test_without_a_range_the_optimizer_stays_as_it_is(job):
    """A loader without a range leaves the step of the optimizer alone, and another rule than the
    four is refused.
    """
    shoal.torch.loader([0] * 64, global_batch=4)
    opt = optim.SGD([_parameter()], lr=1.0)
    shoal.torch.optimizer(opt)
    assert "step" not in vars(opt)
    with pytest.raises(ValueError, match="lr_scaling='double': one of 'auto', 'linear', 'sqrt'"):
        shoal.torch.optimizer(opt, lr_scaling="double")
    with pytest.raises(ValueError, match=r"batch_range=\(8, 16\) does not contain global_batch=4"):
        shoal.torch.loader([0] * 64, global_batch=4, batch_range=(8, 16))


@pytest.mark.parametrize("ranged", [False, True])
def test_no_rate_follows_a_job_that_was_left(ranged):
    """The rate of an optimizer follows the batch of the job that it trains in, whatever that of one
    before has been.
    """
    parameter = _parameter()
    opt = optim.SGD([parameter], lr=1.0)
    with shoal.join() as job:
        shoal.torch.loader([0] * 64, global_batch=4, batch_range=(2, 16))
        shoal.torch.optimizer(opt)
        _place_at(job, 8, 1)
    with shoal.join() as job:
        shoal.torch.loader([0] * 64, global_batch=4, batch_range=(2, 16) if ranged else None)
        shoal.torch.optimizer(opt)
        _place_at(job, 16, 1)
        opt.step()
    assert parameter.item() == (-4 if ranged else -1)


def test_that_nobody_follows_is_said_once(job, capfd, monkeypatch):
    """A job of one is told nothing, for nobody changes its batch; rank 0 of another one, once."""
    loader = shoal.torch.loader([0] * 64, global_batch=4, batch_range=(2, 16))
    loader._warn_of_fixed_rate()
    assert capfd.readouterr().err == "" and job._progress.rate_decided

    job._progress.rate_decided = False
    monkeypatch.setattr(sys.modules["shoal.torch.loader"], "Solo", ())  # as if there were an agent
    loader._warn_of_fixed_rate()
    loader._warn_of_fixed_rate()
    assert capfd.readouterr().err.count("no learning rate follows it: make the optimizer by") == 1


@pytest.mark.parametrize("kind", ["StepLR", "OneCycleLR", "ChainedScheduler", "SequentialLR"])
def test_a_schedule_follows_what_the_samples_are_worth(job, kind):
    """A schedule advances by one for each global_batch of samples, whatever batches are: by many
    after a large one, and not at all after a small one; and never beyond its end.
    """
    loader = shoal.torch.loader([0] * 640, global_batch=4, batch_range=(2, 64), epochs=9)
    schedules = optim.lr_scheduler

    def make():
        """A schedule of that kind, of an optimizer of its own."""
        opt = optim.SGD([_parameter()], lr=1.0)
        steps = [schedules.StepLR(opt, 1, 0.5) for _ in range(2)]
        return {
            "StepLR": lambda: steps[0],
            "OneCycleLR": lambda: schedules.OneCycleLR(opt, 1.0, 20),
            "ChainedScheduler": lambda: schedules.ChainedScheduler(steps),
            "SequentialLR": lambda: schedules.SequentialLR(opt, steps, [6]),
        }[kind]()

    plain, schedule, made = make(), shoal.torch.schedule(make()), 0
    # the batch, the rate, and how many steps of the stated batch the job is worth then
    for batch, rate, worth in ((4, 0, 1), (2, 0, 1), (2, 0, 2), (32, 4.0, 6), (64, 14.0, 20)):
        job._progress.cursor = dataclasses.replace(job._progress.cursor, batch=batch)
        job._progress.rate = rate
        job._progress.open_step().commit_without_average()
        schedule.optimizer.step()
        schedule.step()
        for _ in range(made, worth):
            plain.optimizer.step()
            plain.step()
        made = worth
        assert schedule.get_last_lr() == plain.get_last_lr()
        job._progress.finish_step(loader._end)
    job._progress.open_step().commit_without_average()
    schedule.step()  # OneCycleLR has 20 steps
    assert job.statistical_epochs > 20 * 4 / 640


def test_a_schedule_that_stands_still_holds_nobody_up(job):
    """A schedule that leaves out steps, as some do where the optimizer has, is asked as often as
    the samples are worth, and not until it has counted them.
    """
    shoal.torch.loader([0] * 64, global_batch=4, batch_range=(2, 16))
    inner = optim.lr_scheduler.StepLR(optim.SGD([_parameter()], lr=1.0), 1)
    asked = []

    def stand_still():
        """Note that the schedule is asked to advance, and leave it where it is."""
        asked.append(inner.last_epoch)
        assert len(asked) < 9, "it is asked without end"

    inner.step = stand_still
    _place_at(job, 8, 0)
    job._progress.open_step().commit_without_average()
    shoal.torch.schedule(inner).step()
    assert asked == [0, 0]


def test_a_schedule_is_copied(job):
    """A copy of a schedule, which has no attributes while it is made, is one of the same."""
    shoal.torch.loader([0] * 64, global_batch=4)
    inner = optim.lr_scheduler.StepLR(optim.SGD([_parameter()], lr=1.0), 1)
    copied = copy.copy(shoal.torch.schedule(inner))
    assert copied.inner is inner and copied.gamma == inner.gamma
    assert not hasattr(copied, "no_such_thing")


def test_what_is_no_schedule_is_refused(job):
    """A schedule by a metric, a class, and one without a loader whose samples it follows."""
    opt = optim.SGD([_parameter()], lr=1.0)
    with pytest.raises(shoal.ShoalError, match="make shoal.torch.loader first"):
        shoal.torch.schedule(optim.lr_scheduler.StepLR(opt, 1))
    for wrong in (optim.lr_scheduler.ReduceLROnPlateau(opt), optim.lr_scheduler.StepLR, opt):
        with pytest.raises(TypeError, match="a schedule that is stepped without a metric"):
            shoal.torch.schedule(wrong)
