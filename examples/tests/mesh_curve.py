"""A worker of the tests: trains examples/gpt/mesh_gpt.py on one mesh after the other and writes the losses of the global batches to FOLDER/RANK.

python3 mesh_curve.py FOLDER STEPS DTYPE:MESH...
"""

import json
import os
import pathlib
import sys

import shoal
import torch

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent / "gpt"))

import mesh_gpt

if __name__ == "__main__":
    folder, steps, *cases = sys.argv[1:]
    job, curves = shoal.join(), {}
    for case in cases:
        dtype, mesh = case.split(":")
        curves[case] = mesh_gpt.train(job, mesh, os.environ["TEXT"], int(steps), getattr(torch, dtype))
    pathlib.Path(folder, str(job.rank)).write_text(json.dumps(curves))
