"""What a command and its descendants take of the processors, and its end when it hangs.

A limit in seconds on the wall fails tests of a machine that is busy with something else. So two
other things end a command: it has used more processor seconds than it may, or it hangs, which is
that all its processes together have hardly used a processor for some minutes.
"""

import collections
import contextlib
import os
import pathlib
import signal
import threading
import time

ROOT = pathlib.Path(__file__).resolve().parent.parent
LIMIT = 3600  # processor seconds of one command: none takes half as many
IDLE = 300  # seconds in which a command that does not hang uses more than `LEAST` processor seconds
LEAST = 30.0  # ten agents that wait for workers take less, and every stage takes more, even beside
# busy loops
EVERY = 1.0  # seconds between two looks
GRACE = 10  # seconds to print where it hangs
TICK = os.sysconf("SC_CLK_TCK")


class Usage:
    """Watches the command with a process id, on a thread of its own, while the `with` statement
    lasts. `verdict` says why the command was ended, or is empty; it and folder_seconds() are for
    the caller after the statement, and all fields but _left for the thread before.
    """

    def __init__(self, pid, limit=None):
        """Nothing is watched yet. `limit` is in processor seconds; None = LIMIT."""
        self._pid, self._limit, self.verdict = pid, limit or LIMIT, ""
        self._family = set()  # the command and its descendants
        # the process id of a Go test: its folder and processor seconds, those of its descendants
        # included
        self._tests = {}
        self._left = threading.Event()
        self._thread = threading.Thread(target=self._watch)

    def __enter__(self):
        """Start the thread that watches."""
        self._thread.start()
        return self

    def __exit__(self, *_):
        """Stop watching, and wait for the thread."""
        self._left.set()
        self._thread.join()

    def folder_seconds(self):
        """The processor seconds of the tests of each folder of Go, a Counter, as far as they were
        seen.
        """
        seconds = collections.Counter()
        for folder, used in self._tests.values():
            seconds[folder] += used
        return seconds

    def _watch(self):
        """Measure every second, and end the command when it has used too much or hangs. It is what
        the thread runs; it calls the methods below.
        """
        most, before, since = 0.0, 0.0, time.monotonic()
        while not self._left.wait(EVERY):
            used = self._measure()
            most = max(most, used)
            if abs(used - before) > LEAST:
                before, since = used, time.monotonic()
            if most > self._limit:
                self.verdict = (
                    f"it has used {most:.0f} processor seconds, and may use {self._limit}"
                )
            elif time.monotonic() - since > IDLE:
                self.verdict = (
                    f"it hangs: all its processes have used less than {LEAST} processor seconds "
                    f"in {IDLE} s"
                )
            if self.verdict:
                self._end()
                return

    def _measure(self):
        """The processor seconds of the command and its descendants, alive or waited for. Keeps who
        they are, and what Go tests have used.
        """
        processes, children = {}, collections.defaultdict(list)
        for entry in os.scandir("/proc"):
            if entry.name.isdigit():
                with contextlib.suppress(OSError):
                    name, _, rest = pathlib.Path(entry.path, "stat").read_text().rpartition(")")
                    fields = rest.split()
                    processes[int(entry.name)] = (
                        name.partition("(")[2],
                        sum(map(int, fields[11:15])) / TICK,
                    )
                    children[int(fields[1])].append(int(entry.name))

        self._family = set()

        def total(pid):
            """The processor seconds of a process and its descendants."""
            self._family.add(pid)
            name, used = processes.get(pid, ("", 0.0))
            used += sum(map(total, children[pid]))
            if name.endswith(".test") or len(name) == 15:  # the kernel keeps 15 letters
                self._record_test(pid, used)
            return used

        return total(self._pid)

    def _record_test(self, pid, used):
        """Keep what a process has used if it is a Go test; its working directory is its
        package's.
        """
        if pid not in self._tests:
            with contextlib.suppress(OSError, ValueError):
                if not os.readlink(f"/proc/{pid}/exe").endswith(".test"):
                    return
                self._tests[pid] = (
                    str(pathlib.Path(os.readlink(f"/proc/{pid}/cwd")).relative_to(ROOT)),
                    used,
                )
        elif used > self._tests[pid][1]:
            self._tests[pid] = self._tests[pid][0], used

    def _end(self):
        """Kill the command and its descendants. Tests first print where it hangs: Go its
        goroutines, pytest its threads; for that they have GRACE seconds, or until the command has
        ended.
        """
        tests = self._tests.keys() & self._family
        for pid in tests or {self._pid}:
            send_signal(pid, signal.SIGQUIT if tests else signal.SIGABRT)
        self._left.wait(GRACE)
        self._measure()
        for pid in self._family:
            send_signal(pid, signal.SIGKILL)


def send_signal(pid, number):
    """Send a signal to a process, unless it is gone."""
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, number)
