"""One stage of the tests: it runs commands, keeps their output and counts what passed and
failed. Stages may run side by side.
"""

import collections
import contextlib
import json
import os
import pathlib
import re
import signal
import subprocess
import threading
import xml.etree.ElementTree

from usage import Usage

ROOT = pathlib.Path(__file__).resolve().parent.parent
LOGS = ROOT / "build/test"
# As bin/shoal is built, so that what was compiled for it and for one stage is there for the others.
GO = {"CGO_ENABLED": "0", "GOFLAGS": os.environ.get("GOFLAGS", "") + " -trimpath"}
# How long the tests of one Go package may take, on the wall: five times what the slowest takes on
# two processors. What waits in a loop uses too much of a processor for usage.py to see that it
# hangs, and too little to come to its limit soon.
GO_TIMEOUT = "15m"
MAX_SHOWN = 100_000  # characters of the output of a Go test that has failed
# Where Python may not keep what it has compiled, each of some hundred processes compiles a current
# PyTorch again: 2 of the 3 s that it takes to import.
COMPILED = {"PYTHONDONTWRITEBYTECODE": ""}
MARK = (
    "SHOAL_TEST_RUN",
    str(os.getpid()),
)  # in the environment of every process that a test starts, so that none hides


class Running:
    """The commands that all stages run at the moment, so that they can be stopped together. Any
    thread may call its methods; `lock` guards both fields.
    """

    def __init__(self):
        """No command yet."""
        self.lock, self.processes, self.stopped = threading.Lock(), set(), False

    def start(self, *arguments, **options):
        """Start a command in a session of its own, and return its process, for which the caller
        calls `end`. Raises InterruptedError after `stop`.
        """
        with self.lock:
            if self.stopped:
                raise InterruptedError("the tests were stopped")
            process = subprocess.Popen(*arguments, start_new_session=True, **options)
            self.processes.add(process)
        return process

    def end(self, process):
        """Wait for a process that has closed its output; return the processor seconds of it and of
        all that it has waited for.
        """
        _, status, used = os.wait4(process.pid, 0)
        with self.lock:
            self.processes.remove(process)
            process.returncode = os.waitstatus_to_exitcode(status)
        process.stdout.close()
        return used.ru_utime + used.ru_stime

    def stop(self):
        """Kill all, and let none start any more; does not wait: Ctrl-C reaches the runner alone."""
        with self.lock:
            self.stopped = True
            for process in self.processes:
                with contextlib.suppress(ProcessLookupError):  # it has just ended
                    os.killpg(process.pid, signal.SIGKILL)


RUNNING = Running()


class Stage:
    """One stage while it runs. A failure is a pair: what failed, and the text to show. The thread
    of the stage alone uses it, and others when it has ended.
    """

    def __init__(self, name):
        """A stage of this name, of which nothing has run yet."""
        self.name, self.log = name, LOGS / f"{name}.log"
        self.passed, self.skipped, self.failures = 0, 0, []  # numbers of tests, and the pairs
        self.busy = 0.0  # processor seconds of all commands
        self.slow = []  # (seconds, test) of every test that took a second or more
        self.rooms = collections.Counter()  # processor seconds of the tests of each room

    def run(self, *command, env=None, cwd=ROOT, limit=None):
        """Run a command, and wait for it; return its exit status and all that it printed, which
        goes to the log too. It is ended when it hangs, or has used `limit` processor seconds; None
        = the usual limit.
        """
        # XDG_STATE_HOME: the files of runs must not land in the home of the person who tests.
        env = {
            **os.environ,
            **GO,
            **COMPILED,
            "XDG_STATE_HOME": str(LOGS / "state" / self.name),
            **(env or {}),
            MARK[0]: MARK[1],
        }
        process = RUNNING.start(
            command,
            cwd=cwd,
            env=env,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
        )
        with Usage(process.pid, limit) as usage:
            output = process.stdout.read()
        self.busy += RUNNING.end(process)
        for folder, seconds in usage.folder_seconds().items():
            self.rooms[room_of(folder)] += seconds
        if usage.verdict:
            output += f"\nended: {usage.verdict}\n"
        with self.log.open("a") as log:
            log.write(f"$ {' '.join(map(str, command))}\n{output}\n")
        return process.returncode, output

    def check(self, title, *command, **options):
        """Run a command that must succeed, counted as one test; return whether it did."""
        status, output = self.run(*command, **options)
        self.count(
            title, status == 0, f"$ {' '.join(map(str, command))}\n{output}exit status {status}"
        )
        return status == 0

    def count(self, title, ok, text=""):
        """Count one test, with the text to show where it failed."""
        if ok:
            self.passed += 1
        else:
            self.failures.append((title, text))

    def go(self, *arguments, env=None):
        """Run go test with these arguments, wait for it, and count its tests by its own report;
        return that.
        """
        options = ("-json", f"-timeout={GO_TIMEOUT}", *arguments)
        status, output = self.run("go", "test", *options, env=env)
        printed = collections.defaultdict(list)  # (package, test): pieces of text
        broken = []  # packages whose failures were counted
        running = {}  # (package, test) that have begun and not ended, in the order of their begin
        for line in output.splitlines():
            try:
                event = json.loads(line)
            except ValueError:
                event = {"Action": "output", "Output": line + "\n"}
            package = event.get("Package") or event.get("ImportPath", "").split(" ")[0]
            test, action = event.get("Test", ""), event["Action"]
            if action in ("output", "build-output"):
                printed[package, test.split("/")[0]].append(event["Output"])
                continue
            if action == "run":
                running[package, test] = None
            elif action in ("pass", "skip", "fail"):
                running.pop((package, test), None)
            if test and "/" not in test:
                self.passed += action == "pass"
                self.skipped += action == "skip"
                self.note_duration(
                    event.get("Elapsed", 0), f"{package.partition('/shoal/')[2]} {test}"
                )
                if action == "fail":
                    broken.append(package)
                    seed = re.findall(r"-test.shuffle .*", "".join(printed[package, ""]))
                    text = self.end_of("".join(printed[package, test]))
                    self.failures.append((f"{package} {test}", "\n".join([text, *seed])))
            elif action == "fail" and not test and package not in broken:
                # A test that ended the whole process, or hung, has printed why and never failed.
                ended = [t for p, t in running if p == package and "/" not in t]
                broken.append(package)
                text = "".join(piece for t in ("", *ended) for piece in printed[package, t])
                self.failures.append((" ".join((package, *ended)), self.end_of(text)))
        if status != 0 and not broken:
            text = "".join(piece for pieces in printed.values() for piece in pieces)
            self.failures.append((f"go test {' '.join(arguments)}", self.end_of(text)))
        return output

    def end_of(self, text):
        """What is shown of the text of a test that has failed: one that waits in vain prints its
        question hundreds of thousands of times.
        """
        if len(text) <= MAX_SHOWN:
            return text
        return f"(the whole text is in {LOGS / self.name}.log)\n…{text[-MAX_SHOWN:]}"

    def pytest(self, python, *arguments):
        """Run pytest with an interpreter, wait for it, and count its tests by its JUnit report."""
        report = LOGS / f"{self.name}.xml"
        report.unlink(missing_ok=True)
        status, output = self.run(
            python,
            "-m",
            "pytest",
            "-q",
            "-p",
            "no:cacheprovider",
            f"--junitxml={report}",
            *arguments,
        )
        failures = len(self.failures)
        for case in xml.etree.ElementTree.parse(report).iter("testcase") if report.exists() else ():
            bad = [e for kind in ("failure", "error") for e in case.findall(kind)]
            title = f"{case.get('classname')}.{case.get('name')}"
            self.note_duration(float(case.get("time", 0)), title)
            for used in case.iter("property"):
                if used.get("name") == "processor_seconds":
                    self.rooms[
                        "python " + case.get("classname").rpartition("test_")[2].split("_")[0]
                    ] += float(used.get("value"))
            if case.find("skipped") is not None:
                self.skipped += 1
            else:
                self.count(title, not bad, "\n".join(e.text or e.get("message", "") for e in bad))
        if status != 0 and len(self.failures) == failures:
            self.failures.append(("pytest", output))

    def note_duration(self, seconds, test):
        """Keep a test that took a second or more, for the list of the slowest."""
        if seconds >= 1:
            self.slow.append((seconds, test))


def room_of(folder):
    """The room of the house in which a folder lies, its first part; "." for the root."""
    parts = pathlib.PurePath(folder).parts
    return parts[0] if parts else "."
