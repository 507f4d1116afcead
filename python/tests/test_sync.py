"""Strategies of shoal.sync, in a simulated world of NumPy workers: what the contract promises holds
for all of them, whatever is lost, joins or changes.
"""

import os
import random

import pytest

np = pytest.importorskip("numpy")
from sync_world import RATE, World, assert_alike

from shoal.sync import STRATEGIES, parse, partners
from shoal.sync.matching import average_pair, part_of_step

SEED = int(os.environ.get("SEED", 1))
TEXTS = [
    "ssgd",
    "local:every=4",
    "diloco:every=4",
    "sma:every=2,momentum=0.5",
    "pair:every=4",
    "hybrid:every=3",
    "hybrid:every=3,parts=2",
]


@pytest.mark.parametrize("text", TEXTS)
def test_the_contract_holds_whatever_happens(text):
    """In rounds with losses in their midst, joins and other strategies, the anchor stays the same
    bytes on all workers, and each sample counts exactly once an epoch.
    """
    print(f"SEED {SEED}")
    chance = random.Random(f"{text} {SEED}")
    world, happened = World(4, text), set()
    for _ in range(60):
        what = chance.choice(["nothing", "loss", "loss", "join", "switch"])
        size = len(world.workers)
        if what == "join" and size < 6:
            world.join()
        elif what == "switch":
            world.switch(text if world.sync.strategy.name != parse(text).strategy.name else "local")
        lost = {}
        if what == "loss" and size > 1:
            for rank in chance.sample(range(size), chance.randrange(1, size)):
                lost[rank] = chance.randrange(world.sync.every + 1)
        world.step(lost)
        happened.add((what, bool(lost)))
        assert_alike(world)
        committed, epochs = world.cursor.committed(), world.cursor.epoch
        assert world.taken.sum() == committed
        assert world.taken.min() >= epochs and world.taken.max() <= epochs + 1
    assert {"loss", "join", "switch"} <= {what for what, _ in happened}


def _averaged_gradients(world):
    """The anchor after one step of SGD with the mean gradient of a whole batch, from where the
    world is.
    """
    at = np.asarray(world.cursor.order().take(world.cursor.part(0, 1)), int)
    first = world.workers[0]
    return [z - np.float32(RATE) * g for z, g in zip(first.z, world.gradients(first, at))]


@pytest.mark.parametrize("text", ["ssgd", "local:every=1", "diloco:every=1,lr=1,momentum=0"])
def test_a_round_of_one_plain_step_is_synchronous_sgd(text):
    """Also where workers have different numbers of samples, which only weighting by samples gives:
    12 samples on five workers.
    """
    world = World(5, text)
    for _ in range(20):
        want = _averaged_gradients(world)
        world.step()
        for z, wanted in zip(world.workers[0].z, want):
            np.testing.assert_allclose(z, wanted, rtol=1e-5, atol=1e-6)


def test_a_wrong_sign_of_the_outer_gradient_is_seen():
    """The comparison with synchronous SGD fails when the mean has the other sign, as it had in
    torchft 233: the loss grows, and no step agrees.
    """
    world = World(5, "diloco:every=1,lr=1,momentum=0")
    world.sign, before, want = -1.0, world.loss(), _averaged_gradients(world)
    world.step()
    assert world.loss() > before
    assert np.abs(world.workers[0].z[0] - want[0]).max() > 1e-3


@pytest.mark.parametrize("text", TEXTS)
def test_all_strategies_learn(text):
    """After as many samples the anchor is about as good as with synchronous SGD."""
    losses = []
    for sync in ("ssgd", text):
        world = World(4, sync)
        while world.cursor.epoch < 24:
            world.step()
        losses.append(world.loss())
    assert losses[1] < 1.1 * losses[0] < 0.2 * World(4, "ssgd").loss()


def test_the_outer_step_is_nesterov():
    """Two outer steps of diloco, by hand."""
    strategy = parse("diloco:lr=0.5,momentum=0.5").strategy
    z, w = [np.zeros(1)], [np.zeros(1)]
    kept = strategy.keep(z)
    strategy.commit(w, z, kept, [np.ones(1)], 2)  # v = 1, z = 0.5 (1 + 0.5)
    assert z[0] == w[0] == 0.75 and kept["velocity"][0] == 1
    strategy.commit(w, z, kept, [np.ones(1)], 2)  # v = 1.5, z += 0.5 (1 + 0.75)
    assert z[0] == w[0] == 1.625 and kept["velocity"][0] == 1.5


def test_what_replicas_give_is_what_the_central_model_takes():
    """In sma, with as many samples each, the replicas and the anchor keep their sum; with many
    workers alpha is such that the anchor and their mean meet, and do not pass each other.
    """
    for workers in (4, 40):
        strategy = parse("sma:alpha=0.1").strategy
        z, replicas = [np.zeros(1)], [[np.array([float(i)])] for i in range(workers)]
        sum_before, mean = sum(w[0] for w in replicas), np.mean([w[0] for w in replicas])
        for w in replicas:
            copy = [z[0].copy()]
            strategy.commit(w, copy, {}, [np.array([mean])], workers)
        np.testing.assert_allclose(sum(w[0] for w in replicas) + copy[0], sum_before)
        np.testing.assert_allclose(copy[0], mean * workers * min(0.1, 1 / (workers + 1)))


def test_partners_are_a_matching_that_follows_from_the_seed():
    """Partners are each other's, one rests where the size is odd, and all pairs come about as
    often.
    """
    for size in range(1, 8):
        pairs = {}
        for step in range(600):
            found = partners(7, step, size)
            assert found == partners(7, step, size)
            assert all(found[found[rank]] == rank for rank in range(size))
            assert sum(found[rank] == rank for rank in range(size)) == size % 2
            for pair in enumerate(found):
                pairs[pair] = pairs.get(pair, 0) + 1
        if size > 2:
            assert len(pairs) == size * (size - 1 + size % 2)
            assert max(pairs.values()) < 1.5 * min(pairs.values())
    assert partners(7, 0, 6) != partners(8, 0, 6)


@pytest.mark.parametrize("weights", [(3, 2), (4, 0), (0, 0), (5, 5)])
def test_partners_have_the_same_bytes_and_keep_their_weighted_sum(weights):
    """So by hybrid a meeting leaves what the commit averages as it is, whatever parts they have; of
    workers without samples nothing counts.
    """
    random = np.random.default_rng(1)
    one, other = (random.normal(size=99).astype("f4") for _ in range(2))
    found = [[one.copy()], [other.copy()]]
    average_pair(found[0], [other.copy()], weights)
    average_pair(found[1], [one.copy()], weights[::-1])
    assert found[0][0].tobytes() == found[1][0].tobytes()
    before = weights[0] * one + weights[1] * other
    np.testing.assert_allclose(sum(weights) * found[0][0], before, rtol=1e-4, atol=1e-5)


def test_partners_average_each_element_as_often():
    """Once in as many steps as there are parts, whatever the size; an array of few elements rests
    in some of them.
    """
    for elements in (0, 1, 3, 22, 100):
        for parts in (1, 2, 22):
            met = np.zeros(elements, int)
            for step in range(7, 7 + 2 * parts):
                cut = part_of_step(elements, step, parts)
                assert len(met[cut]) <= -(-elements // parts)
                met[cut] += 1
            assert (met == 2).all()


def test_texts_name_strategies():
    """Names, options with commas or colons, and what settings of a job have of them."""
    assert {name: parse(name).every for name in STRATEGIES} == {
        "ssgd": 1,
        "local": 16,
        "diloco": 16,
        "sma": 1,
        "pair": 16,
        "hybrid": 16,
    }
    sync = parse("diloco:every=8,lr=0.5")
    assert (sync.every, sync.strategy.values) == (8, {"lr": 0.5, "momentum": 0.9})
    assert sync.strategy.text == "diloco:lr=0.5"
    long = parse("diloco:lr=0.1234567").strategy
    assert parse(long.text).strategy.values == long.values, "who joins has the same numbers"
    hybrid = parse("hybrid:every=32,parts=22").strategy
    assert (hybrid.parts, hybrid.text, parse("pair").strategy.parts) == (22, "hybrid:parts=22", 1)
    assert parse("sma:alpha=0.2:every=2").every == 2 and parse("diloco").strategy.text == "diloco"


@pytest.mark.parametrize(
    "text, words",
    [
        ("dilocco:every=8", "did you mean diloco"),
        ("diloco:evry=8", "did you mean every"),
        ("local:lr=1", "local has every, no 'lr'"),
        ("ssgd:every=2", "averages gradients in every step"),
        ("ssgd:lr=2", "has no options"),
        ("diloco:every=0", "an integer from 1"),
        ("diloco:every=1.5", "an integer from 1"),
        ("diloco:every", "an integer from 1"),
        ("diloco:momentum=1", "up to, not including, 1"),
        ("diloco:lr=inf", "a number above 0, not 'inf'"),
        ("diloco:lr=nan", "a number above 0"),
        ("sma:alpha=0", "above 0, up to 1"),
        ("hybrid:parts=1.5", "parts of hybrid is an integer from 1 to 1024"),
        ("hybrid:parts=0", "an integer from 1 to 1024"),
        ("pair:parts=2", "pair has every, no 'parts'"),
        ("", "there is no strategy ''"),
    ],
)
def test_what_names_no_strategy_is_refused(text, words):
    """With what there is, and the nearest spelling."""
    with pytest.raises(ValueError, match=words.replace("(", "\\(")):
        parse(text)


def test_what_is_no_text_is_refused():
    """Such as a number."""
    with pytest.raises(TypeError, match="give a text"):
        parse(16)
