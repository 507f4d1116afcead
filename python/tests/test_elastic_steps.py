"""Training in steps with workers that are killed: every sample exactly once an epoch, and the same state everywhere."""

import json
import pathlib
import re

import pytest

pytest.importorskip("numpy")
WORKER = pathlib.Path(__file__).with_name("elastic_numpy.py")


def results(output):
    """What the workers that finished printed."""
    return [json.loads(line) for line in re.findall(r"RESULT (.*)", output)]


@pytest.mark.parametrize("n", [1, 2, 3, 4])
@pytest.mark.parametrize("samples, batch", [(100, 8), (97, 10), (3, 2)])
def test_every_sample_once_an_epoch(launch, n, samples, batch):
    ended = results(launch(n, WORKER, samples, batch, 3, 1, 7, 0))
    steps = 3 * -(-samples // batch)
    assert [r[1:3] for r in ended] == [[n, steps]] * n
    assert len({r[3] for r in ended}) == 1 and all(r[4] == 3 * samples for r in ended)


@pytest.mark.parametrize("parts", [1, 3])
@pytest.mark.parametrize("n, kills", [(2, 1), (3, 2), (4, 1), (4, 3)])
@pytest.mark.parametrize("seed", [1, 2])
def test_killed_workers(launch, n, kills, parts, seed):
    output = launch(n, WORKER, 500, 32, 8, parts, seed, kills)
    ended = results(output)
    assert len(ended) == n - kills, output
    assert "Traceback" not in output
    assert len({r[3] for r in ended}) == 1, f"the survivors differ: {ended}"
    assert all(r[4] == 8 * 500 for r in ended), ended
