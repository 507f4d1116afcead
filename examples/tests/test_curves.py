"""The loss of each global batch does not depend on how many workers share it."""

import json
import os
import pathlib
import subprocess
import sys

import pytest
from torch_world import interpreter, template_words

HERE = pathlib.Path(__file__).resolve().parent
SHOAL = HERE.parent.parent / "bin/shoal"
GOROOT = subprocess.run(
    ["go", "env", "GOROOT"], stdout=subprocess.PIPE, text=True, check=True
).stdout.strip()
ENV = {
    **os.environ,
    "PYTHONPATH": str(HERE.parent.parent / "python"),
    # so that what runs alone is not slower than the rest, where threads fight for cores
    "OMP_NUM_THREADS": "1",
    "TEXT": f"{GOROOT}/src/testdata/Isaac.Newton-Opticks.txt",
}


def run_words(workers, folder, torch=True):
    """The words with which so many workers run the program that follows; one runs without the
    launcher. They write below the folder. With `torch` they are forked from a process that has
    imported it.
    """
    if workers == 1:
        return [interpreter("torch") if torch else sys.executable]
    python = template_words("torch") if torch else ["--", sys.executable]
    return [SHOAL, "run", "-n", str(workers), "--log-dir", folder / "runs", *python]


def curve(tmp_path, workers, example, steps, dtype):
    """Trains an example with so many workers, waits for them, and returns the losses of each global
    batch, which all ranks must have alike. One worker runs without the launcher. Fails the test if
    the job fails, or the ranks differ.
    """
    folder = tmp_path / f"{example}-{dtype}-{workers}"
    folder.mkdir()
    words = run_words(workers, folder, torch=example != "numpy_digits")
    command = [*words, HERE / "curve.py", example, str(steps), dtype, folder]
    done = subprocess.run(
        command, env=ENV, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )
    assert done.returncode == 0, done.stdout
    curves = [json.loads((folder / str(rank)).read_text()) for rank in range(workers)]
    assert all(c == curves[0] for c in curves), "the ranks disagree about the losses"
    assert len(curves[0]) == steps
    return curves[0]


@pytest.mark.parametrize(
    "example, steps, dtype, tolerance, sizes",
    [
        ("numpy_digits", 200, "float32", 1e-4, (3, 4)),  # three share each batch unevenly
        ("numpy_digits", 200, "float64", 1e-9, (3, 4)),
        ("torch_digits", 200, "float32", 1e-4, (4,)),
        ("torch_digits", 200, "float64", 1e-9, (3, 4)),
        ("char_gpt", 20, "float32", 1e-4, (3,)),
    ],
)
def test_curve(tmp_path, example, steps, dtype, tolerance, sizes):
    """The losses do not depend on the number of workers."""
    alone = curve(tmp_path, 1, example, steps, dtype)
    assert alone[-1] < 0.9 * alone[0], "it does not learn"
    for workers in sizes:
        together = curve(tmp_path, workers, example, steps, dtype)
        worst = max(abs(a - b) / b for a, b in zip(together, alone))
        print(
            f"{example}, {dtype}, {workers} workers: largest relative difference of the loss"
            f" {worst:.2g}"
        )
        assert worst <= tolerance
