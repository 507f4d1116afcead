"""A job under way, for tests that change its workers while it trains. `Running` drives it from the
test's process, on the test's thread; `sleep_if_slowed` is for the worker programs.
"""

import contextlib
import json
import os
import pathlib
import re
import signal
import subprocess
import threading
import time

HANG = 1500  # seconds; reached only by a hang, on however busy a machine
# The ending that, after the name of the file that ends a training, names another file: as long as
# that is there, those that train leave the processors to those that start.
SLOW_SUFFIX = ".slow"


def sleep_if_slowed(end):
    """What a worker calls at the start of a step, with the file that ends its training: as long as
    the file of `SLOW_SUFFIX` is there it sleeps, and so makes fifty steps a second, not as many as
    it can.
    """
    if os.path.exists(f"{end}{SLOW_SUFFIX}"):
        time.sleep(0.02)


class Running:
    """A job under way: `output`, which is what was read of its output so far, its workers, and its
    end. Made by `running`, which also ends it. For one thread: only `read_until` and `finish` read
    the launcher's pipe. What waits has no time limit but that of `running`, for the whole job, HANG
    seconds where it is given none; a command that fails, or takes longer than HANG seconds, fails
    the test.
    """

    def __init__(self, binary, process, end):
        """The job of a launcher, `process`, whose training ends when the file `end` is there."""
        self._binary, self._process, self._end = binary, process, end
        self.output = ""

    def read_until(self, pattern):
        """Read the output until a line has the pattern, and return the match. Blocks; fails when
        the job ends before, or goes on without it for HANG seconds.
        """
        end = time.monotonic() + HANG
        for line in self._process.stdout:
            self.output += line
            found = re.search(pattern, line)
            if found:
                return found
            assert time.monotonic() < end, f"no {pattern!r} in:\n{self.output[-6000:]}"
        raise AssertionError(f"the job ended without {pattern!r}:\n{self.output[-6000:]}")

    def wait_for_new_step(self):
        """Read the output until a step is printed that had not begun when this was called: lines
        that are printed already are of earlier steps, and of other members.
        """
        status = self.status()
        made = status.get("optimizer_steps", status["steps"])
        while int(self.read_until(r"STEP (\d+)")[1]) <= made:
            pass

    def resize(self, n, *options):
        """Run `shoal resize` for n workers, with its options, and return when they are there; with
        --no-wait, when the job has the order.
        """
        with self.slowed():
            self._shoal("resize", self.name, str(n), *options)

    def set(self, *words):
        """Run `shoal set` with these words, and return when the job trains so; with --no-wait, when
        it has the order: of a change that may be taken back at once, shoal set that waits says
        either that the job has it or that it was changed again.
        """
        self._shoal("set", self.name, *words)

    def limit(self, rate):
        """Run `shoal limit` with this rate, and return when each host sends so much at most."""
        self._shoal("limit", self.name, rate)

    def explain(self):
        """What `shoal explain` says of the job, which must be running."""
        assert self._process.poll() is None, "the job has ended"
        return self._shoal("explain", self.name)

    def _shoal(self, *words):
        """Run a command of shoal that must succeed, and return what it prints."""
        done = subprocess.run(
            [self._binary, *words],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=HANG,
        )
        assert done.returncode == 0, done.stdout
        return done.stdout

    @property
    def name(self):
        """The name of the job, out of the output, which must have been read beyond it."""
        return re.search(r"job ([^,]+),", self.output)[1]

    def workers(self):
        """The process ids of the members, by rank. Runs `shoal ps`."""
        return {w["rank"]: w["pid"] for w in self.members()}

    def members(self):
        """The members, as `shoal ps --json` lists them: a dict each."""
        return [w for w in self._ps(self.name) if w["rank"] >= 0]

    def status(self):
        """What `shoal ps --json` says of the job, a dict."""
        return next(j for j in self._ps() if j["job"] == self.name)

    def _ps(self, *job):
        """What `shoal ps --json` lists, a dict each: the jobs, or the workers of the named one."""
        listed = subprocess.run(
            [self._binary, "ps", "--json", *job],
            stdout=subprocess.PIPE,
            text=True,
            timeout=HANG,
            check=True,
        ).stdout
        return list(map(json.loads, listed.splitlines()))

    def wait_for_spare(self, count=1):
        """Return when at least `count` spares wait to be let in."""
        with self.slowed():
            while sum(bool(w.get("waiting")) for w in self._ps(self.name)) < count:
                time.sleep(0.02)  # to ask costs time of a processor, which those that start need

    @contextlib.contextmanager
    def slowed(self):
        """A block in which workers start: the others take fewer steps meanwhile, see
        `sleep_if_slowed`.
        """
        slow_file = pathlib.Path(f"{self._end}{SLOW_SUFFIX}")
        slow_file.touch()
        try:
            yield
        finally:
            slow_file.unlink(missing_ok=True)  # another order may have ended it

    def kill(self, *ranks, by=signal.SIGKILL):
        """Kill the workers of these ranks at one moment, by a signal, and return when the job
        knows: when they are no members any more, or the job has ended.
        """
        gone = {w["worker"]: w["pid"] for w in self.members() if w["rank"] in ranks}
        for pid in gone.values():
            os.kill(pid, by)
        # with the last of them the job ends
        with contextlib.suppress(subprocess.CalledProcessError):
            while any(w["worker"] in gone for w in self.members()):
                pass

    def finish(self, code=0):
        """End the training, and wait for the job, which must end with exit code `code`; return all
        that it has printed.
        """
        self._end.touch()
        # communicate() would miss what `read_until` has read ahead
        self.output += self._process.stdout.read()
        assert self._process.wait() == code, self.output[-6000:]
        return self.output


def results(output):
    """What the workers that finished printed as their results: the JSON after RESULT, one a
    worker, in no fixed order.
    """
    return [json.loads(line) for line in re.findall(r"RESULT (.*)", output)]


def check_results(output):
    """Check what every run of elastic_numpy.py must end with: ranks without a gap, one size, and
    results that are the same on all; return the results, [rank, size, …] each.
    """
    ended = results(output)
    assert ended and "Traceback" not in output, output
    assert len({tuple(r[2:]) for r in ended}) == 1, f"the workers differ: {ended}\n{output}"
    assert sorted(r[0] for r in ended) == list(range(len(ended))) and {r[1] for r in ended} == {
        len(ended)
    }, output
    return ended


def freeze(pid):
    """Stop a process by SIGSTOP, and return when all its threads stand still: the signal itself
    ends nothing that is under way. The caller continues or kills it.
    """
    os.kill(pid, signal.SIGSTOP)
    while any(
        _thread_state(thread) not in "TtXZ"
        for thread in pathlib.Path(f"/proc/{pid}/task").glob("*/stat")
    ):
        pass


def _thread_state(stat):
    """The state of a thread, one letter of /proc, by its file `stat`; X where it is gone."""
    try:
        return stat.read_text().rpartition(") ")[2][0]
    except (FileNotFoundError, ProcessLookupError):
        return "X"


@contextlib.contextmanager
def running(
    launch, binary, end, n, program, *arguments, options=(), prefork=None, seconds=HANG
):
    """A block with a job of n workers that trains until the file `end` is there, which is its last
    argument; it begins when "STEP 0" was printed. `launch` and `binary` are the fixtures, `options`
    those of shoal run, `prefork` that of `launch`. The launcher gets SIGTERM after so many seconds,
    and is killed at the end of the block.
    """
    process = launch.start(n, program, *arguments, end, options=options, prefork=prefork)
    job = Running(str(binary), process, end)
    hang = threading.Timer(seconds, process.terminate)
    hang.start()
    try:
        job.read_until("STEP 0")
        yield job
    finally:
        hang.cancel()
        process.kill()
        process.stdout.close()
        process.wait()
