"""A worker of the tests: trains the model of examples/gpt/mesh_gpt.py on one mesh after the other,
each time from the beginning, and writes the losses of the global batches to FOLDER/RANK.

python3 mesh_curve.py FOLDER STEPS DTYPE:MESH...
"""

import itertools
import json
import os
import pathlib
import sys

import shoal
import torch
from shoal.cursor import Cursor

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent / "gpt"))

import mesh_gpt


def losses(job, model, first, last):
    """Makes the steps of the training from number first up to, but without, number last, and yields
    their losses. All ranks call it together.
    """
    place = Cursor.start(len(model.text) - mesh_gpt.CONTEXT, mesh_gpt.BATCH, mesh_gpt.SEED)
    for step in itertools.count():
        if step == last:
            return
        if step >= first:
            loss = job.allreduce(model.gradients(place.order().take(place.part(0, 1))))
            model.update()
            yield loss.item()
        place = place.commit(1, [True])


if __name__ == "__main__":
    folder, steps, *cases = sys.argv[1:]
    job, curves = shoal.join(), {}
    book = pathlib.Path(os.environ["TEXT"]).read_text(encoding="utf-8")
    for case in cases:
        dtype, mesh = case.split(":")
        model = mesh_gpt.build(job.mesh(mesh), book, getattr(torch, dtype))
        model.initialize()
        curves[case] = list(losses(job, model, 0, int(steps)))
    pathlib.Path(folder, str(job.rank)).write_text(json.dumps(curves))
