"""A worker of the tests: trains examples/gpt/mesh_gpt.py on meshes that change; rank 0 writes a
line for each step, and takes a byte from a pipe for the next.

python3 mesh_live.py MESH DTYPE PIPE
"""

import os
import pathlib
import sys

import shoal
import torch

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent / "gpt"))

import mesh_gpt

if __name__ == "__main__":
    mesh, dtype, pipe = sys.argv[1:]
    job = shoal.join()
    with open(pipe, "rb", buffering=0) as leave:
        for step in mesh_gpt.training(os.environ["TEXT"], mesh, 1 << 20, getattr(torch, dtype)):
            if job.rank == 0:
                print(f"STEP {step.number} on {step.mesh} loss {step.loss!r}", flush=True)
                leave.read(1)
