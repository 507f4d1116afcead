"""Local steps of shoal.torch.optimizer in a job of one, whose agent the test plays: the anchor,
what comes of a round that is made again, clipping, GradScaler, checkpoints, and what does not go
together.
"""

from array import array

import pytest

np = pytest.importorskip("numpy")
torch = pytest.importorskip("torch")
import device_double
from changing_job import changing_job
from local_training import anchor_of, backward, make_data, make_model, make_parts, values_of
from torch import nn, optim

import shoal
import shoal.torch
from shoal._runtime.backend import DeclaredSync
from shoal._runtime.protocol import SAMPLE
from shoal.sync import STRATEGIES, parse
from shoal.torch import averaged, sample
from shoal.torch.moments import _broadcast_text, broadcast_state


@pytest.fixture
def job(monkeypatch):
    """A job of one whose agent the test plays, and which shoal.join() returns; it is left at the
    end of the test.
    """
    job, _ = changing_job()
    monkeypatch.setattr(shoal.job, "_current", job)
    with job:
        yield job


@pytest.mark.parametrize("on_a_device", [False, True])
@pytest.mark.parametrize("name", ["local", "diloco", "pair", "hybrid"])
def test_one_worker_trains_as_without_shoal(job, monkeypatch, name, on_a_device):
    """In rounds of three local steps, of which an epoch of eight has a shorter one, within which
    the anchor stays and the parameters move. (With an outer rate of 1. With sma a replica is drawn
    to the anchor also where there is only one.) On a device, copies to the arena and back are
    ordered with what computes.
    """
    if on_a_device:
        device = device_double.DeviceDouble()
        monkeypatch.setattr(shoal.torch.cuda, "device_of", lambda tensors: device)
    options = ",lr=1,momentum=0" if name == "diloco" else ""
    loader, model, optimizer = make_parts(f"{name}:every=3{options}", epochs=2)
    plain = make_model()
    reference = optim.SGD(plain.parameters(), lr=0.1)
    ends, start = [], values_of(model)
    for x, y in loader:
        step = loader.step
        backward(model, x, y)
        optimizer.step()
        backward(plain, x, y)
        reference.step()
        torch.testing.assert_close(values_of(model), values_of(plain))
        ends.append(step.ends_round)
        moved = values_of(model)
        with optimizer.anchor():
            assert torch.equal(values_of(model), start) != step.ends_round
            start = values_of(model)
        assert torch.equal(values_of(model), moved)
        assert step.committed == step.ends_round
    assert ends == [False, False, True, False, False, True, False, True] * 2


def test_a_round_that_is_left_is_made_again_from_the_anchor(job):
    """Where a loop ends in the midst of a round, by break, its samples come again, and so the next
    one begins with the parameters of the anchor.
    """
    loader, model, optimizer = make_parts("local:every=4")
    start = values_of(model)
    for x, y in loader:
        backward(model, x, y)
        optimizer.step()
        if loader.step.local_index == 1:
            break
    assert not torch.equal(values_of(model), start)
    for x, y in loader:
        assert torch.equal(values_of(model), start) and loader.step.local_index == 0
        break


def test_a_worker_without_samples_makes_no_local_step(job):
    """A batch that is skipped changes nothing, and the round is committed without it."""
    loader, model, optimizer = make_parts("local:every=2", steps=2)
    start = values_of(model)
    for x, y in loader:
        assert not loader.step.skip(True), "the step goes on, and makes no update"
        backward(model, x, y)
        optimizer.step()
    assert torch.equal(values_of(model), start) and job.committed == 2


def test_a_sample_of_the_gradients_of_the_first_local_step_goes_with_the_commit(job, monkeypatch):
    """By it the agent measures how noisy gradients are. It is weighted by the samples of that step,
    is of other elements in each round, and in a round whose first step is left out it is zeros
    with weight 0.
    """
    monkeypatch.setattr(sample, "_FEW", 4)
    loader, model, optimizer = make_parts("local:every=3", epochs=2)
    calls, first, starts = [], [], set()
    plain = type(job).allreduce_async

    def noted(self, x, *arguments, **options):
        """Note what goes as a sample."""
        if options.get("tag") == SAMPLE:
            calls.append((torch.as_tensor(x).clone(), arguments[1]))
        return plain(self, x, *arguments, **options)

    monkeypatch.setattr(type(job), "allreduce_async", noted)
    for x, y in loader:
        step = loader.step
        if step.number == 6:
            assert not step.skip(True)
        backward(model, x, y)
        if not step.local_index:
            whole = [p.grad.reshape(-1) for p in optimizer._anchor.parameters]
            first.append((step.number, step.local_weight, [g.float() for g in whole]))
        optimizer.step()
        assert len(calls) == len(first) - (not step.ends_round), "one goes with each commit"
    for (values, weight), (number, samples, gradients) in zip(calls, first):
        assert weight == samples == (0 if number == 6 else 6)
        elements = sum(map(len, gradients))
        distance = elements // 4 | 1
        fits = [
            start
            for start in range(distance)
            if torch.equal(values, torch.cat([g[start::distance] for g in gradients]))
        ]
        assert samples == 0 and not values.any() or len(fits) == 1, (number, values)
        starts.update(fits)
    assert len(calls) == 6 and len(starts) > 1


def test_a_step_that_is_left_out_leaves_no_trace_in_the_optimizer(job):
    """Gradients that are not finite, in the very first step, get into no moment of Adam's."""
    loader, model, optimizer = make_parts("local:every=2", kind=optim.Adam, steps=2)
    for x, y in loader:
        backward(model, x, y)
        if loader.step.local_index == 0:
            next(model.parameters()).grad.fill_(float("inf"))
            optimizer.grad_scale, optimizer.found_inf = torch.tensor(1.0), torch.zeros(1)
        optimizer.step()
        for name in ("grad_scale", "found_inf"):
            optimizer.__dict__.pop(name, None)
    moments = [s[k] for s in optimizer.inner.state.values() for k in ("exp_avg", "exp_avg_sq")]
    assert moments and all(torch.isfinite(m).all() for m in moments)
    assert torch.isfinite(values_of(model)).all() and job.committed == 2


def test_a_second_optimizer_is_refused(job):
    """A round has one commit, so one optimizer makes its local steps."""
    _, model, _ = make_parts("local:every=2", steps=2)
    with pytest.raises(RuntimeError, match="makes local steps already"):
        shoal.torch.optimizer(optim.SGD(model.parameters(), lr=1), model, sync="local:every=2")


def test_a_loop_that_is_to_end_makes_its_round_to_the_end(job):
    """loader.finish() in the first local step ends the loop with the round."""
    loader, model, optimizer = make_parts("local:every=4", steps=8)
    made = 0
    for x, y in loader:
        backward(model, x, y)
        optimizer.step()
        loader.finish()
        made += 1
    assert made == 4 and job.committed == 4


def test_gradients_of_a_local_step_are_clipped_and_scaled_here(job):
    """average_gradients() leaves them, and with a GradScaler the local step alone is left out whose
    gradients are not finite.
    """
    loader, model, optimizer = make_parts("local:every=2", rate=1.0, steps=2)
    for x, y in loader:
        before = values_of(model)
        for p in model.parameters():
            p.grad = torch.full_like(p, 8.0)
        if loader.step.local_index:
            next(model.parameters()).grad[0] = float("inf")
        optimizer.average_gradients()
        optimizer.grad_scale, optimizer.found_inf = torch.tensor(2.0), torch.zeros(1)
        optimizer.step()
        del optimizer.grad_scale, optimizer.found_inf
        moved = before - values_of(model)
        torch.testing.assert_close(
            moved, torch.full_like(moved, 0 if loader.step.local_index else 4.0)
        )


def test_checkpoints_have_the_anchor(job, tmp_path):
    """A checkpoint of a replica that differs from the anchor has the anchor, under the names of the
    model, and what is kept beside it; one that goes on has both.
    """
    _, model, optimizer = make_parts("sma:momentum=0.5,every=2")
    anchor = optimizer._anchor
    anchor.begin()
    for i, kept in enumerate((anchor.z, anchor.kept["before"])):
        for tensor in kept:
            tensor.fill_(i + 7.0)
    notes, _ = job._state.plan_checkpoint(items := [])
    names = {item.name for item in items}
    assert "model/0.weight" in names and "model/1.running_mean" in names
    parts = [memoryview(bytearray(item.memory())) for item in items]
    for kept in (anchor.z, anchor.kept["before"]):
        for tensor in kept:
            tensor.fill_(-1)
    job._state.restore({**notes, **job._state.plan_checkpoint([])[1]}, parts, checkpoint=True)
    assert set(values_of(model).tolist()) == {7.0}
    assert {float(z.ravel()[0]) for z in anchor.z} == {7.0}
    assert {float(b.ravel()[0]) for b in anchor.kept["before"]} == {8.0}


def test_a_training_goes_on_from_a_checkpoint(monkeypatch, tmp_path):
    """With the anchor, what is kept beside it, and the moments of Adam; the replica begins at the
    anchor.
    """
    found = []
    for steps in (6, 8):
        job, _ = changing_job()
        monkeypatch.setattr(shoal.job, "_current", job)
        with job:
            loader = shoal.torch.loader(make_data(), global_batch=6, steps=steps)
            model = make_model()
            inner = optim.Adam(model.parameters(), lr=0.01)
            optimizer = shoal.torch.optimizer(inner, model, sync="sma:every=2,momentum=0.5")
            job.checkpoint(tmp_path, every=2)
            anchor = optimizer._anchor
            for x, y in loader:
                if steps == 8:
                    assert loader.step.number == 6
                    assert torch.equal(values_of(model), anchor_of(optimizer, model))
                    break
                backward(model, x, y)
                optimizer.step()
                assert not torch.equal(values_of(model), anchor_of(optimizer, model))
            kept = [anchor.z, anchor.kept["before"]]
            moments = [inner.state[p]["exp_avg"] for p in model.parameters()]
            found.append([t.clone() for each in (*kept, moments) for t in each])
    assert all(map(torch.equal, *found))


def test_the_setting_of_the_job_brings_another_strategy(job):
    """Between two rounds: the parameters become the anchor, what was kept begins anew, and with
    synchronous SGD gradients are averaged again. A job with "auto" begins with that.
    """
    loader, model, optimizer = make_parts("auto")
    agent, anchor = job._backend, optimizer._anchor
    assert agent.declared_sync == DeclaredSync("ssgd", 1, auto=True)
    names, ends = [], []
    changes = {1: ("sma:momentum=0.5", 2), 5: ("diloco", 2), 7: ("ssgd", 1)}
    for (x, y), number in zip(loader, range(8)):
        assert loader.step.number == number
        if loader.step.local_index == 0:
            same = torch.equal(values_of(model), anchor_of(optimizer, model))
            assert same == (number != 3)  # the second round of sma
        names.append(anchor.strategy.name)
        ends.append(loader.step.ends_round)
        backward(model, x, y)
        optimizer.average_gradients()
        optimizer.step()
        if number + 1 in changes:
            agent.sync, round = changes[number + 1]
            agent.number += 1
            agent.change(job, round=round)
    assert names == ["ssgd", *["sma"] * 4, *["diloco"] * 2, "ssgd"]
    assert ends == [True, False, True, False, True, False, True, True]
    assert not anchor.kept
    torch.testing.assert_close(anchor_of(optimizer, model), values_of(model))


class _ThreeWorkerStep:
    """The step of a job of three workers, of which rank 2 has another anchor than the others."""

    def __init__(self, anchor):
        """This worker is one of the others, with this anchor."""
        self.other = shoal.torch.local.anchor._digest([z + 1 for z in anchor.z])

    def submit_aside(self, digests):
        """The sum of what all have."""
        digests[1], digests[2] = digests[0], self.other
        self.wait = lambda: digests
        return self


def test_a_change_of_the_strategy_is_void_where_a_worker_has_another_anchor(
    job, monkeypatch, capfd
):
    """All workers go on by the strategy that they have, also with synchronous SGD, in the rounds of
    the setting, and tell the agent; who joins is told of both. When all have the same anchor, the
    next one is taken.
    """
    loader, model, optimizer = make_parts("auto")
    plain = make_model()
    reference = optim.SGD(plain.parameters(), lr=0.1)
    agent, anchor = job._backend, optimizer._anchor
    real = type(anchor).differing_ranks
    monkeypatch.setattr(
        type(anchor), "differing_ranks", lambda a, *_: real(a, _ThreeWorkerStep(a), 3, 0)
    )
    names, ends = [], []
    changes = {1: ("local", 2), 3: ("hybrid", 2)}
    for (x, y), number in zip(loader, range(5)):
        names.append(anchor.strategy.name)
        ends.append(loader.step.ends_round)
        backward(model, x, y)
        optimizer.step()
        backward(plain, x, y)
        reference.step()
        torch.testing.assert_close(values_of(model), values_of(plain))
        assert loader.step.committed == ends[-1]
        if number + 1 == 3:
            monkeypatch.undo()
            monkeypatch.setattr(shoal.job, "_current", job)
        if number + 1 in changes:
            agent.sync, round = changes[number + 1]
            agent.number += 1
            agent.change(job, round=round)
    assert [told[:2] for told in agent.rejected] == [(1, "ssgd")]
    assert "rank 2" in agent.rejected[0][2]
    assert names == [*["ssgd"] * 3, *["hybrid"] * 2] and ends == [True, *[False, True] * 2]
    said = capfd.readouterr().err
    assert said.count("is void") == 1
    assert "sync=local is void, and the job goes on by ssgd" in said and "rank 2 has" in said


class _TwoWorkerStep:
    """The step of two workers that share state: rank 0 says what the other gets."""

    def __init__(self, said=None):
        """`said` None: this is rank 0; else what that has said."""
        self.said, self.first = said or [], said is None

    def submit_aside(self, x, root):
        """A broadcast."""
        assert root == 0
        mine = torch.frombuffer(x, dtype=torch.uint8) if not isinstance(x, torch.Tensor) else x
        if self.first:
            self.said.append(mine.clone())
        else:
            mine.copy_(self.said.pop(0))
        self.wait = lambda: x
        return self


@pytest.mark.parametrize("kind", [optim.Adam, optim.SGD])
def test_all_workers_get_the_state_of_rank_0_for_the_same_parameters(kind):
    """An optimizer has state for the parameters that got a gradient, which are others on each
    worker: of some that rank 0 has none, and of others it alone has some. Its schedulers, and the
    options that they set, are those of rank 0 too.
    """
    options = {"momentum": 0.9, "weight_decay": 0.1} if kind is optim.SGD else {}
    found, told, said = [], [], None
    for used in ([0, 1], [1, 2]):
        parameters = [nn.Parameter(torch.full((3,), float(i + 1))) for i in range(4)]
        inner = kind(parameters, lr=0.1, **options)
        warm = optim.lr_scheduler.LambdaLR(inner, lambda n: 1 / (n + 1))
        plateau = optim.lr_scheduler.ReduceLROnPlateau(inner, patience=used[0])
        for i in used:
            parameters[i].grad = torch.full((3,), float(sum(used) + i))
        inner.step()
        for _ in used[: 1 + (said is None)]:  # one steps its scheduler less often
            warm.step()
        plateau.step(float(used[0]))
        inner.param_groups[0]["betas"] = (0.5, float(used[0]))
        before = [p.detach().clone() for p in parameters]
        step = _TwoWorkerStep(said)
        broadcast_state(step, inner)
        said = step.said
        assert all(map(torch.equal, before, parameters)), "no parameter moves"
        assert [p.grad is not None for p in parameters] == [i in used for i in range(4)]
        found.append([dict(inner.state.get(p, {})) for p in parameters])
        group, keys = inner.param_groups[0], ("lr", "betas")
        told.append([[group[key] for key in keys], warm.state_dict(), plateau.state_dict()])
    assert told[0] == told[1] and told[0][0] == [0.1 / 3, (0.5, 0.0)]
    assert not said, "the second makes as many calls as the first"
    first, second = found
    assert [bool(s) for s in first] == [bool(s) for s in second] == [True, True, False, False]
    for one, other in zip(first, second):
        assert one.keys() == other.keys()
        for key in one:
            assert torch.equal(torch.as_tensor(one[key]), torch.as_tensor(other[key])), key


def test_what_is_no_plain_option_of_a_scheduler_is_named(capfd):
    """It stays what it is on each worker."""
    inner = optim.SGD([nn.Parameter(torch.ones(2))], lr=0.1)
    schedule = optim.lr_scheduler.StepLR(inner, 3)
    schedule.own = torch.ones(2)
    broadcast_state(_TwoWorkerStep(), inner)
    assert "the state of a StepLR is not made the same" in capfd.readouterr().err


def test_the_text_of_another_rank_takes_the_place_of_one_that_is_lost():
    """Where that has another length, all workers ask again."""
    step = _TwoWorkerStep([])
    said = [array("q", [2]), bytes(2), array("q", [3]), b"abc"]
    step.said = [torch.frombuffer(bytearray(s), dtype=torch.uint8) for s in said]
    assert _broadcast_text(step, b"longer") == b"abc" and not step.said


def test_a_replica_begins_again_where_the_rate_drops(job):
    """With sma a replica differs from the anchor, until a learning rate is half of what it was."""
    loader, model, optimizer = make_parts("sma:every=1")
    same = []
    for (x, y), rate in zip(loader, (0.1, 0.1, 0.06, 0.05, 0.05, 0.02)):
        optimizer.param_groups[0]["lr"] = rate
        backward(model, x, y)
        optimizer.step()
        same.append(torch.equal(values_of(model), anchor_of(optimizer, model)))
    assert same == [False, False, False, True, False, True]


@pytest.mark.parametrize("name", sorted(STRATEGIES))
def test_torch_and_numpy_give_the_same_bytes(name):
    """Commits of the same numbers, in float32."""
    random = np.random.default_rng(1)
    drawn = [random.normal(size=1001).astype("f4") for _ in range(4)]
    arrays = [[a.copy()] for a in drawn[:2]]
    tensors = [[torch.tensor(a)] for a in drawn[:2]]
    strategy = parse(name + ":momentum=0.9" * (name in ("sma", "diloco"))).strategy
    kept = [strategy.keep(each[1]) for each in (arrays, tensors)]
    for mean in drawn[2:]:
        strategy.commit(*arrays, kept[0], [mean.copy()], 3)
        strategy.commit(*tensors, kept[1], [torch.tensor(mean)], 3)
        for mine, theirs in zip(arrays, tensors):
            assert mine[0].tobytes() == theirs[0].numpy().tobytes()


def test_what_does_not_go_together_is_refused(job, monkeypatch):
    """With the line to change."""
    data, model = make_data(), make_model()
    opt = optim.SGD(model.parameters(), lr=0.1)

    def refuse(kind, words, *arguments, sync="diloco", **options):
        """Check that these arguments are refused."""
        with pytest.raises(kind, match=words):
            shoal.torch.optimizer(*arguments, sync=sync, **options)

    refuse(ValueError, "did you mean diloco", opt, model, sync="dilocco")
    refuse(RuntimeError, "make it before the optimizer", opt, model)
    loader = shoal.torch.loader(data, global_batch=6)
    refuse(TypeError, "needs the model too: shoal.torch.optimizer", opt)
    refuse(ValueError, "leave compress out", opt, model, compress="bf16")
    refuse(ValueError, "parameters that the model has not", opt, nn.Linear(1, 1))
    wrapped, sharded = make_model(), make_model()
    averaged.of(job).by_ddp.update(wrapped.parameters())
    line = r'Leave out the line that wraps the model.*torch.optimizer\(opt, model, sync="diloco'
    refuse(RuntimeError, line, optim.SGD(wrapped.parameters(), lr=0.1), wrapped)
    zero = shoal.torch.zero(sharded, optim.SGD(sharded.parameters(), lr=0.1))
    refuse(RuntimeError, "In place of shoal.torch.zero", zero, sharded)
    for name, value, words in ("averages", 2, "without averages="), ("meshed", True, "leave sync"):
        with monkeypatch.context() as patch:
            patch.setattr(job._progress, name, value)
            refuse((RuntimeError, ValueError), words, opt, model)
    optimizer = shoal.torch.optimizer(opt, model, sync="local:every=2")
    with pytest.raises(RuntimeError, match="takes no other parameters"):
        optimizer.add_param_group({"params": [nn.Parameter(torch.zeros(1))]})
    for _ in loader:
        with pytest.raises(RuntimeError, match="call loss.backward"):
            optimizer.step(lambda: None)
        with optimizer.anchor(), pytest.raises(RuntimeError, match="outside of the block"):
            optimizer.step()
        break
    assert "SGD" in repr(optimizer) and optimizer.state_dict() == opt.state_dict()
