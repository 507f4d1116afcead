"""The page of a run: what it costs the job that it shows, also under attack, and how soon a run
of 30 days is there.
"""

from __future__ import annotations

import contextlib
import datetime
import http.client
import json
import os
import pathlib
import socket
import statistics
import subprocess
import tempfile
import threading
import time

import jobs

WORKERS = 2
OPTIONS = dict(
    kind="still", a=0.02, b=0, batch=64, least=64, most=128, elements=1 << 12, epochs=1 << 20
)
SKIPPED, STEPS = 20, 200  # steps of a job that are left out, and of a time that is measured
CONNECTIONS = 10_000
ROWS, REPORTS = 15 << 20, 100 << 20  # bytes of the files of a run of 30 days


class Page:
    """A page that is served, of a running job or of a directory, until the end of a with."""

    def __init__(self, run):
        """Serve the page of a run."""
        self.process = subprocess.Popen(
            [str(jobs.SHOAL), "dash", run], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
        )
        address = self.process.stdout.readline().decode().strip()
        self.host, _, token = address.removeprefix("http://").partition("/#token=")
        self.token, self.cookie = token, None

    def __enter__(self):
        """The page."""
        return self

    def __exit__(self, *_):
        """End it."""
        self.process.terminate()
        self.process.wait()

    def address(self):
        """Host and port."""
        host, _, port = self.host.rpartition(":")
        return host, int(port)

    def processors(self):
        """The seconds of processors that it has had."""
        fields = pathlib.Path(f"/proc/{self.process.pid}/stat").read_text().rpartition(")")[2]
        return sum(map(int, fields.split()[11:13])) / os.sysconf("SC_CLK_TCK")

    def events(self):
        """The stream of events, after a login."""
        asked = http.client.HTTPConnection(self.host, timeout=60)
        asked.request("POST", "/login", self.token)
        reply = asked.getresponse()
        assert reply.status == 204, reply.status
        cookie = reply.headers["Set-Cookie"].partition(";")[0]
        reply.read()
        asked.request("GET", "/events", headers={"Cookie": cookie})
        return asked, asked.getresponse()


def open_page(page, stop):
    """Read what the page gets, until `stop` is set."""
    asked, stream = page.events()
    while not stop.is_set() and stream.readline():
        pass
    asked.close()


def flood(page, stop):
    """Make CONNECTIONS connections that say nothing, some hundred of them at a time."""
    some = []
    for _ in range(CONNECTIONS):
        if stop.is_set():
            break
        with contextlib.suppress(OSError):
            some.append(socket.create_connection(page.address(), timeout=5))
        if len(some) >= 500:
            some.pop(0).close()
    stop.wait()
    for each in some:
        each.close()


def guess(page, stop):
    """Try one token after another, from four threads."""

    def some():
        """Guess until `stop` is set."""
        while not stop.is_set():
            with contextlib.suppress(OSError, http.client.HTTPException):
                asked = http.client.HTTPConnection(page.host, timeout=5)
                asked.request("POST", "/login", "0" * 32)
                asked.getresponse().read()
                asked.close()

    threads = [threading.Thread(target=some) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


WAYS = {"a page is open": open_page, "10,000 connections": flood, "tokens are guessed": guess}


def measure(args):
    """The steps of a job with a page of each kind, as against those just before and just after
    without, in turns, and when a long run is there: a dict each.
    """
    found = []
    with jobs.Run(WORKERS, ["--auto=watch"], **OPTIONS) as run:
        run.wait_for(lambda: len(run.lines("metrics.jsonl")) >= SKIPPED)
        for turn in range(args.turns):
            before = median_of_next_steps(run)
            for way, act in WAYS.items():
                with Page(run.name) as page:
                    stop, began = threading.Event(), time.monotonic()
                    thread = threading.Thread(target=act, args=(page, stop))
                    thread.start()
                    beside = median_of_next_steps(run)
                    stop.set()
                    thread.join()
                    spent = page.processors() / (time.monotonic() - began)
                after = median_of_next_steps(run)
                ratio = 2 * beside / (before + after)
                found.append(dict(part="page", way=way, turn=turn, ratio=ratio, spent=spent))
                before = after
    with tempfile.TemporaryDirectory() as name:
        write_month(pathlib.Path(name))
        for turn in range(args.turns):
            began = time.monotonic()
            with Page(f"{name}/") as page:
                asked, stream = page.events()
                size = 0
                while not (line := stream.readline()).startswith(b"data:"):
                    size += len(line)
                seconds, size = time.monotonic() - began, size + len(line)
                asked.close()
            found.append(dict(part="page", way="30 days", turn=turn, seconds=seconds, size=size))
    return found


def median_of_next_steps(run):
    """The median of the next STEPS steps of a job."""
    have = len(run.lines("metrics.jsonl"))
    run.wait_for(lambda: len(run.lines("metrics.jsonl")) >= have + STEPS)
    return statistics.median(m["metrics"]["seconds"] for m in run.lines("metrics.jsonl")[have:])


def write_month(folder):
    """Write the files of a run of 30 days, as long as they become."""
    began = datetime.datetime(2026, 10, 1)

    def at(second):
        """A time of the run."""
        return (began + datetime.timedelta(seconds=second)).isoformat() + "Z"

    spec = {"name": "month", "command": ["python3", "train.py"]}
    (folder / "job.json").write_text(json.dumps({"spec": spec, "started": at(0), "version": ""}))
    with open(folder / "sense.jsonl", "w") as file:
        n = 0
        while file.tell() < ROWS:
            n += 1
            row = dict(
                time=at(72 * n), step=4000 * n, steps=4000, span=72.0, generation=1, size=4,
                batch=256, samples=1024000, loss=5 / (1 + n / 500), slack=[0, 0.001, 0.002, 0.003],
                seconds=dict(p10=0.017, median=0.018, p90=0.02),
                split=dict(compute=0.015, exposed=0.0005, data=0.001, optimizer=0.0008),
                noise=dict(scale=dict(low=400, mid=500, high=600)),
            )  # fmt: skip
            file.write(json.dumps(row) + "\n")
    with open(folder / "metrics.jsonl", "w") as file:
        n = 0
        while file.tell() < REPORTS:
            n += 1
            numbers = dict(loss=5 / (1 + n / 50000), accuracy=1 - 1 / (1 + n / 90000))
            file.write(json.dumps(dict(time=at(2 * n), rank=n % 4, metrics=numbers)) + "\n")


def text(results):
    """The table; "" where nothing was measured."""
    rows = [r for r in results if r["part"] == "page"]
    if not rows:
        return ""
    out = [
        "| page | steps of 20 ms of the job beside it, as against none | of a processor |",
        "|---|---|---|",
    ]
    for way in WAYS:
        ratios = [r["ratio"] - 1 for r in rows if r["way"] == way]
        spent = statistics.median(r["spent"] for r in rows if r["way"] == way)
        out.append(
            f"| {way} | {100 * statistics.median(ratios):+.1f} %"
            f" ({100 * min(ratios):+.1f} to {100 * max(ratios):+.1f}) | {100 * spent:.1f} % |"
        )
    month = [r for r in rows if r["way"] == "30 days"]
    out.append(
        f"\nFrom the start of shoal dash until all of a run of 30 days ({ROWS >> 20} MiB of rows,"
        f" {REPORTS >> 20} MiB of reports) has come to the browser:"
        f" {statistics.median(r['seconds'] for r in month):.2f} s, {month[0]['size'] / 1e3:.0f} kB."
    )
    return "\n".join(out)
