"""The last checkpoint of a job: when it is stopped, and when its program ends."""

import re
import subprocess

import pytest

pytest.importorskip("numpy")
from running_job import HANG
from test_checkpoint import results, steps

STOPPED = """
import os, sys, threading
import numpy as np
import shoal
folder, end, hangs = sys.argv[1], int(sys.argv[2]), len(sys.argv) > 3
job = shoal.join()
total = np.zeros(1)
def get():
    if hangs and job.rank and job.released:
        threading.Event().wait()
    return total
job.register("total", get, lambda value: np.copyto(total, value))
job.checkpoint(folder, every=10**6)
first = None
for step in job.steps(10**9, batch=8, steps=end):
    first = step.number if first is None else first
    if (step.number - first) % 10 == 0:
        print("STEP", step.number, flush=True)
    step.allreduce(np.zeros(1))
    total += 1
print("RESULT", [job.rank, job.committed, float(total[0])], flush=True)
total += 1000  # what comes after the loop is no part of a checkpoint
"""


def test_a_job_that_is_stopped_makes_no_step_again(launch, binary, tmp_path):
    """`shoal stop` has all workers write a last checkpoint; one that not all could write is
    abandoned, which is said.
    """

    def stop(*hurry):
        """Start a job, stop it after some steps, and wait for its end; with options of shoal stop
        that hurry it, rank 1 writes no part. Return the first step that was printed, how many steps
        were committed in the end, and what was printed.
        """
        hangs = ["hangs"] if hurry else []
        process = launch.start(3, STOPPED, tmp_path / "checkpoints", 10**8, *hangs)
        lines = iter(process.stdout)
        name = re.search("job ([^,]+),", next(line for line in lines if ", 3 workers" in line))[1]
        began = int(re.search(r"STEP (\d+)", next(line for line in lines if "STEP" in line))[1])
        next(line for line in lines if "STEP" in line)
        asked = subprocess.Popen([binary, "stop", name], stdout=subprocess.PIPE)
        output = ""
        if hurry:  # rank 0 has written its part
            output = next(line for line in lines if "[0] RESULT" in line)
            subprocess.run([binary, "stop", name, *hurry], stdout=subprocess.PIPE)
        asked.communicate()
        output += process.communicate(timeout=HANG)[0]
        return began, int(re.search(r"RESULT \[\d+, (\d+)", output)[1]), output

    _, reached, output = stop()
    assert f"checkpoint of step {reached} in" in output and "abandoned" not in output, output
    for hurry in ["--now"], ["--grace", "1ms"]:
        began, lost, output = stop(*hurry)
        assert began == reached and f"checkpoint of step {lost} in" in output, output
        assert "is abandoned: a worker was lost while it was written, or ended" in output, output
        assert steps(tmp_path / "checkpoints") == [reached]
    ended = results(launch(2, STOPPED, tmp_path / "checkpoints", reached + 5))
    assert {tuple(r) for r in ended.values()} == {(reached + 5, reached + 5.0)}


DIVIDED = """
import sys
import torch
import shoal, shoal.torch
torch.manual_seed(1)
x = torch.randn(64, 4)
job = shoal.join()
job.checkpoint(sys.argv[1], every=10**6)
loader = shoal.torch.loader(
    torch.utils.data.TensorDataset(x), 8, epochs=10**9, steps=int(sys.argv[2])
)
model = torch.nn.Linear(4, 4)
optimizer = shoal.torch.zero(model, torch.optim.Adam(model.parameters(), lr=0.01))
for (x,) in loader:
    optimizer.zero_grad()
    model(x).square().mean().backward()
    optimizer.step()
    if loader.step.number % 10 == 0:
        print("STEP", loader.step.number, flush=True)
print("RESULT", [job.rank, job.committed, job.digest()], flush=True)
"""


def test_a_divided_state_is_whole_when_a_job_is_stopped(launch, binary, tmp_path):
    """Workers that have divided the optimizer's state end the last step together."""
    pytest.importorskip("torch")
    process = launch.start(3, DIVIDED, tmp_path / "checkpoints", 10**8, prefork="torch")
    lines = iter(process.stdout)
    name = re.search("job ([^,]+),", next(line for line in lines if ", 3 workers" in line))[1]
    next(line for line in lines if "STEP" in line)
    subprocess.run([binary, "stop", name], stdout=subprocess.PIPE, check=True)
    output = process.communicate(timeout=HANG)[0]
    ended = {tuple(r) for r in results(output).values()}
    assert len(ended) == 1, output
    reached = ended.pop()
    assert steps(tmp_path / "checkpoints") == [reached[0]], output
    again = results(launch(2, DIVIDED, tmp_path / "checkpoints", reached[0], prefork="torch"))
    assert {tuple(r) for r in again.values()} == {reached}


@pytest.mark.parametrize("agent", [False, True])
def test_a_loop_of_one_epoch_ends_with_a_checkpoint(launch, alone, tmp_path, agent):
    """A loop that names neither epochs nor steps is the last one where the program ends."""
    program = """
import sys
import numpy as np
import shoal
job = shoal.join()
total = np.zeros(1)
job.register("total", lambda: total, lambda value: np.copyto(total, value))
job.checkpoint(sys.argv[1], every=10**6)
for epoch in range(int(sys.argv[2])):
    for step in job.steps(37, batch=1):
        step.allreduce(np.zeros(1))
        total += 1
print("RESULT", [job.rank, float(total[0])], flush=True)
total += 1000
"""
    for epochs in (1, 2):
        if agent:
            output = launch(2, program, tmp_path / "checkpoints", epochs)
        else:
            output = alone(program, tmp_path / "checkpoints", epochs)
        assert {r[0] for r in results(output).values()} == {37.0 * epochs}, output
        assert max(steps(tmp_path / "checkpoints")) == 37 * epochs, output
