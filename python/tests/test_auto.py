"""A job whose policies change it while it trains, as people run it: a policy of theirs, the policy
of shoal, and what can be read of both.
"""

import json
import os
import pathlib
import re
import select
import signal
import subprocess

import pytest

import running_job

pytest.importorskip("numpy")

# Steps that take 50 ms whatever the batch, with gradients so noisy that a larger batch pays. Steps
# much shorter than that get slower and faster with the load of the machine, and then no policy
# changes anything.
WORKER = """
import os, sys, time
import numpy as np
import shoal

job = shoal.join()
state, gradient = np.zeros(1), shoal.zeros(4096)
job.register("state", lambda: state, lambda others: np.copyto(state, others))
draws = np.random.default_rng(job.rank)
for step in job.steps(1 << 40, 64, seed=1, batch_range=(64, 1024)):
    if step.number == 0 and job.rank == 0:
        print("STEP 0", flush=True)
    time.sleep(0.05)
    spread = 50 / max(len(step.indices), 1) ** 0.5
    gradient[:] = 1 + spread * draws.standard_normal(4096, dtype=np.float32)
    gradient[0] = os.path.exists(sys.argv[1])
    step.allreduce(gradient)
    if gradient[0] > 0:
        break
"""

DOUBLE = """
import shoal

@shoal.policy(levers=["batch", "rate"])
def double(o, state):
    if o.setting.batch == 64 and o.noise is not None:
        return shoal.change(batch=128, because=f"{o.size} workers can do more")
"""


def test_a_policy_of_ones_own_changes_the_batch(launch, binary, tmp_path):
    """The change of a policy in Python is predicted, made, measured and ended, and the ledger, the
    command explain and the lines on the terminal say so. What was left as it was is said of the
    run that is over too.
    """
    policy, program = tmp_path / "double.py", tmp_path / "worker.py"
    policy.write_text(DOUBLE)
    program.write_text(WORKER)
    options = ["--auto", "--policy", str(policy)]
    with running_job.running(
        launch, binary, tmp_path / "end", 2, pathlib.Path(program), options=options
    ) as job:
        made = job.read_until(r"change (\d+) at step \d+: batch 64 -> 128, because 2 workers can")
        number = made[1]
        ended = job.read_until(rf"change {number} (kept|reverted|void)")[1]
        words = [str(binary), "explain", job.name]
        told = subprocess.run(words, stdout=subprocess.PIPE, text=True, check=True).stdout
        assert "its policies change how it trains" in told
        words += ["--change", number, "--json"]
        lines = subprocess.run(words, stdout=subprocess.PIPE, text=True, check=True).stdout
        job.finish()
    over = subprocess.run(words[:3], stdout=subprocess.PIPE, text=True, check=True).stdout
    assert "why its policies left things as they were:\n" in over and "changed nothing" in over
    phases = [json.loads(line)["change"] for line in lines.splitlines()]
    assert [c["phase"] for c in phases] == ["entered", ended]
    assert phases[0]["policy"] == "double" and phases[0]["predicted"]["mid"] > 1
    assert re.search(r"batch 64 -> 128", told)


# The same, in epochs of twenty steps of 30 ms, and with noise that grows, again and again.
EPOCHS = (
    WORKER.replace("1 << 40, 64", "20 * 64, 64, epochs=1 << 30")
    .replace("sleep(0.05)", "sleep(0.03)")
    .replace("50 /", "(4 + step.number % 400 / 22) /")
)


def test_the_rule_of_kungfu_changes_the_batch(launch, binary, tmp_path):
    """--policy kungfu doubles the batch of a job whose epochs are short, after an epoch in which
    noise over batch has grown, and the change is measured to its end.
    """
    program = tmp_path / "worker.py"
    program.write_text(EPOCHS)
    options = ["--auto", "--policy", "kungfu"]
    with running_job.running(
        launch, binary, tmp_path / "end", 2, program, options=options
    ) as job:
        made = job.read_until(
            r"change (\d+) at step \d+: batch 64 -> 128, rate [0-9.]+, because .*"
            r"noise over batch grew from [0-9.]+ to [0-9.]+ in an epoch"
        )
        job.read_until(f"change {made[1]} (kept|reverted|void)")
        assert "Traceback" not in job.finish()


# A policy that hears nothing, and tells its number in the file beside it.
DEAF = """#!/bin/sh
echo $$ >"$0.pid"
echo '{"protocol":1,"name":"deaf","levers":["shares"]}'
exec sleep 1000000
"""


def runs_as(number, name):
    """Whether the process of a number lives, and its first word is `name`."""
    try:
        words = pathlib.Path("/proc", number, "cmdline").read_bytes()
    except OSError:
        return False
    return words.split(b"\0")[0] == name.encode()


def test_who_watches_changes_nothing(launch, binary, tmp_path):
    """With --auto=watch the policy of shoal says what it would change, and the batch stays. The
    program of a policy does not outlive its launcher, also where that is killed.
    """
    deaf, program = tmp_path / "deaf", tmp_path / "worker.py"
    deaf.write_text(DEAF)
    deaf.chmod(0o700)
    program.write_text(WORKER)
    options = ["--auto=watch", "--policy", str(deaf)]
    with running_job.running(
        launch, binary, tmp_path / "end", 2, pathlib.Path(program), options=options
    ) as job:
        job.read_until(r"policy at step \d+: would change batch 64 -> \d+, rate")
        words = [str(binary), "ps", "--json"]
        listed = subprocess.run(words, stdout=subprocess.PIPE, text=True, check=True).stdout
        (mine,) = [j for j in map(json.loads, listed.splitlines()) if j["job"] == job.name]
        assert mine["setting"] == {"batch": 64, "size": 2} and mine["auto"] == "watch"
        number = (tmp_path / "deaf.pid").read_text().strip()
        assert runs_as(number, "sleep")
        watched = os.pidfd_open(int(number))
        os.kill(mine["pid"], signal.SIGKILL)
        assert select.select([watched], [], [], running_job.HANG)[0], "the policy lives on"
        os.close(watched)


# Steps of 4 ms, and a checkpoint each half a second where the job does not say when.
SAVING = """
import os, sys, time
import numpy as np
import shoal
from shoal._checkpoint import schedule

schedule._DEFAULT_SECONDS = 0.5
job = shoal.join()
job.checkpoint(sys.argv[1], every="auto")
state = np.zeros(8)
job.register("state", lambda: state, lambda others: np.copyto(state, others))
end = shoal.zeros(1)
begun = False
for step in job.steps(1 << 40, 64, seed=1, batch_range=(64, 1024)):
    if not begun and job.rank == 0:
        print(f"BEGUN {step.number} {step.count} {job._progress.rate}", flush=True)
        print("STEP 0", flush=True)
    begun = True
    time.sleep(0.004)
    end[0] = os.path.exists(sys.argv[2])
    step.allreduce(end)
    if end[0] > 0:
        break
"""


def test_steps_between_checkpoints_are_chosen(launch, binary, tmp_path):
    """The policy of shoal chooses the steps between checkpoints by what the first one has cost, and
    a person sets others, which are kept at once. A program that is started again goes on with the
    batch of the checkpoint and the factor of the learning rate that was set with it, which stay
    those of a person, also from one resume to the next.
    """
    program = tmp_path / "worker.py"
    program.write_text(SAVING)
    words = launch, binary, tmp_path / "end", 2, pathlib.Path(program), tmp_path / "saved"
    with running_job.running(*words, options=["--auto"]) as job:
        # others before it divide the work, where a worker was slow
        made = job.read_until(r"change (\d+) at step \d+: save \d+, because a checkpoint costs")
        job.read_until(f"change {made[1]} kept: what checkpoints cost and save shows in hours")
        job.set("save=5", "batch=128", "rate=1.25")
        made = int(job.read_until(r"change \d+ at step (\d+): batch 64 -> 128, rate 1.25, save")[1])
        steps = [made]
        while len(steps) < 3:
            step = int(job.read_until(r"checkpoint of step (\d+) in .* is sealed")[1])
            steps += [step] if step >= made else []
        assert steps[2] >= steps[1] + 5
        job.finish()
    (tmp_path / "end").unlink()
    with running_job.running(*words) as job:
        begun = re.search(r"BEGUN (\d+) (\d+) (\S+)", job.output)
        assert int(begun[1]) >= steps[2] and begun[2] == "128" and begun[3] == "1.25", job.output
        assert job.status()["setting"]["people"] == {"batch": 0, "rate": 0, "save": 0}
        job.set("save=7")  # the program leaves it to the job, also without policies
        made = job.status()["optimizer_steps"]  # before it perhaps, and then with a checkpoint
        while int(job.read_until(r"checkpoint of step (\d+) in .* is sealed")[1]) <= made:
            continue
        job.finish()
    (tmp_path / "end").unlink()
    with running_job.running(*words, options=["--auto"]) as job:
        told = job.status()["setting"]
        assert told["people"] == {"batch": 0, "rate": 0, "save": 0} and told["save"] == 7
        job.set("batch=auto")
        assert job.status()["setting"]["people"] == {"save": 0}
        job.finish()
