"""A worker of bench/hosts/reshape.py: trains the GPT of examples/gpt/mesh_gpt.py in another size,
and says when its steps begin and end.

usage: reshape_worker.py MESH WIDTH TEXT TOLD

A line of the file TOLD is a JSON object: a step that has begun or ended on a rank, in seconds of
the clock that all processes of the machine have; or, by rank 0 before the first step, the seconds
of a barrier.
"""

import json
import os
import pathlib
import statistics
import sys
import time

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "python"), str(ROOT / "examples" / "gpt")]

import mesh_gpt
import shoal

BARRIERS = 21


class Timed(mesh_gpt.MeshGPT):
    """Says when a step begins on this rank, and when it has ended."""

    def gradients(self, indices):
        tell(what="begin", mesh=str(self.mesh))
        return super().gradients(indices)

    def update(self):
        super().update()
        tell(what="end", mesh=str(self.mesh))


def tell(**line):
    os.write(told, json.dumps(dict(line, at=time.monotonic(), rank=job.rank)).encode() + b"\n")


def barriers():
    """The seconds of each of some barriers."""
    for _ in range(BARRIERS):
        begin = time.perf_counter()
        job.barrier()
        yield time.perf_counter() - begin


if __name__ == "__main__":
    mesh, width, text, path = sys.argv[1:]
    mesh_gpt.WIDTH, mesh_gpt.HEAD = int(width), int(width) // mesh_gpt.HEADS
    mesh_gpt.MeshGPT = Timed
    told = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    job = shoal.join()
    barrier = statistics.median(barriers())
    if job.rank == 0:
        tell(what="barrier", seconds=barrier)
    for _ in mesh_gpt.training(text, mesh, 1 << 20):
        pass
