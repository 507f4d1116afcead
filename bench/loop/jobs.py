"""Jobs of paced workers: started, changed, read."""

from __future__ import annotations

import json
import pathlib
import shutil
import subprocess
import sys
import tempfile
import time

HERE = pathlib.Path(__file__).resolve().parent
SHOAL = HERE.parents[1] / "bin/shoal"
WORKER = HERE / "paced.py"

DEFAULTS = dict(
    kind="noise", a=0.01, b=0.0001, seed=0, batch=128, least=0, most=0, epochs=1, rate=0.1,
    elements=1 << 16, noise=1000.0,
)


class Run:
    """A running job of `workers` paced workers with some of the options of paced.py. Use it in a
    with statement, whose end ends the job and removes its files.
    """

    def __init__(self, workers, flags=(), **options):
        """Start the job, with more `flags` of shoal run."""
        self.folder = pathlib.Path(tempfile.mkdtemp(prefix="shoal-bench-loop-"))
        self.name = f"bench-loop-{time.monotonic_ns()}"
        command = [str(SHOAL), "run", "-n", str(workers), "--name", self.name]
        command += ["--log-dir", str(self.folder), *flags, "--", sys.executable, str(WORKER)]
        command.append(json.dumps(dict(DEFAULTS, **options)))
        with open(self.folder / "output", "w") as output:
            self.process = subprocess.Popen(command, stdout=output, stderr=output)

    def __enter__(self):
        """The job."""
        return self

    def __exit__(self, *_):
        """End the job, and remove its files."""
        if self.process.poll() is None:
            self.process.terminate()
            self.process.wait()
        shutil.rmtree(self.folder)

    def lines(self, name):
        """The objects in a file of the run's directory, without a last line that is not whole."""
        path = self.folder / self.name / name
        text = path.read_text() if path.exists() else ""
        return [json.loads(line) for line in text.splitlines(keepends=True) if line[-1] == "\n"]

    def changes(self):
        """What the ledger says of changes: the newest phase of each, by its number."""
        found = {}
        for event in self.lines("events.jsonl"):
            if event["what"] == "change":
                found[event["change"]["number"]] = event["change"]
        return found

    def set(self, assign):
        """Set a part of the setting; returns why the job refuses it, "" where it does not."""
        command = [str(SHOAL), "set", self.name, assign, "--json"]
        done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        return "" if done.returncode == 0 else done.stdout.strip()

    def listed(self):
        """The job, as shoal ps has it; without a key where that does not list it."""
        done = subprocess.run(
            [str(SHOAL), "ps", "--json"], stdout=subprocess.PIPE, text=True, check=True
        )
        jobs = (json.loads(line) for line in done.stdout.splitlines())
        return next((job for job in jobs if job["job"] == self.name), {})

    def steps(self):
        """The number of committed steps, as shoal ps has it."""
        return self.listed().get("steps", 0)

    def wait_for(self, holds, seconds=120):
        """Wait until `holds()` is true; it is asked ten times a second. Ends the benchmark where
        the job ends before, or that takes too long.
        """
        until = time.monotonic() + seconds
        while not (found := holds()):
            if self.process.poll() is not None or time.monotonic() > until:
                sys.exit(f"{self.name} does not get there:\n{self.output()}")
            time.sleep(0.1)
        return found

    def output(self):
        """What the job has printed."""
        return (self.folder / "output").read_text()

    def finish(self):
        """Wait for the end of the job, which must be a good one."""
        if self.process.wait() != 0:
            sys.exit(f"{self.name} failed:\n{self.output()}")
