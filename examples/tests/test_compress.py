"""Compressed gradients learn what uncompressed ones learn, within a tolerance for each."""

import pytest
import test_curves

STEPS = 400


def _last(path):
    """Trains on the digits with four workers, in jobs below the folder path, and returns the mean
    of the last 50 losses. Fails as test_curves.curve does.
    """
    losses = test_curves.curve(path, 4, "torch_digits", STEPS, "float32")
    return sum(losses[-50:]) / 50


@pytest.fixture(scope="module")
def plain(tmp_path_factory):
    """Returns that mean without compression; one job for all tests."""
    return _last(tmp_path_factory.mktemp("plain"))


# The tolerance is a factor of the loss without compression; 400 steps are few for what waits for
# its turn.
@pytest.mark.parametrize(
    "compress, tolerance",
    [
        ("'bf16'", 1.01),
        ("'fp16'", 1.01),
        ("'int8'", 1.01),
        ("TopK(0.05)", 1.1),
        ("PowerSGD(4)", 1.1),
    ],
)
def test_learns(tmp_path, monkeypatch, plain, compress, tolerance):
    """Training with compressed gradients ends near the loss without."""
    monkeypatch.setitem(test_curves.ENV, "COMPRESS", compress)
    last = _last(tmp_path)
    print(f"{compress}: loss {last:.4f}, {plain:.4f} without")
    assert last < plain * tolerance
