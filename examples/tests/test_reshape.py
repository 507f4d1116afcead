"""The GPT of examples/gpt/mesh_gpt.py goes from mesh to mesh while it trains, and has the losses of
a training that was not disturbed.

    # over every pair of meshes, in both directions
    MESH_PAIRS=all python -m pytest test_reshape.py
"""

import contextlib
import itertools
import os
import re
import subprocess

import pytest
from test_curves import ENV, HERE, SHOAL, run_words
from test_mesh import TOLERANCE, curves

MESHES = [
    "dp=4",
    "dp=2,tp=2",
    "tp=4",
    "pp=2,dp=2",
    "pp=2(1/4;micro=2;ahead=3/1),dp=2",
    "pp=2,tp=2",
    "pp=4",
    "dp=3",
    "pp=3",
    "dp=5",
    "pp=5",
]
STEPS = 200  # at least
PACE = 0.2  # seconds between two steps while a mesh is awaited, so that there are not thousands


def walk(every):
    """Returns a way over the meshes that goes once from each to each other (Hierholzer 1873) with
    `every`, else once over all.
    """
    if not every:
        return MESHES
    left = {mesh: [other for other in MESHES if other != mesh] for mesh in MESHES}
    way, stack = [], MESHES[:1]
    while stack:
        if left[stack[-1]]:
            stack.append(left[stack[-1]].pop())
        else:
            way.append(stack.pop())
    return way[::-1]


def test_walk():
    """The way goes once over each change, or once over each mesh."""
    way = walk(True)
    assert sorted(zip(way, way[1:])) == sorted(itertools.permutations(MESHES, 2))


class Training:
    """A job whose steps are let through one by one. The thread of the test uses it, and must call
    end(); an assertion fails where the job ends before.
    """

    def __init__(self, folder, workers, mesh, dtype):
        """Start the job, and wait until it has told of its first step."""
        os.mkfifo(folder / "pipe")
        self._pipe = os.open(folder / "pipe", os.O_RDWR)
        program = HERE / "mesh_live.py"
        command = [*run_words(workers, folder), program, mesh, dtype, folder / "pipe"]
        self._process = subprocess.Popen(
            command, env=ENV, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
        )
        # what the job has printed, the loss of each step, and the mesh of the newest one
        self._output, self.losses, self.mesh = "", [], ""
        self.until(r"STEP 0 ")
        self.name = re.search(r"job ([^,]+),", self._output)[1]

    def until(self, pattern):
        """Waits until a line of the output of the job matches a pattern, and records the losses
        before it. Fails if the job ends.
        """
        for line in self._process.stdout:
            self._output += line
            step = re.search(r"STEP (\d+) on (\S+) loss (\S+)", line)
            if step:
                assert int(step[1]) == len(self.losses), "a step was left out, or made twice"
                self.losses.append(float(step[3]))
                self.mesh = step[2]
            if re.search(pattern, line):
                return
        raise AssertionError(f"the job ended:\n{self._output[-6000:]}")

    def step(self):
        """Lets the job make its next step, and waits for it."""
        os.write(self._pipe, b".")
        self.until("STEP ")

    def reshape(self, mesh):
        """Takes the job to another mesh, and waits until it has made a step there."""
        asked = subprocess.Popen(
            [SHOAL, "reshape", self.name, "--mesh", mesh],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        while self.mesh != mesh:
            self.step()
            with contextlib.suppress(subprocess.TimeoutExpired):
                code = asked.wait(PACE)
                assert code == 0, asked.stdout.read()
        said, _ = asked.communicate()
        assert asked.returncode == 0, said

    def end(self):
        """Ends the job and waits for that; nothing may be called after it."""
        self._process.terminate()
        self._process.stdout.close()
        self._process.wait()
        os.close(self._pipe)


@pytest.mark.parametrize("dtype", ["float64"] + ["float32"] * ("MESH_PAIRS" in os.environ))
def test_losses_on_changing_meshes(tmp_path, dtype):
    """The losses of a job whose mesh changes between steps are those of one worker."""
    every = "MESH_PAIRS" in os.environ
    first, *others = walk(every)
    training = Training(tmp_path, 4, first, dtype)
    try:
        for mesh in others:
            training.reshape(mesh)
        while every and len(training.losses) < STEPS:
            training.step()
    finally:
        training.end()
    (alone,) = curves(tmp_path, 1, [f"{dtype}:dp=1"], len(training.losses)).values()
    assert min(alone) < 0.9 * alone[0], "it does not learn"  # the last batch may be a hard one
    worst = max(abs(a - b) / b for a, b in zip(training.losses, alone))
    print(
        f"{dtype}: {len(others)} changes of the mesh in {len(alone)} steps, largest relative"
        f" difference of the loss {worst:.2g}"
    )
    assert worst <= TOLERANCE[dtype]
