"""What modules and callbacks of Lightning do on some of the workers, and with metrics."""

from unittest import mock

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("lightning")
import trainers_common as common
from torch_world import TRAINERS, main, world


def test_the_writer_of_a_checkpoint_is_lost():
    """Another worker writes the checkpoint where rank 0 is lost before it has done it."""
    from shoal.lightning import Strategy

    strategy = Strategy.__new__(Strategy)
    strategy._job, strategy._train, strategy._logged = mock.Mock(rank=1), mock.Mock(), mock.Mock()
    strategy._train.loader.place.pack.return_value = b"place"
    strategy._checkpoint_io = mock.Mock()
    with mock.patch("shoal._trainers.checkpoints.allgather_objects", lambda job, x: {1: x}):
        strategy.save_checkpoint({}, "file")
    written = {"shoal-place": b"place".hex(), "shoal-logged": mock.ANY}
    strategy._checkpoint_io.save_checkpoint.assert_called_once_with(
        written, "file", storage_options=None
    )


if __name__ == "__main__":
    main(globals())
