"""The loss of each global batch does not depend on the mesh that the GPT of
examples/gpt/mesh_gpt.py is trained on.
"""

import json
import os
import subprocess

import pytest
from test_curves import ENV, HERE, SHOAL, run_words

STEPS = int(os.environ.get("MESH_STEPS", 20))
TOLERANCE = {"float32": 1e-3, "float64": 1e-9}


def curves(folder, workers, cases, steps=STEPS):
    """Returns for each case, DTYPE:MESH, the losses, which all ranks must have alike; fails the
    test if the job fails, or they differ. One job trains them all, in an empty folder: a start
    costs more than a curve.
    """
    command = [*run_words(workers, folder), HERE / "mesh_curve.py", folder, str(steps), *cases]
    done = subprocess.run(
        command, env=ENV, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )
    assert done.returncode == 0, done.stdout
    found = [json.loads((folder / str(rank)).read_text()) for rank in range(workers)]
    assert all(f == found[0] for f in found), "the ranks disagree about the losses"
    assert all(len(losses) == steps for losses in found[0].values())
    return found[0]


@pytest.fixture(scope="module")
def alone(tmp_path_factory):
    """Returns the losses of one worker without a mesh, by element type; one job for all tests."""
    found = curves(tmp_path_factory.mktemp("alone"), 1, [f"{dtype}:" for dtype in TOLERANCE])
    return {case[:-1]: losses for case, losses in found.items()}


@pytest.mark.parametrize(
    "workers, doubles, singles",
    [
        (3, ["dp=3", "tp=3", "pp=3"], ["dp=3"]),
        (
            4,
            [
                *["dp=4", "dp=2,tp=2", "tp=4", "pp=2,dp=2", "pp=2,tp=2", "tp=2,pp=2", "pp=4"],
                *["dp=2(5/1),pp=2(4/1;micro=1;ahead=5/3)", "pp=4(0/1/3/1;micro=4)"],
            ],
            ["dp=2,tp=2", "pp=2,tp=2"],
        ),
        (
            5,
            ["dp=5", "tp=5", "pp=5"],
            ["tp=5"],
        ),  # neither heads nor columns nor samples come out even
        (8, ["dp=2,pp=2,tp=2"], []),
    ],
)
def test_curve(tmp_path, alone, workers, doubles, singles):
    """The losses on a mesh are those of one worker."""
    assert all(losses[-1] < 0.9 * losses[0] for losses in alone.values()), "it does not learn"
    cases = [f"float64:{mesh}" for mesh in doubles] + [f"float32:{mesh}" for mesh in singles]
    for case, losses in curves(tmp_path, workers, cases).items():
        dtype, mesh = case.split(":")
        worst = max(abs(a - b) / b for a, b in zip(losses, alone[dtype]))
        print(f"{mesh}, {dtype}: largest relative difference of the loss {worst:.2g}")
        assert worst <= TOLERANCE[dtype], case


def test_checkpoints_fit_any_mesh(tmp_path):
    """The layout that the example tells is where it cuts: the state of one mesh, moved to another,
    goes on with the same losses.
    """
    curves = {}
    for workers, meshes in (1, ["dp=1"]), (4, ["pp=2,tp=2", "dp=2,tp=2"]), (5, ["tp=5", "pp=5"]):
        command = [*run_words(workers, tmp_path), HERE / "mesh_state.py", tmp_path, *meshes]
        done = subprocess.run(
            command, env=ENV, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
        )
        assert done.returncode == 0, done.stdout
        for mesh in meshes:
            subprocess.run(
                [SHOAL, "state", "diff", tmp_path / "first", tmp_path / mesh], check=True
            )
            subprocess.run([SHOAL, "state", "verify", tmp_path / mesh], check=True)
            curves[mesh] = json.loads((tmp_path / f"{mesh}.json").read_text())
    for mesh, losses in curves.items():
        worst = max(abs(a - b) / b for a, b in zip(losses, curves["dp=1"]))
        print(f"{mesh}: largest relative difference of the loss {worst:.2g}")
        assert worst <= TOLERANCE["float64"], mesh
