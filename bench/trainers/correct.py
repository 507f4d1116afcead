"""Whether trainings of other people's trainers stay what they are undisturbed while workers are
killed, join and are released: the short tests in python/tests, longer, with a second host that is
drained.
"""

from __future__ import annotations

import argparse
import collections
import contextlib
import json
import os
import pathlib
import re
import subprocess
import sys
import tempfile
import types

import running_job
import trainers_common as common
import turns
from report import table
from systems import free_port

BATCH, EPOCHS = 8, 3
CLOSE = 1e-4  # the promise; the values that were seen are in the table
TESTS = turns.ROOT / "python" / "tests"
# The configuration of the worker that the tests have for a framework, what clips its gradients, and
# the seed that the order of the samples follows from.
FRAMEWORKS = {
    "transformers": ({"arguments": {"logging_steps": 1}}, 1.0, 42),
    "lightning": ({"batch": BATCH, "accumulate": 1}, 0.5, common.SEED),
    "accelerate": ({"batch": BATCH, "accumulate": 1}, 0.5, common.SEED),
}
# The progress bar that is shown last, when it is full, of the frameworks that have one.
BARS = {
    "transformers": r" 100%\|█+\| \d+/\d+ ",
    "lightning": rf"Epoch {EPOCHS - 1}: 100%",
}


def measure(args: argparse.Namespace) -> list[dict]:
    """Trains with every framework; returns the results of train, one a framework, with its `part`
    and `name`. Raises Failure if a training fails, or is not the undisturbed one of one worker.
    """
    results = []
    for framework in FRAMEWORKS:
        print(f"correctness {framework}", file=sys.stderr, flush=True)
        turns.BUILD.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix="correct-", dir=turns.BUILD) as folder:
            line = train(framework, pathlib.Path(folder), args.correct_steps)
        print(line, file=sys.stderr, flush=True)
        if not (line["same"] and line["rates"] and line["off"] <= CLOSE):
            raise turns.Failure(f"{framework}: not the undisturbed training: {line}")
        results.append(dict(line, part="correct", name=framework))
    return results


def train(framework: str, folder: pathlib.Path, steps: int) -> dict:
    """Trains so many steps with four workers on one host, kills one, takes five on two hosts, kills
    rank 0, and drains the second host. Blocks until the job has ended; returns the result of judge
    with `restarts`: how many workers ended up to the last gate without being killed here. `folder`
    is empty and the caller's.
    """
    each = steps // EPOCHS  # an epoch
    # steps before which rank 0 waits, until open_gate writes a file
    gates = [steps * i // 6 for i in (1, 2, 3, 4)]
    more, clip, seed = FRAMEWORKS[framework]
    config = dict(more, out=str(folder), gates=gates, samples=each * BATCH)
    address, token, end = f"127.0.0.1:{free_port()}", folder / "token", folder / "end"
    prefork = "torch,transformers" if framework == "transformers" else f"torch,{framework}"
    options = ["--min", "2", "--listen", address, "--slots", "4", "--token-file", str(token)]
    options += ["--log-dir", str(folder / "run")]
    options += ["--name", f"bench-{framework}-{os.getpid()}"]
    script = TESTS / f"trainers_{framework}.py"
    launch = types.SimpleNamespace(start=start)
    changed, members = 0, set[int]()  # process ids of the members when the last gate was opened
    with running_job.running(
        launch, turns.SHOAL, end, 4, script, json.dumps(config), options=options, prefork=prefork
    ) as job, agent(address, token, folder):

        def during(gate: int, change, lost: int = 0) -> None:
            """Call change() while the job waits at this gate, and open the gate. `lost` is how many
            workers change() ends; those that ended beside them, here and since the gate before, are
            added to `changed`.
            """
            nonlocal changed, members
            job.read_until(f"GATE {gate}$")
            before = {w["pid"] for w in job.members()}
            change()
            after = {w["pid"] for w in job.members()}
            changed += len(members - before) + len(before - after) - lost
            members = after
            common.open_gate(folder, gate)

        orders = []  # the processes of order, each with the file of its output

        def order(*command: str) -> None:
            """Start a command of shoal about this job, which ends when the training has come to the
            end of a step. Does not wait for it; train looks at its exit status at the end.
            """
            said = open(folder / f"{command[0]}.txt", "w+")
            words = [turns.SHOAL, command[0], job.name, *command[1:]]
            orders.append((subprocess.Popen(words, stdout=said, stderr=said), said))

        def resize() -> None:
            """Order as many workers as there are to be five, and wait until they are there."""
            order("resize", "5")
            job.wait_for_spare(5 - len(job.members()))

        def drain() -> None:
            """Free the second host, and wait until the workers for its place are there."""
            there = sum(worker["host"] == "second" for worker in job.members())
            if not there:
                raise turns.Failure(f"no worker is on the second host: {job.members()}")
            order("drain", "second")
            job.wait_for_spare(there)

        during(gates[0], lambda: job.kill(3), lost=1)
        during(gates[1], resize)
        during(gates[2], lambda: job.kill(0), lost=1)
        during(gates[3], drain)
        output = job.finish()
        for process, said in orders:
            if process.wait():
                raise turns.Failure(f"{process.args}: {pathlib.Path(said.name).read_text()}")
    return dict(judge(framework, folder, output, steps, clip, seed), restarts=changed)


def start(n, program, *arguments, options, prefork):
    """Starts a job of n workers, forks of a process that has imported the modules `prefork`, with
    its output in a pipe; returns the process of the launcher, which the caller ends. running_job
    calls it.
    """
    command = [turns.SHOAL, "run", "-n", str(n), "--prefork", prefork, *options]
    return subprocess.Popen(
        [*command, "--", sys.executable, str(program), *map(str, arguments)],
        env=environment(),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def environment() -> dict[str, str]:
    """Returns the environment of the launcher and of the agent, which their workers inherit."""
    paths = f"{turns.ROOT / 'python'}:{TESTS}"
    return dict(os.environ, PYTHONPATH=paths, OMP_NUM_THREADS="1")


@contextlib.contextmanager
def agent(address: str, token: pathlib.Path, folder: pathlib.Path):
    """A second host in the job, for the block: an agent on this machine with four slots. Its end is
    waited for, at most 60 s; then it is killed.
    """
    command = [turns.SHOAL, "agent", "--join", address, "--token-file", str(token), "--slots", "4"]
    command += ["--name", "second", "--listen", "127.0.0.1:0", "--log-dir", str(folder / "second")]
    with open(folder / "second.txt", "w") as log:
        process = subprocess.Popen(command, env=environment(), stdout=log, stderr=log)
        try:
            yield
        finally:
            process.terminate()
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(60)
            process.kill()
            process.wait()


def judge(framework, folder, output, steps, clip, seed) -> dict:
    """Compares what the workers wrote into the folder and printed as `output` with one worker that
    trains undisturbed, its gradients clipped to a norm of `clip`, on samples in the order of
    `seed`. Returns `steps` that were made, `lost` ones that nobody or not all noted alike, `same`:
    whether each step had its samples, `off`: the share by which the loss or the parameters differ
    at most, `rates`: whether the learning rates are equal, `bars`: how many workers showed a full
    progress bar, and `errors`: how many tracebacks were printed.
    """
    lines: dict[int, list] = collections.defaultdict(list)
    for path in folder.glob("ledger-*.jsonl"):
        for line in map(json.loads, path.read_text().splitlines()):
            lines[line["step"]].append(line)
    made = max(lines)
    lost = sum(
        not lines[step] or any(line != lines[step][0] for line in lines[step])
        for step in range(1, made + 1)
    )
    ledger = [lines[step][0] for step in range(1, made + 1) if lines[step]]
    samples = steps // EPOCHS * BATCH
    batches = common.undisturbed_batches(samples, BATCH, seed, EPOCHS)
    same = [line["taken"] for line in ledger] == batches
    alone, net = common.replay(batches, samples, steps, clip)
    if framework == "transformers":
        ended = running_job.results(output)
        logged = [line for line in ended[0][2]["logs"] if "loss" in line]
        told = {line["step"]: (line["loss"], line["learning_rate"]) for line in logged}
    else:
        told = {line["step"]: (line.get("loss"), line["rate"]) for line in ledger}
    if framework == "accelerate":  # whose loop logs no loss: what it has computed in the end
        weight = net.layers[0].weight.sum().item()
        off = abs(float.fromhex(ledger[-1]["digest"]) / weight - 1)
    else:
        off = max_off(told, alone)
    rates = all(told.get(i + 1, (0, None))[1] == rate for i, (_, rate) in enumerate(alone))
    bars = None
    if framework in BARS:
        bars = len(set(re.findall(rf"^\[(\d+)\][^\n]*{BARS[framework]}", output, re.M)))
    return {
        "steps": made,
        "lost": lost,
        "same": same,  # the samples of each step, and so each sample once an epoch
        "off": off,
        "rates": rates,
        "bars": bars,  # None where there are none to show
        "errors": output.count("Traceback"),
    }


def max_off(told: dict, alone: list) -> float:
    """Returns how far a logged loss is from the one of a worker that is alone, at most: a share.
    `told` is by step, from 1 on; `alone` has the loss and the rate of each step in order.
    """
    return max(abs(told[i][0] / loss - 1) for i, (loss, _) in enumerate(alone, 1) if i in told)


def text(results: list[dict]) -> str:
    """Returns the table of this part in Markdown; "" when no result is of it."""
    rows = []
    for r in (r for r in results if r["part"] == "correct"):
        equal = f"{'yes' if r['off'] <= CLOSE else 'NO'}, to {r['off']:.1e}"
        bars = "–" if r["bars"] is None else str(r["bars"])
        yes = ["yes" if r[key] else "NO" for key in ("same", "rates")]
        made = [str(r[key]) for key in ("steps", "lost", "restarts", "errors")]
        rows.append([r["name"], *made, yes[0], equal, yes[1], bars])
    head = ["", "steps", "lost", "restarts", "errors", "samples of each step the same"]
    head += ["losses the same", "rates the same", "workers with a bar"]
    note = (
        "Four workers; one is killed, five on two hosts, rank 0 is killed, the second host is"
        " drained. The same: as one worker has them that trains undisturbed."
        " Of Accelerate the parameters in the end are compared, because its loop logs no loss."
    )
    return f"{note}\n\n" + table(head, rows) if rows else ""
