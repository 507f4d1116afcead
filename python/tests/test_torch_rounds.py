"""What keeps rounds of local steps right in programs that do more than the plain loop: weights that
are loaded late, steps that are left out, workers without samples. In a job of one, whose agent the
test plays.
"""

import copy
import types
from array import array

import pytest

pytest.importorskip("numpy")
torch = pytest.importorskip("torch")
from changing_job import changing_job
from local_training import anchor_of, backward, make_data, make_model, make_parts, values_of

import shoal
import shoal.torch
from shoal._checkpoint.shards import catalogue, shard_ranges
from shoal._runtime.protocol import SAMPLE
from shoal.torch.bucket import Bucket
from shoal.torch.nccl import NcclExchange


@pytest.fixture
def job(monkeypatch):
    """A job of one whose agent the test plays, and which shoal.join() returns; it is left at the
    end of the test.
    """
    job, _ = changing_job()
    monkeypatch.setattr(shoal.job, "_current", job)
    with job:
        yield job


@pytest.mark.parametrize("sync", ["diloco:every=2,lr=1", "sma:every=2,momentum=0.5", "auto"])
def test_weights_that_are_loaded_before_the_loop_are_where_the_anchor_begins(job, sync):
    """Also those that the program loads once the optimizer is there. Who joins before the first
    step gets them, and later changes of the parameters do not move the anchor.
    """
    loader, model, optimizer = make_parts(sync, rate=1e-4)
    loaded = {name: 3 * value + 1 for name, value in model.state_dict().items()}
    model.load_state_dict(loaded)
    start = values_of(model)
    assert torch.equal(anchor_of(optimizer, model), start)
    job._state.plan_checkpoint(items := [])
    weight = next(item for item in items if item.name == "model/0.weight")
    assert bytes(weight.memory()) == loaded["0.weight"].numpy().tobytes()
    moved = []
    for (x, y), _ in zip(loader, range(2)):
        assert torch.equal(anchor_of(optimizer, model), start) == (not moved or sync != "auto")
        backward(model, x, y)
        optimizer.step()
        moved.append(values_of(model))
    assert (anchor_of(optimizer, model) - start).abs().max() < 1
    for before in optimizer._anchor.kept.get("before", []):
        assert bytes(before.numpy()) in [bytes(v.numpy()) for v in loaded.values()]


def test_what_is_taken_from_a_checkpoint_is_where_the_anchor_begins(job):
    """Though the first step is opened after that: the replica of sma stays what it is."""
    loader, model, optimizer = make_parts("sma:every=2")
    notes = job._state.plan_checkpoint(items := [])
    parts = [memoryview(bytearray(item.memory())) for item in items]
    job._state.restore({**notes[0], **notes[1]}, parts, checkpoint=True)
    start = values_of(model)
    with torch.no_grad():
        next(model.parameters()).add_(1)
    for _ in loader:
        assert torch.equal(anchor_of(optimizer, model), start)
        break


def test_workers_that_are_lost_do_not_count_where_anchors_are_compared(job):
    """They have said nothing: also where most are lost, those that are there decide."""
    _, _, optimizer = make_parts("local:every=2")
    anchor = optimizer._anchor

    class Step:
        """A step of four workers, of which rank 0 is this one."""

        def __init__(self, *others):
            """`others` have these checksums; None = that of this worker."""
            self.others = others

        def submit_aside(self, digests):
            """The sum of what all have."""
            digests[1:] = array("q", [digests[0] if o is None else o for o in self.others])
            self.wait = lambda: digests
            return self

    assert anchor.differing_ranks(Step(0, 0, None), 4, 0) == []
    assert anchor.differing_ranks(Step(0, 0, 7), 4, 0) == [3]
    assert anchor.differing_ranks(Step(7, 0, 7), 4, 0) == [0]


def test_an_anchor_block_within_another_does_not_end_it(job):
    """A step is refused in the outer block too, and the parameters are the anchor up to its end."""
    loader, model, optimizer = make_parts("sma:every=1")
    for (x, y), _ in zip(loader, range(2)):
        backward(model, x, y)
        optimizer.step()
        own = values_of(model)
        with optimizer.anchor():
            start = anchor_of(optimizer, model)
            assert torch.equal(values_of(model), start) and not torch.equal(own, start)
            with pytest.raises(RuntimeError, match="outside of the block"):
                optimizer.step()
        assert torch.equal(values_of(model), own)


@pytest.mark.parametrize("sync", ["local:every=3", "pair:every=3"])
def test_a_local_step_without_a_step_of_the_optimizer_is_an_error(job, sync):
    """Said in the next one, in whose place a partner could wait for ever; a step that is left out
    by step.skip is none, and neither is a loop that is left.
    """
    loader, model, optimizer = make_parts(sync)
    for x, y in loader:
        break
    with pytest.raises(RuntimeError, match="step 4 ended without optimizer.step"):
        for x, y in loader:
            if loader.step.number == 4:
                continue
            loader.step.skip(loader.step.number == 1)
            backward(model, x, y)
            optimizer.step()
    assert job.committed == 3


def test_gradients_that_are_averaged_and_left_are_no_error(job):
    """With gradients averaged in each step, also in rounds of several, which there are where a
    change of the strategy was void.
    """
    loader, model, optimizer = make_parts("auto", steps=4)
    job._progress.cursor = job._progress.cursor.with_round(2)
    for x, y in loader:
        assert loader.step.local_steps == 2
        backward(model, x, y)
        optimizer.average_gradients()
        optimizer.zero_grad()
    assert job.committed == 4


@pytest.mark.parametrize("how", ["switch", "resume"])
def test_rates_of_before_do_not_have_a_replica_begin_again(job, how):
    """It is at the anchor after a change of the strategy, and where a training goes on: from there
    on rates are compared.
    """
    loader, model, optimizer = make_parts("sma:every=1")
    same = []
    for (x, y), rate in zip(loader, (0.1, 0.1, 0.01, 0.01, 0.005)):
        optimizer.param_groups[0]["lr"] = rate
        backward(model, x, y)
        optimizer.step()
        same.append(torch.equal(values_of(model), anchor_of(optimizer, model)))
        if len(same) == 2 and how == "switch":
            job._backend.sync = "sma:alpha=0.2"
            job._backend.change(job)
        elif len(same) == 2:
            notes = job._state.plan_checkpoint(items := [])
            parts = [memoryview(bytearray(item.memory())) for item in items]
            job._state.restore({**notes[0], **notes[1]}, parts, checkpoint=True)
    assert same == [False, False, False, False, True]


def _disregard(step):
    """Have the samples of this worker not count in a step, as those of a worker without samples."""
    step.weight = step.local_weight = 0


@pytest.mark.parametrize("by", ["optimizer", "auto", "ddp", "ddp that finds unused"])
def test_a_gradient_that_nobody_has_whose_samples_count_is_none(job, by):
    """A worker without samples computes too, on those of others: it must not step with a gradient
    that is its own.
    """
    loader = shoal.torch.loader(make_data(), global_batch=6)
    model = make_model()
    inner = torch.optim.SGD(model.parameters(), lr=0.1)
    if by.startswith("ddp"):
        find = by.endswith("unused")
        model, optimizer = shoal.torch.ddp(model, find_unused_parameters=find), inner
        job.size = 2  # a worker that is alone averages nothing
    else:
        optimizer = shoal.torch.optimizer(inner, model, sync="auto" if by == "auto" else None)
    start = values_of(model)
    for x, y in loader:
        _disregard(loader.step)
        backward(model, x, y)
        optimizer.step()
        assert torch.equal(values_of(model), start)
        assert by.startswith("ddp") or all(p.grad is None for p in model.parameters())
        break


def test_devices_give_nothing_where_nobody_has_samples_that_count(job):
    """Where the workers are lost that had the samples of a step, those that are left have computed
    on samples that come again: on the path by NCCL too there is no gradient then.
    """
    loader = shoal.torch.loader(make_data(), global_batch=6)
    summed = []
    devices = types.SimpleNamespace(begin_step=lambda step: None, all_reduce=summed.append)
    bucket = Bucket([torch.zeros(3)])
    job.size = 2
    for _ in loader:
        _disregard(loader.step)
        loader.step._weights = [0, 6]  # and rank 1 is lost
        exchange = NcclExchange(job, [bucket], devices, [0])
        exchange.begin_step()
        bucket.pack([torch.ones(3)])
        exchange.submit_full(1, end=False)
        assert [t.tolist() for t in summed] == [[0.0] * 4] and bucket.unpack() == [None]
        job.size = 1
        loader.step.commit_without_average()
        break


def test_an_optimizer_that_compresses_sends_samples(job, monkeypatch):
    """The agent does not get such gradients as they are, and learns by samples how noisy they
    are. Gradients of which others can be computed are averaged as any.
    """
    loader = shoal.torch.loader(make_data(), global_batch=6)
    model = make_model()
    inner = torch.optim.SGD(model.parameters(), lr=0.1)
    optimizer = shoal.torch.optimizer(inner, compress="int8")
    monkeypatch.setattr(shoal.torch.sample, "_EVERY", 1)
    tags, share = [], shoal.Step.share
    monkeypatch.setattr(
        shoal.Step,
        "share",
        lambda *arguments, tag=0, **options: tags.append(tag) or share(*arguments, **options),
    )
    for x, y in loader:
        ((model(x) - y) ** 2).mean().backward(create_graph=True)
        optimizer.step()
        break
    assert tags.count(SAMPLE) == 1


def test_a_group_of_what_ddp_averages_is_averaged_there_alone(job):
    """Also where the optimizer gets it later: an average of averages is rounded, or compressed,
    once more.
    """
    shoal.torch.loader(make_data(), global_batch=6)
    other = torch.nn.Linear(3, 1)
    optimizer = shoal.torch.optimizer(torch.optim.SGD(other.parameters(), lr=0.1))
    model = shoal.torch.ddp(make_model())
    optimizer.add_param_group({"params": list(model.parameters())})
    averaged_here = [id(p) for b in optimizer._buckets for p in b.parameters]
    assert averaged_here == [id(p) for p in other.parameters()]
    assert len(optimizer.inner.param_groups) == 2


@pytest.mark.parametrize("sync", ["local:every=1", "sma:every=1", "pair:every=1"])
def test_the_anchor_stays_where_all_are_lost_who_had_samples(job, sync):
    """The others commit the round without them; what their replicas have does not count."""
    loader, model, optimizer = make_parts(sync)
    start = values_of(model)
    for x, y in loader:
        backward(model, x, y)
        optimizer.inner.step()
        _disregard(loader.step)
        optimizer.step()
        break
    assert torch.equal(anchor_of(optimizer, model), start)


def test_a_replica_without_samples_in_the_round_gives_nothing_to_the_anchor(job):
    """The mean has nothing of it, so by sma it would lose what no other gets."""
    loader, model, optimizer = make_parts("sma:every=1")
    for (x, y), number in zip(loader, range(2)):
        backward(model, x, y)
        if number == 1:
            _disregard(loader.step)
        before = values_of(model)
        optimizer.step()
        assert torch.equal(values_of(model), before) == (number == 1)
    assert not torch.equal(before, anchor_of(optimizer, model))


def test_samples_that_are_left_out_of_a_local_step_are_in_no_buffer(job):
    """Inputs that are not finite get into the running means of this worker, which are left out of
    the commit, where step.skip leaves out the step. Those of other rounds are what they become.
    """
    loader, model, optimizer = make_parts("local:every=2", steps=6)
    norm = model[1]
    for x, y in loader:
        step = loader.step
        if step.local_index == 0:
            before = norm.running_mean.clone()
        if step.number == 2:
            x = x * float("nan")
        loss = ((model(x) - y) ** 2).mean()
        assert not step.skip(not torch.isfinite(loss))
        model.zero_grad()
        loss.backward()
        optimizer.step()
        if step.ends_round:
            assert torch.equal(norm.running_mean, before) == (step.number == 3)
            assert torch.isfinite(norm.running_var).all()


def test_tensors_of_all_workers_have_the_same_place_in_a_checkpoint(job):
    """Though an optimizer has state for some parameters only, others on each worker: what is
    registered after it is written by all workers in parts, by its place.
    """
    _, model, optimizer = make_parts("local:every=2", kind=torch.optim.Adam)
    job.register("average", lambda: {"w": torch.ones(3)}, lambda value: None)
    places = []
    for used in (0, 1):
        for p in list(model.parameters())[:used]:
            p.grad = torch.ones_like(p)
        optimizer.inner.step()
        job._state.plan_checkpoint(items := [], 2)
        ranges = shard_ranges(catalogue(items), 1, 2)
        places.append([r for r in ranges if items[r.tensor].name == "average/w"])
    assert places[0] == places[1] != []


@pytest.mark.parametrize(
    "text, by_samples, parts",
    [("pair:every=2", False, 1), ("hybrid:every=2", True, 1), ("hybrid:every=2,parts=4", True, 4)],
)
def test_partners_of_hybrid_are_weighted_by_their_samples(
    job, monkeypatch, text, by_samples, parts
):
    """And those of pair are not: replicas keep beyond the round what a meeting gives. They average
    one of as many parts as the text says.
    """
    loader, model, optimizer = make_parts(text)
    found = []
    monkeypatch.setattr(
        optimizer._partners,
        "average",
        lambda step, by_samples, parts: found.append((by_samples, parts)),
    )
    for x, y in loader:
        backward(model, x, y)
        optimizer.step()
        break
    assert found == [(by_samples, parts)]


@pytest.mark.parametrize("loaded", [False, True])
def test_a_step_that_is_left_out_is_no_step_of_the_optimizer(job, loaded):
    """The first step, without samples that count, is not one of Adam's, and the decay of the
    weights is in no moment then; a state that is loaded after it stays.
    """
    loader, model, optimizer = make_parts(
        "local:every=1",
        kind=lambda parameters, lr: torch.optim.Adam(parameters, lr, weight_decay=0.1),
        steps=2,
    )
    plain = make_model()
    reference = torch.optim.Adam(plain.parameters(), 0.1, weight_decay=0.1)
    for x, y in loader:
        backward(model, x, y)
        backward(plain, x, y)
        if loader.step.number == 0:
            loader.step.weight = loader.step.local_weight = 0
            optimizer.step()
            assert optimizer.inner.state, "in a checkpoint all workers have the same tensors"
            if loaded:
                other = make_model()
                fuller = torch.optim.Adam(other.parameters(), 0.1, weight_decay=0.1)
                backward(other, x, y)
                fuller.step()
                optimizer.load_state_dict(copy.deepcopy(fuller.state_dict()))
                reference.load_state_dict(fuller.state_dict())
        else:
            optimizer.step()
            reference.step()
    torch.testing.assert_close(values_of(model), values_of(plain))
