"""A running job follows a plan: the mesh is the plan's, and the losses are those of an undisturbed
training.
"""

import itertools
import json
import os
import pathlib
import re
import signal
import subprocess

import pytest

pytest.importorskip("numpy")

import running_job
from live_stages import BATCH, LAYERS, reference_losses
from test_live import training  # noqa: F401

WORKER = pathlib.Path(__file__).with_name("live_stages.py")


def chain_model(layers):
    """What was measured of a chain of so many layers, as shoal plan reads it."""
    names = [f"layers.{i}" for i in range(layers)]
    took = {"forward": 1e-4, "backward": 2e-4, "update": 1e-5, "kept": 1000}
    return {
        "shoal": "model/1",
        "name": "stages",
        "layers": [{"id": name, "params": 1152, "state": 3456, "out": 96} for name in names],
        "points": [{"device": "cpu", "micro": 3, "layers": {name: took for name in names}}],
    }


def shoal(job, *words):
    """Run a command of shoal; return its exit code, and what it says."""
    done = subprocess.run(
        [job._binary, *map(str, words)],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=running_job.HANG,
    )
    return done.returncode, done.stdout


def write_plan(job, folder, mesh, layers=LAYERS):
    """Have shoal plan judge a mesh for the hosts of the job, which is for so many layers; return
    the file of the plan.
    """
    text, file = folder / f"{layers}.model.json", folder / f"{layers}.deployment.json"
    text.write_text(json.dumps(chain_model(layers)))
    code, said = shoal(job, "plan", text, "--job", job.name, "--mesh", mesh, "-o", file)
    assert code == 0, said
    return file


@pytest.fixture
def stages(training):  # noqa: F811
    """Returns stages(n, mesh): a job of n workers with live_stages.py, see `training`."""
    return lambda n, mesh, **options: training(n, mesh, worker=WORKER, **options)


def check_losses(output):
    """Check that by this output every step was made once, with the loss of the undisturbed
    training; return the meshes in their order.
    """
    steps = re.findall(r"STEP (\d+) on (\S+) loss (\S+)", output)
    assert [int(n) for n, _, _ in steps] == list(range(len(steps)))
    for (n, mesh, loss), want in zip(steps, reference_losses()):
        assert abs(float(loss) - want) <= 1e-9 * want, f"step {n} on {mesh}: {loss}, alone {want}"
    return [mesh for mesh, _ in itertools.groupby(mesh for _, mesh, _ in steps)]


def test_a_job_follows_a_plan(stages, tmp_path):
    """The plan is made for the hosts of the job and with its batch. The job takes the mesh of it,
    keeps what it says when a worker is lost, and is compared with it.
    """
    plan, left = (f"dp={n},pp=2(4/1;micro=3;ahead=3/1)" for n in (2, 1))
    with stages(4, "dp=2,pp=2") as job:
        job.read_until("STEP 9 ")
        file = write_plan(job, tmp_path, plan)
        assert json.loads(file.read_text())["batch"] == BATCH
        code, said = shoal(job, "plan", "check", file, "--job", job.name)
        assert code == 1 and f"has mesh dp=2,pp=2, and the plan is for {plan}" in said, said
        code, said = shoal(job, "reshape", job.name, "--plan", file, "--dry-run")
        assert code == 0 and re.search("^step +predicted .*; now .* .median of ", said, re.M), said
        code, said = shoal(job, "reshape", job.name, "--plan", file)
        assert code == 0 and f"has mesh {plan} after" in said, said
        while (compared := shoal(job, "plan", "check", file, "--job", job.name))[0]:
            assert "ask again later" in compared[1], compared
            job.wait_for_new_step()
        assert re.match("predicted .*, measured .* .median of ", compared[1]), compared
        other = write_plan(job, tmp_path, "dp=2,pp=2(4/3;micro=3;ahead=3/1)", layers=7)
        code, said = shoal(job, "reshape", job.name, "--plan", other)
        assert code == 1 and "keeps its mesh: " in said, said
        assert f"its shares are 7 in all, and there are {LAYERS} to spread" in said, said
        os.kill(job.workers()[3], signal.SIGKILL)
        job.read_until(re.escape(f" on {left} "))
        assert shoal(job, "stop", job.name)[0] == 0
        assert check_losses(job.finish()) == ["dp=2,pp=2", plan, left]
