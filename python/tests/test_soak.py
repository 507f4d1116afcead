"""Random faults while Python trains on one host: workers are killed, stopped, ordered and released,
and no script sees it.

Each way of training is given a few faults, or all of them as many as fit into SECONDS (make soak
PY=1). SEED repeats the choices.
"""

import collections
import json
import os
import pathlib
import random
import signal
import time

import pytest

import running_job

pytest.importorskip("numpy")
pytest.importorskip("torch")
import elastic_torch
from elastic_ledger import Ledger

TESTS = pathlib.Path(__file__).parent
FAULTS = 8 if os.environ.get("SECONDS") else 4  # of a job
STOP = 0.2  # seconds for which a worker is stopped at most
MOST = 6  # workers


class FaultInjector:
    """Gives jobs random faults, one after the other on the thread of the test, and counts them, and
    the steps of the jobs, in `tally`. A check that fails fails the test.
    """

    def __init__(self, choice):
        """Draw the faults from the random numbers of `choice`."""
        self.choice, self.tally = choice, collections.Counter()

    def inject_fault(self, job, at_once):
        """Give a job one fault, and wait for a step after it. `at_once` is how many workers are
        killed at most in one moment: one at least keeps the state.
        """
        ranks = sorted(job.workers())
        kind = self.choice.choice(["killed", "stopped", "ordered", "resized"])
        if kind == "killed" and len(ranks) > 1:
            victims = self.choice.sample(
                ranks, self.choice.randint(1, min(at_once, len(ranks) - 1))
            )
            job.kill(*victims)
            self.tally["workers killed"] += len(victims)
        elif kind == "stopped":
            self.stop(job.workers()[self.choice.choice(ranks)])
        elif kind == "ordered" and len(ranks) < MOST:
            # the next fault meets workers that are about to join
            job.resize(self.choice.randint(len(ranks) + 1, MOST), "--no-wait")
            self.tally["workers ordered"] += 1
        else:
            job.resize(self.choice.randint(1, MOST))
            self.tally["resized"] += 1
        job.wait_for_new_step()

    def stop(self, pid):
        """Stop a worker's process for STOP seconds at most; the others wait for it."""
        running_job.freeze(pid)
        time.sleep(self.choice.uniform(0, STOP))
        os.kill(pid, signal.SIGCONT)
        self.tally["workers stopped"] += 1

    def run_numpy_with_faults(self, running, folder, *options):
        """Run a training with NumPy by `running` (see test_soak) in the empty folder, give it
        FAULTS faults, and end it. It checks by itself that every sample came once an epoch.
        `options` are further arguments of elastic_numpy.py.
        """
        with running(
            folder,
            4,
            TESTS / "elastic_numpy.py",
            900,
            40,
            3,
            self.choice.randrange(1000),
            0,
            *options,
        ) as job:
            for _ in range(FAULTS):
                self.inject_fault(job, at_once=3)
            self.tally["steps"] += running_job.check_results(job.finish())[0][2]

    def run_torch_with_faults(self, running, folder, **way):
        """Run a training with PyTorch by `running` (see test_soak) in the empty folder, give it
        FAULTS faults, and end it; its steps are made again by one worker and compared. `way` is
        config of elastic_torch.py.
        """
        way.update(
            optimizer=self.choice.choice(["adam", "momentum"]), samples=1000, out=str(folder)
        )
        before = self.tally["workers killed"]
        with running(folder, 3, TESTS / "elastic_torch.py", json.dumps(way)) as job:
            for _ in range(FAULTS):
                # With a sharded optimizer two workers have each part of its state.
                self.inject_fault(job, at_once=1 if way["wrap"] == "zero" else 3)
            ledger = Ledger(folder, job.finish(), **way)
        ledger.check(len(ledger.results), self.tally["workers killed"] - before)
        self.tally["steps"] += len(ledger.steps)


# The kinds of training: the method of FaultInjector that runs one, and what it is given.
WAYS = {
    "numpy": (FaultInjector.run_numpy_with_faults, [], {}),
    "numpy, shared results": (FaultInjector.run_numpy_with_faults, ["shared"], {}),
    "ddp": (FaultInjector.run_torch_with_faults, [], dict(wrap="ddp")),
    "zero 1": (FaultInjector.run_torch_with_faults, [], dict(wrap="zero", stage=1)),
    "zero 2": (FaultInjector.run_torch_with_faults, [], dict(wrap="zero", stage=2)),
}


def test_soak(launch, binary, tmp_path):
    """Whatever random faults disturb a training of any kind, every sample counts once, and the
    parameters are those of one worker.
    """
    seed = int(os.environ.get("SEED") or random.randrange(1 << 32))
    print(f"SEED={seed}")
    injector, end, turn = (
        FaultInjector(random.Random(seed)),
        time.monotonic() + float(os.environ.get("SECONDS") or 0),
        0,
    )

    def running(folder, n, program, *arguments):
        """A block with a job of n workers whose end is ordered by a file in the folder."""
        end, prefork = folder / "end", "torch" if program.name == "elastic_torch.py" else None
        return running_job.running(launch, binary, end, n, program, *arguments, prefork=prefork)

    while turn < len(WAYS) or time.monotonic() < end:
        name, (run_with_faults, options, way) = list(WAYS.items())[turn % len(WAYS)]
        print(f"{turn + 1}: {name}", flush=True)
        folder = tmp_path / str(turn)
        folder.mkdir()
        run_with_faults(injector, running, folder, *options, **way)
        turn += 1
    print(*(f"{count:6}  {what}" for what, count in sorted(injector.tally.items())), sep="\n")
    print(
        "no step or sample was lost or repeated, no parameter differs, and no worker saw an"
        " exception"
    )
