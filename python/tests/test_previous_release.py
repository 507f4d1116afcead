"""A job resumes from a checkpoint of the release before, as if nothing had happened."""

import pathlib
import re
import shutil

import pytest

pytest.importorskip("numpy")

from test_checkpoint import WORKER, results
from test_live import WORKER as MESH_WORKER
from test_live_checkpoint import check_steps, expected_random

BEFORE = pathlib.Path(__file__).parents[2] / "checkpoint" / "testdata" / "before"
TRAINING = (20, 4, 2, 5, 1)  # samples, batch, epochs, every, keep: as the checkpoint was made


def test_a_job_goes_on_from_a_checkpoint_of_the_release_before(launch, tmp_path):
    """A job of this release resumes from what the one before has written, and ends with the same
    result.
    """
    whole = launch(2, WORKER, tmp_path / "undisturbed", *TRAINING)
    shutil.copytree(BEFORE / "job", tmp_path / "job")
    output = launch(2, WORKER, tmp_path / "job", *TRAINING)
    assert re.findall(r"FROM (\d+)", output) == ["5", "5"], output
    assert without_bits(output) == without_bits(whole)
    assert weights(output) == pytest.approx(weights(whole), rel=1e-12)


@pytest.mark.parametrize("mesh, workers", [("dp=1,tp=2", 2), ("dp=3,tp=1", 3)])
def test_a_job_on_a_mesh_goes_on_on_any(launch, tmp_path, mesh, workers):
    """A job on this mesh goes on from the step of a checkpoint that the release before has written
    on another one.
    """
    shutil.copytree(BEFORE / "mesh", tmp_path / "mesh")
    output = launch(workers, MESH_WORKER, mesh, 9, tmp_path / "mesh", 4)
    made, said = check_steps(output)
    assert made == [(step, mesh) for step in range(4, 9)], output
    if workers == 2:  # each rank has its own random numbers back; on another mesh there are others
        assert said[4, 1] == expected_random(1, 4)


def without_bits(output):
    """What workers print at their end, by rank as test_checkpoint.results has it, without a sum
    over the bits of the parameters: sines of another NumPy, or on another processor, differ in
    their last bits.
    """
    return {rank: [*values[:2], *values[3:]] for rank, values in results(output).items()}


def weights(output):
    """The sums of the weights that workers print at their end."""
    return [float(text) for text in re.findall(r"WEIGHTS (\S+)", output)]
