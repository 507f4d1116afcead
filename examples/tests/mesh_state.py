"""A worker of the tests: examples/gpt/mesh_gpt.py goes on from a checkpoint of another mesh.

python3 mesh_state.py FOLDER MESH...: for each mesh loads FOLDER/first, saves it again as
FOLDER/MESH, trains on, and writes the losses to FOLDER/MESH.json. The first one there trains what
is FOLDER/first.
"""

import json
import os
import pathlib
import sys

import shoal
import torch

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent / "gpt"))

import mesh_gpt
from mesh_curve import losses

STEPS = 3  # before the checkpoint, and after it

if __name__ == "__main__":
    folder, *meshes = sys.argv[1:]
    book = pathlib.Path(os.environ["TEXT"]).read_text(encoding="utf-8")
    job, first, vocabulary = shoal.join(), f"{folder}/first", len(set(book))
    for axes in meshes:
        model = mesh_gpt.build(job.mesh(axes), book, torch.float64)
        where = {
            "mesh": model.mesh,
            "layout": mesh_gpt.layout(vocabulary),
            "catalogue": mesh_gpt.catalogue(vocabulary, torch.float64),
        }
        if not os.path.exists(first):
            model.initialize()
            list(losses(job, model, 0, STEPS))
            shoal.state.save(model.tensors(), first, **where)
        shoal.state.load(model.tensors(), first, **where)
        shoal.state.save(model.tensors(), f"{folder}/{axes}", **where)
        after = list(losses(job, model, STEPS, 2 * STEPS))
        if job.rank == 0:
            pathlib.Path(folder, f"{axes}.json").write_text(json.dumps(after))
