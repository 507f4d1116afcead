"""The backend "shoal" is there after `import torch` alone, where shoal is installed."""

import os
import pathlib

import pytest

torch = pytest.importorskip("torch")

import conftest

PROGRAM = """
import torch
import torch.distributed as dist

dist.init_process_group("shoal")
x = torch.ones(1)
dist.all_reduce(x)
print("SUM", int(x))
"""


@pytest.mark.skipif(
    tuple(map(int, torch.__version__.split(".")[:2])) < (2, 5),
    reason="PyTorch loads the extensions of others from 2.5 on",
)
def test_import_torch_registers_the_backend(launch, tmp_path):
    """With the entry point of the wheel, a program that imports torch alone can use the backend."""
    build = pathlib.Path(conftest.ROOT) / "python/_build/shoal_build.py"
    names = {}
    exec(compile(build.read_text(), str(build), "exec"), {"__file__": str(build), **names}, names)
    info = tmp_path / "shoal-0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: shoal\nVersion: 0\n")
    (info / "entry_points.txt").write_text(names["ENTRY_POINTS"])
    path = os.pathsep.join((str(tmp_path), os.environ.get("PYTHONPATH", "")))
    output = launch(2, PROGRAM, env={**os.environ, "PYTHONPATH": path})
    assert output.count("SUM 2") == 2
