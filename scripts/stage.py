"""One stage of the tests: it runs commands, keeps their output and counts what passed and failed."""

import collections
import json
import os
import pathlib
import re
import signal
import subprocess
import xml.etree.ElementTree

ROOT = pathlib.Path(__file__).resolve().parent.parent
LOGS = ROOT / "build/test"
MINUTES = 30  # after which a command is stopped: nothing here takes half as long
MARK = ("SHOAL_TEST_RUN", str(os.getpid()))  # in the environment of every process that a test starts, so that none hides


class Stage:
    """One stage while it runs. A failure is a pair: what failed, and the text to show."""

    def __init__(self, name):
        self.name, self.log = name, LOGS / f"{name}.log"
        self.passed, self.skipped, self.failures = 0, 0, []

    def run(self, *command, env=None, cwd=ROOT):
        """Run a command; return its exit status and all that it printed."""
        # XDG_STATE_HOME: the files of runs must not land in the home of the person who tests.
        env = {**os.environ, "XDG_STATE_HOME": str(LOGS / "state"), **(env or {}), MARK[0]: MARK[1]}
        with subprocess.Popen(command, cwd=cwd, env=env, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                              stderr=subprocess.STDOUT, text=True, errors="replace", start_new_session=True) as process:
            try:
                output, _ = process.communicate(timeout=MINUTES * 60)
            except subprocess.TimeoutExpired:
                os.killpg(process.pid, signal.SIGKILL)
                output = process.communicate()[0] + f"\nstopped after {MINUTES} minutes\n"
            except BaseException:  # Ctrl-C reaches the runner alone
                os.killpg(process.pid, signal.SIGKILL)
                raise
        with self.log.open("a") as log:
            log.write(f"$ {' '.join(map(str, command))}\n{output}\n")
        return process.returncode, output

    def check(self, title, *command, **options):
        """A command that must succeed, counted as one test; return whether it did."""
        status, output = self.run(*command, **options)
        self.count(title, status == 0, f"$ {' '.join(map(str, command))}\n{output}exit status {status}")
        return status == 0

    def count(self, title, ok, text=""):
        if ok:
            self.passed += 1
        else:
            self.failures.append((title, text))

    def go(self, *arguments, env=None):
        """go test, counted by its own report."""
        # Shorter than MINUTES, so that what hangs shows its goroutines; Go's own ten minutes a package are few for the race detector on a busy machine.
        status, output = self.run("go", "test", "-json", f"-timeout={MINUTES - 5}m", *arguments, env=env)
        printed, broken = collections.defaultdict(str), []  # (package, test): text; and whose failures were counted
        for line in output.splitlines():
            try:
                event = json.loads(line)
            except ValueError:
                event = {"Action": "output", "Output": line + "\n"}
            package = event.get("Package") or event.get("ImportPath", "").split(" ")[0]
            test, action = event.get("Test", ""), event["Action"]
            if action in ("output", "build-output"):
                printed[package, test.split("/")[0]] += event["Output"]
            elif test and "/" not in test:
                self.passed += action == "pass"
                self.skipped += action == "skip"
                if action == "fail":
                    broken.append(package)
                    seed = re.findall(r"-test.shuffle .*", printed[package, ""])
                    self.failures.append((f"{package} {test}", "\n".join([printed[package, test], *seed])))
            elif action == "fail" and not test and package not in broken:
                broken.append(package)
                self.failures.append((package, printed[package, ""]))
        if status != 0 and not broken:
            self.failures.append((f"go test {' '.join(arguments)}", "".join(printed.values())))

    def pytest(self, python, *arguments):
        """pytest with an interpreter, counted by its JUnit report."""
        report = LOGS / f"{self.name}.xml"
        report.unlink(missing_ok=True)
        status, output = self.run(python, "-m", "pytest", "-q", "-p", "no:cacheprovider", f"--junitxml={report}", *arguments)
        failures = len(self.failures)
        for case in xml.etree.ElementTree.parse(report).iter("testcase") if report.exists() else ():
            bad = [e for kind in ("failure", "error") for e in case.findall(kind)]
            title = f"{case.get('classname')}.{case.get('name')}"
            if case.find("skipped") is not None:
                self.skipped += 1
            else:
                self.count(title, not bad, "\n".join(e.text or e.get("message", "") for e in bad))
        if status != 0 and len(self.failures) == failures:
            self.failures.append(("pytest", output))
