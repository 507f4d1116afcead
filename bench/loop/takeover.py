"""The head is killed while a change is on trial: three hosts, each a network namespace, so it needs
root. What the survivors have of the job afterwards is checked, not timed.
"""

from __future__ import annotations

import collections
import contextlib
import json
import os
import pathlib
import random
import signal
import subprocess
import sys
import tempfile
import time

import jobs

sys.path += [str(jobs.HERE.parent / "hosts"), str(jobs.HERE.parent / "peers")]

from network import Network  # noqa: E402
from programs import json_lines  # noqa: E402

HOSTS = 3
OPTIONS = dict(
    jobs.DEFAULTS, kind="marks", a=0.01, b=0, batch=48, least=48, most=768, samples=1 << 12,
    epochs=1 << 20, elements=1 << 12, noise=1e6,
)
# A policy that is never content, so that there are some changes to be interrupted.
POLICY = """
import shoal


@shoal.policy(levers=["batch", "rate"])
def restless(o, state):
    batch = 2 * o.setting.batch if o.setting.batch < 768 else 48
    return shoal.change(batch=batch, because="there is more to try")
"""


def measure(args):
    """What came of each job, a dict each."""
    draws = random.Random(args.seed)
    return [run_job(draws.randrange(2), draws.uniform(0, 0.3)) for _ in range(args.takeovers)]


def run_job(kept, delay):
    """Run a job whose policies change the batch, and kill the host that leads so many seconds after
    a change was entered that follows `kept` others; returns what is wrong with what is left, and
    how that change has ended.
    """
    net, started = Network(HOSTS, "400mbit", 1500), []
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        try:
            start(net, folder, started)
            entered = kill(folder, started[0], kept, delay)
            wait_for(lambda: len(read_ledger(folder, 1)) > kept + 2, started[1:], folder)
            (folder / "end").touch()
            codes = [p.wait(timeout=300) for p in started[1:]]
            wrong, change = check(folder, entered)
            if any(codes):
                wrong.append(f"exit codes {codes}: {last_output(folder)}")
        finally:
            for p in started:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(p.pid, signal.SIGKILL)
                p.wait()
            net.close()
    return dict(part="takeover", entered=entered, delay=delay, change=change, wrong=wrong)


def start(net, folder, started):
    """Start the job on all hosts, and append the processes to a list."""
    options = json.dumps(dict(OPTIONS, folder=str(folder)))
    (folder / "restless.py").write_text(POLICY)
    place = ["--slots", "1", "--token-file", str(folder / "token")]
    address = f"{net.address[0]}:7077"
    worker = ["--", sys.executable, str(jobs.WORKER), options]
    for h in net.hosts:
        home = folder / f"host{h}"
        home.mkdir()
        if h == 0:
            words = [str(jobs.SHOAL), "run", "-n", str(HOSTS), "--min", "1", "--name", "bench"]
            words += ["--auto", "--policy", str(folder / "restless.py"), "--listen", address]
            words += [*place, "--log-dir", str(home), *worker]
        else:
            words = [str(jobs.SHOAL), "agent", "--join", address, *place, "--log-dir", str(home)]
        env = dict(os.environ, XDG_RUNTIME_DIR=str(home), XDG_STATE_HOME=str(home))
        env["PYTHONPATH"] = str(jobs.HERE.parents[1] / "python")
        with open(home / "said", "w") as out:
            started.append(
                subprocess.Popen(
                    net.command(h, *words), env=env, stdout=out, stderr=out, start_new_session=True
                )
            )
        while h == 0 and not (folder / "token").exists() and started[0].poll() is None:
            time.sleep(0.02)


def wait_for(holds, processes, folder):
    """Wait until holds() is true, and return that; ends the benchmark where a process ends."""
    while not (found := holds()):
        if any(p.poll() is not None for p in processes):
            sys.exit(f"a host has left the job too soon:\n{last_output(folder)}")
        time.sleep(0.005)
    return found


def kill(folder, first, kept, delay):
    """Kill the host that leads while a change that follows so many others is on trial, and return
    the number of that change.
    """

    def on_trial():
        """The number of a change that is on trial; None = none is, or it is too early."""
        changes = read_ledger(folder, 1)
        return next((n for n, phases in changes.items() if len(phases) == 1 and n > kept), None)

    number = wait_for(on_trial, [first], folder)
    time.sleep(delay)
    os.killpg(first.pid, signal.SIGKILL)
    return number


def read_ledger(folder, host):
    """The phases of each change of the setting, by its number, as a host has them."""
    phases = collections.defaultdict(list)
    for path in (folder / f"host{host}").glob("*/events.jsonl"):
        for line in json_lines(path.read_text()):
            if line["what"] == "change":
                phases[line["change"]["number"]].append(line["change"]["phase"])
    return phases


def last_output(folder):
    """The last of what all hosts have printed."""
    return "\n".join(p.read_text()[-2000:] for p in sorted(folder.glob("host*/said")))


def check(folder, entered):
    """What is wrong with what the survivors have of the job, a list, and how a change has ended."""
    wrong = []
    hosts = [read_ledger(folder, h) for h in range(1, HOSTS)]
    if hosts[0] != hosts[1]:
        wrong.append(f"ledgers differ: {hosts}")
    for number, phases in hosts[0].items():
        if phases[0] != "entered" or len(phases) != 2 and number < max(hosts[0]):
            wrong.append(f"change {number} went through {phases}")
    steps = {}
    for path in folder.glob("marks-*"):
        for line in json_lines(path.read_text()):
            before = steps.setdefault(line["step"], line)
            if before != line:
                wrong.append(f"two workers differ: {before}, {line}")
    if sorted(steps) != list(range(len(steps))):
        wrong.append("a step is missing")
    times = collections.defaultdict(collections.Counter)
    for line in steps.values():
        times[line["epoch"]].update(line["taken"])
    times.pop(max(times))  # the epoch in which the job was told to end
    for epoch, counter in times.items():
        if counter != collections.Counter(range(OPTIONS["samples"])):
            missing = OPTIONS["samples"] - len(counter)
            wrong.append(f"epoch {epoch}: {missing} missing, most: {counter.most_common(2)}")
    return wrong, hosts[0][entered][-1] if hosts[0][entered] else ""


def text(results):
    """The table of how trials ended whose head was killed; "" where none was."""
    rows = [r for r in results if r["part"] == "takeover"]
    if not rows:
        return ""
    ends = collections.Counter(r["change"] for r in rows)
    told = ", ".join(f"{n} {end}" for end, n in sorted(ends.items()))
    wrong = [w for r in rows for w in r["wrong"]]
    return (
        f"The head was killed in the trial of a change {len(rows)} times, on three hosts: {told}."
        f" On the survivors {'nothing was wrong' if not wrong else '; '.join(wrong)}: the same"
        " changes in all ledgers, the same batch in each step, each sample once an epoch."
    )
