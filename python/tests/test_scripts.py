"""The runner of the tests ends what hangs or never ends, and shows why; docs/testing.md has its
stages.
"""

import json
import pathlib
import re
import subprocess
import sys

import pytest

SCRIPTS = pathlib.Path(__file__).resolve().parents[2] / "scripts"
SLEEPS = "import time; time.sleep(1000)"
SPINS = "while True: pass"


@pytest.fixture
def runner(monkeypatch, tmp_path):
    """The modules usage and stage of scripts/, which keep their output in a folder of the test, and
    look every 0.05 seconds at what they run, until the end of the test.
    """
    monkeypatch.syspath_prepend(str(SCRIPTS))
    import stage
    import usage

    monkeypatch.setattr(stage, "LOGS", tmp_path)
    monkeypatch.setattr(usage, "EVERY", 0.05)
    monkeypatch.setattr(usage, "GRACE", 0.2)
    return usage, stage


@pytest.mark.parametrize(
    "program, idle, limit, why",
    [(SLEEPS, 0.3, 1000, "hangs"), (SPINS, 1000, 0.2, "has used")],
)
def test_a_command_that_does_not_end_is_ended(runner, monkeypatch, program, idle, limit, why):
    """What sleeps too long or uses too much of a processor is ended, with a line that says
    which.
    """
    usage, stage = runner
    monkeypatch.setattr(usage, "IDLE", idle)
    status, output = stage.Stage("test").run(sys.executable, "-c", program, limit=limit)
    assert status != 0
    assert f"ended: it {why}" in output


def test_a_command_that_ends_is_left_alone(runner):
    """There is no verdict on a command that has ended by itself."""
    usage, _ = runner
    process = subprocess.Popen([sys.executable, "-c", "pass"])
    with usage.Usage(process.pid) as watched:
        process.wait()
    assert watched.verdict == ""


def test_what_a_hanging_go_test_has_printed_is_shown(runner, monkeypatch):
    """A test without an end counts as failed, under its own name and with its goroutines."""
    _, stage = runner
    package = "example.org/shoal/agent"
    events = [
        {"Action": "run", "Test": "TestFine"},
        {"Action": "pass", "Test": "TestFine"},
        {"Action": "run", "Test": "TestStuck"},
        {"Action": "run", "Test": "TestStuck/seed=1"},
        {"Action": "output", "Test": "TestStuck/seed=1", "Output": "goroutine 7\n"},
        {"Action": "output", "Output": "FAIL\n"},
        {"Action": "fail"},
    ]
    printed = "\n".join(json.dumps({"Package": package, **e}) for e in events)
    monkeypatch.setattr(stage.Stage, "run", lambda *_, **__: (1, printed))
    go = stage.Stage("go")
    go.go("./agent")
    assert go.passed == 1
    assert go.failures == [(f"{package} TestStuck", "FAIL\ngoroutine 7\n")]


def test_the_end_is_shown_of_a_go_test_that_prints_without_end(runner, monkeypatch):
    """Of megabytes in hundreds of thousands of lines the end is shown, and found at once."""
    _, stage = runner
    line = json.dumps({"Action": "output", "Test": "TestWaits", "Output": "not there yet, again\n"})
    printed = "\n".join([line] * 300_000 + [json.dumps({"Action": "fail", "Test": "TestWaits"})])
    monkeypatch.setattr(stage.Stage, "run", lambda *_, **__: (1, printed))
    go = stage.Stage("go")
    go.go("./agent")
    ((title, text),) = go.failures
    assert title.endswith("TestWaits") and text.endswith("again\n") and "go.log" in text
    assert len(text) < stage.MAX_SHOWN + 500


def test_stages_are_in_the_docs():
    """The table of docs/testing.md has each stage of the runner in one row, with its tiers."""
    listed = subprocess.run([SCRIPTS / "test", "--list"], stdout=subprocess.PIPE, text=True).stdout
    want = {line[:14].strip(): line[14:30].split() for line in listed.splitlines()}
    page = (SCRIPTS.parent / "docs/testing.md").read_text()
    table = page[page.index("| stage |") :].partition("\n\n")[0]
    found = {}
    for stages, *cells in re.findall(r"^\| (.*?) \| (.*?) \| (.*?) \| (.*?) \|$", table, re.M)[1:]:
        tiers = [tier for tier, cell in zip(("quick", "test", "all"), cells) if cell != "–"]
        found.update({stage: tiers for stage in stages.split(", ")})
    assert found == want
