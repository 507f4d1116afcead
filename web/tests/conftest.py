"""What the tests of the page share: a browser, and a job under way. Playwright is where
`scripts/setup page` has put it. All of it runs on the main thread of pytest's process.
"""

import json
import os
import pathlib
import subprocess
import sys

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.append(str(ROOT / "build/tools/playwright"))
SHOAL = str(ROOT / "bin/shoal")
PICTURES = ROOT / "build/test/pictures"  # of pages, for people to look at
HANG = 900  # seconds; reached only by a hang, on however busy a machine

# A metric with such a name would run a script in a page that does not escape it.
EVIL = "<img src=x onerror=alert(1)>"

TRAIN = """
import os, sys, time
import numpy as np
import shoal

images = np.random.default_rng(0).normal(size=(512, 8))
weights, gradient = np.zeros(8), np.zeros(8)
job = shoal.join()
job.register("weights", lambda: weights, lambda new: weights.__setitem__(slice(None), new))
print("hello from", job.rank, flush=True)
for step in job.steps(len(images), batch=64, epochs=1000000):
    error = images[step.indices] @ weights - images[step.indices] @ np.arange(8.0)
    gradient[:] = images[step.indices].T @ error / max(len(error), 1)
    step.allreduce(gradient)
    weights -= 0.01 * gradient
    job.report(loss=float((error**2).mean()) if len(error) else 0.0, **{sys.argv[2]: 1.0})
    time.sleep(0.02)
    if os.path.exists(sys.argv[1]):
        break
"""


class Training:
    """A job under way, with its name and the directory of its run. For one thread."""

    def __init__(self, process, directory, end):
        """The job of a launcher, `process`, whose training ends when the file `end` is there."""
        self.process, self.directory, self._end = process, directory, end
        self.name = directory.name

    def workers(self):
        """The workers of the job, as shoal ps tells them."""
        command = [SHOAL, "ps", self.name, "--json"]
        out = subprocess.run(command, stdout=subprocess.PIPE, check=True, timeout=HANG).stdout
        return [json.loads(line) for line in out.splitlines()]

    def finish(self):
        """End the training, and wait for the end of the job. Fails unless it ends well."""
        self._end.touch()
        assert self.process.wait(HANG) == 0


@pytest.fixture
def training(tmp_path):
    """A job of three workers that trains until it is told to end."""
    (tmp_path / "train.py").write_text(TRAIN)
    end = tmp_path / "end"
    command = [SHOAL, "run", "-n", "3", "--min", "1", "--name", "page", "--log-dir", tmp_path]
    process = subprocess.Popen(
        [*command, "--", sys.executable, tmp_path / "train.py", end, EVIL],
        env={**os.environ, "PYTHONPATH": str(ROOT / "python"), "OMP_NUM_THREADS": "1"},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    try:
        for line in process.stdout:
            if "hello from" in line:
                break
        yield Training(process, tmp_path / "page", end)
    finally:
        process.terminate()
        process.stdout.close()
        process.wait(HANG)


@pytest.fixture(scope="module")
def browser():
    """A Chromium without a window."""
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        found = playwright.chromium.launch(
            executable_path="/usr/bin/chromium-headless-shell", args=["--no-sandbox"]
        )
        yield found
        found.close()


@pytest.fixture
def open_page(browser):
    """A function that opens an address in a browser of its own, in a theme and a width, after it
    has called `before` with the empty page, and fails the test at its end where something was
    printed to the console of the page, or a script failed.
    """
    faults, contexts = [], []

    def open_one(address, theme="light", width=1280, strict=True, before=lambda page: None):
        size = {"width": width, "height": 900}
        context = browser.new_context(color_scheme=theme, viewport=size)
        contexts.append(context)
        page = context.new_page()
        page.set_default_timeout(60_000)
        if strict:
            page.on("console", lambda message: faults.append(message.text))
        page.on("pageerror", lambda error: faults.append(str(error)))
        page.on("dialog", lambda dialog: faults.append(f"a dialog: {dialog.message}"))
        before(page)
        page.goto(str(address))
        return page

    yield open_one
    for context in contexts:
        context.close()
    assert not faults
