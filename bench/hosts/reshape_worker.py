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

BARRIERS = 21  # how many are timed


class Timed(mesh_gpt.MeshGPT):
    """The model, which writes when a step begins on this rank, and when it has ended."""

    def gradients(self, indices):
        """Writes that a step begins, and computes its gradients."""
        write_line(what="begin", mesh=str(self.mesh))
        return super().gradients(indices)

    def update(self):
        """Updates the state, and writes that the step has ended."""
        super().update()
        write_line(what="end", mesh=str(self.mesh))


def write_line(**line):
    """Appends a line to the file TOLD, with the time and the rank, in one write: all ranks write
    there.
    """
    os.write(told, json.dumps(dict(line, at=time.monotonic(), rank=job.rank)).encode() + b"\n")


def barrier_times():
    """Makes BARRIERS barriers, and yields the seconds of each. All ranks call it together."""
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
    barrier = statistics.median(barrier_times())
    if job.rank == 0:
        write_line(what="barrier", seconds=barrier)
    for _ in mesh_gpt.training(text, mesh, 1 << 20):
        pass
