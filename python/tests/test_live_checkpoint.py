"""Checkpoints of a job with a mesh: it starts again on any other, and goes back to one when a part
of its state is lost.
"""

import contextlib
import itertools
import json
import math
import os
import random
import re
import signal
import subprocess

import pytest

numpy = pytest.importorskip("numpy")

import running_job
from live_numpy import LAYOUT, reference_losses
from test_live import WORKER, training  # noqa: F401  (a fixture)


def ranks(mesh):
    """The number of ranks of a mesh, given as text, such as "dp=2,tp=2"."""
    return math.prod(int(degree) for degree in re.findall(r"=(\d+)", mesh))


def check_steps(output):
    """Check that by this output each step had the loss of the undisturbed training, also where it
    was made again; return the steps in their order, (number, mesh) each, and what ranks said of
    their noise, by (step, rank).
    """
    assert "Traceback" not in output, output[-6000:]
    steps = [
        (int(n), mesh, float(loss))
        for n, mesh, loss in re.findall(r"STEP (\d+) on (\S+) loss (\S+)", output)
    ]
    wanted = list(itertools.islice(reference_losses(), max(n for n, _, _ in steps) + 1))
    for n, mesh, loss in steps:
        assert abs(loss - wanted[n]) <= 1e-9 * wanted[n], (
            f"step {n} on {mesh}: loss {loss}, undisturbed {wanted[n]}"
        )
    return [(n, mesh) for n, mesh, _ in steps], {
        (int(n), int(rank)): said
        for n, rank, said in re.findall(r"NOISE (\d+) of (\d+) (.*)", output)
    }


def expected_random(rank, step):
    """What a rank prints of its random numbers and of its table in a step, when nothing has
    disturbed it.
    """
    drawn = numpy.random.default_rng(rank).integers(1 << 30, size=step + 1)[-1]
    return f"{drawn} table {10.0 + 5 * step}"


@pytest.mark.parametrize(
    "mesh, lost, then",
    [("dp=1,tp=3", [1], "dp=1,tp=2"), ("dp=2,tp=2", [0, 2], "dp=1,tp=2"), ("tp=2", [0], "tp=1")],
)
def test_the_job_goes_back_by_itself(training, tmp_path, binary, mesh, lost, then):  # noqa: F811
    """A job that has lost a part of its state goes on from its newest checkpoint."""
    with training(ranks(mesh), mesh, tmp_path / "checkpoints", 5) as job:
        job.read_until("checkpoint of step [1-9][0-9]* in .* is sealed")
        pids = job.workers()
        for rank in lost:
            os.kill(pids[rank], signal.SIGKILL)
        job.read_until(f"STEP [0-9]+ on {then} ")
        shown = subprocess.run(
            [binary, "ps", "--json"], stdout=subprocess.PIPE, text=True, check=True
        ).stdout
        people = subprocess.run(
            [binary, "ps", job.name], stdout=subprocess.PIPE, text=True, check=True
        ).stdout
        job.read_until("is sealed")
        subprocess.run([binary, "stop", job.name], check=True, timeout=running_job.HANG)
        output = job.finish()
    back = re.search(
        r"the job went back from step (\d+) to the checkpoint of step (\d+), on mesh (\S+), and"
        r" makes (\d+) steps again: (.*)",
        output,
    )
    was, step, again = int(back[1]), int(back[2]), int(back[4])
    assert was - step == again and back[3] == then and "only lost ones had" in back[5], back[0]
    assert back[0] in people and back[0] in [
        j.get("last_rollback") for j in map(json.loads, shown.splitlines())
    ]
    steps, said = check_steps(output)
    before, after = [n for n, m in steps if m == mesh], [n for n, m in steps if m == then]
    # rank 0 may have died before it said so
    assert before == list(range(len(before))) and len(before) in (was, was - (0 in lost))
    assert after == list(range(step, step + len(after))), (steps, back[0])
    assert said[after[-1], 0] == expected_random(0, after[-1])
    # of the last step, because the job was stopped
    sealed = max(int(path.name[5:]) for path in (tmp_path / "checkpoints").glob("step-*"))
    assert sealed == after[-1] + 1, output[-3000:]


def test_a_cold_start_on_any_mesh(launch, binary, tmp_path):
    """A job that was stopped goes on from its checkpoint, on any mesh."""
    folder, at = tmp_path / "checkpoints", 0
    other = tmp_path / "other.yaml"
    other.write_text(LAYOUT.replace("dp=1,tp=1", "tp=4"))
    for mesh in ["dp=2,tp=2", "tp=3", "dp=1", "dp=5", "tp=2", "tp=2"]:
        steps, said = check_steps(launch(ranks(mesh), WORKER, mesh, at + 6, folder, 4, "-"))
        assert steps == [(at + i, mesh) for i in range(6)]
        assert said[at, 0] == expected_random(0, at)
        at += 6
        newest, there = folder / f"step-{at:012d}", tmp_path / f"resharded {at}"
        for command in (
            ["verify", newest],
            ["reshard", newest, there, "--layout", other, "--seal"],
            ["verify", there],
            ["diff", there, newest],
        ):
            done = subprocess.run(
                [binary, "state", *command],
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
            )
            assert done.returncode == 0, done.stdout


def test_everything_is_killed_at_random_moments(launch, binary, tmp_path):
    """Whatever mesh a killed job is started on again, no step is left out, and the last one has the
    random numbers of its rank back. KILLS=100 for more; SEED=N repeats the choices.
    """
    seed = int(os.environ.get("SEED", random.randrange(1 << 30)))
    print("seed", seed)
    choice, folder, made = random.Random(seed), tmp_path / "checkpoints", 0
    for _ in range(int(os.environ.get("KILLS", 3))):
        mesh = choice.choice(["dp=2,tp=2", "tp=3", "dp=3", "tp=2", "dp=1"])
        process = launch.start(ranks(mesh), WORKER, mesh, 1 << 20, folder, 2, "-")
        wanted, lines, output = choice.randrange(2, 20), 0, ""
        for line in process.stdout:
            output += line
            lines += "STEP" in line or "sealed" in line
            if lines >= wanted:
                break
        for pid in [process.pid, *map(int, re.findall(r"PID (\d+)", output))]:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        process.stdout.close()
        process.wait()
        steps = [n for n, _ in check_steps(output)[0]]
        assert steps[0] <= made and steps == list(range(steps[0], steps[0] + len(steps))), output[
            -3000:
        ]
        made = max(made, steps[-1] + 1)
    steps, said = check_steps(launch(2, WORKER, "tp=2", made + 3, folder, 2, "-"))
    assert steps[0][0] <= made and said[made, 0] == expected_random(0, made)


def test_damage_is_found_and_the_one_before_is_taken(launch, tmp_path):
    """The checkpoint before a damaged one is used."""
    folder = tmp_path / "checkpoints"
    launch(2, WORKER, "tp=2", 4, folder, 4, "-")
    launch(2, WORKER, "tp=2", 8, folder, 4, "-")
    file = folder / "step-000000000008" / "rank-00001.safetensors"
    text = bytearray(file.read_bytes())
    text[-1] ^= 1
    file.write_bytes(text)
    output = launch(3, WORKER, "tp=3", 10, folder, 4, "-")
    assert "rank-00001.safetensors, bytes 0 to " in output and "not as it was sealed" in output, (
        output
    )
    assert check_steps(output)[0][0] == (4, "tp=3")
    assert list(folder.glob("damaged-step-000000000008-*"))


def test_without_a_checkpoint_to_go_back_to(training, tmp_path):  # noqa: F811
    """A job that loses state before its first checkpoint ends and says so."""
    with training(2, "tp=2", tmp_path / "checkpoints", 1 << 20) as job:
        os.kill(job.workers()[1], signal.SIGKILL)
        output = job.finish(code=1)
    assert (
        "only lost ones had" in output
        and f"There is no checkpoint in {tmp_path / 'checkpoints'} to go back to" in output
    ), output


def park(binary, job):
    """Park a job under way, and wait for its end; return what it has printed, in which nobody has
    come after its loop.
    """
    done = subprocess.run(
        [binary, "park", job.name],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=running_job.HANG,
    )
    output = job.finish()
    assert done.returncode == 0 and f"job {job.name} is parked" in done.stdout, (
        done.stdout + output[-6000:]
    )
    assert "END" not in output, output[-6000:]
    return output


def check_parked(output, folder, meshes):
    """Check that a parked job has made each step once, on these meshes, and a checkpoint after the
    last one; return how many steps that are.
    """
    made = check_steps(output)[0]
    at = max(int(path.name[5:]) for path in folder.glob("step-*"))
    # what a worker prints while it is ended may be lost
    assert [n for n, _ in made] == list(range(len(made))) and at - len(made) in (0, 1), output
    assert [mesh for mesh, _ in itertools.groupby(mesh for _, mesh in made)] == meshes
    return at


def test_a_parked_job_goes_on_on_fewer_workers(training, launch, binary, tmp_path):  # noqa: F811
    """It goes on with the next sample, on the mesh that its workers can hold, and later on more of
    them on the mesh that its program states. It has begun on the one that its spec names.
    """
    folder, stated = tmp_path / "checkpoints", "dp=2,tp=2"
    (tmp_path / "job.yaml").write_text('schedule: {meshes: {4: "dp=1,tp=4"}}')
    options = ("-f", tmp_path / "job.yaml")
    with training(4, stated, folder, 1 << 20, options=options) as job:
        at = check_parked(park(binary, job), folder, ["dp=1,tp=4"])
    for n, mesh in ((2, "dp=1,tp=2"), (1, "dp=1,tp=1"), (4, stated)):
        output = launch(n, WORKER, stated, at + 6, folder, 1 << 20, "-")
        steps, said = check_steps(output)
        assert steps == [(at + i, mesh) for i in range(6)], output[-3000:]
        assert said[at, 0] == expected_random(0, at)
        said_mesh = f"begins on mesh {mesh}; its program states mesh {stated}" in output
        assert said_mesh == (mesh != stated), output[:3000]
        at += 6


def test_a_worker_lost_while_the_job_is_parked(training, launch, binary, tmp_path):  # noqa: F811
    """When a worker dies while the checkpoint is made, the others make the next step without it,
    and the job is parked after that.
    """
    folder, stated, get = tmp_path / "checkpoints", "dp=2,tp=2", "lambda: table,"
    program = WORKER.read_text()
    assert get in program
    program = program.replace(
        get, "lambda: job.rank == 3 and table.sum() > 10 and os.kill(os.getpid(), 9) or table,"
    )
    with training(4, stated, folder, 1 << 20, worker=program) as job:
        at = check_parked(park(binary, job), folder, [stated, "dp=1,tp=2"])
    steps, _ = check_steps(launch(4, WORKER, stated, at + 3, folder, 1 << 20, "-"))
    assert steps == [(at + i, stated) for i in range(3)]


def test_a_job_that_makes_no_checkpoints_is_not_parked(training, binary):  # noqa: F811
    """It says what is missing, and trains on."""
    with training(2, "dp=2") as job:
        done = subprocess.run(
            [binary, "park", job.name],
            stderr=subprocess.PIPE,
            text=True,
            timeout=running_job.HANG,
        )
        assert done.returncode == 1 and "call job.checkpoint(folder)" in done.stderr, done.stderr
        job.wait_for_new_step()
        assert job.stop() == ["dp=2"]
