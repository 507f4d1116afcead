#!/usr/bin/env python3
"""Measures how soon the first chart of a run of 30 days is there: in shoal dash, and in TensorBoard
with the same numbers. Both are started anew each time; the browser, a Chromium, runs already. What
processors do for it, in the server and in the browser, depends little on who else uses them.

usage: scripts/setup page && scripts/setup tensorboard
       .venv-torch2/bin/python bench/loop/charts.py [--turns N]
"""

from __future__ import annotations

import argparse
import datetime
import json
import os
import pathlib
import re
import statistics
import subprocess
import sys
import tempfile
import time

import jobs
import page

TOOLS = jobs.HERE.parents[1] / "build/tools"
sys.path.append(str(TOOLS / "playwright"))
BOARD = TOOLS / "tensorboard"
SERVED = re.compile(r"http://(localhost|127\.0\.0\.1):\d+/\S*")


def main():
    """Measure in turns, and print a table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--turns", type=int, default=5)
    args = parser.parse_args()
    from playwright.sync_api import sync_playwright

    found = {}
    with tempfile.TemporaryDirectory() as name, sync_playwright() as playwright:
        run, board = pathlib.Path(name) / "run", pathlib.Path(name) / "board"
        run.mkdir()
        page.write_month(run)
        write_board(run, board)
        browser = playwright.chromium.launch(
            executable_path="/usr/bin/chromium-headless-shell", args=["--no-sandbox"]
        )
        command = [sys.executable, "-m", "tensorboard.main", "--logdir", board, "--port", "0"]
        ways = {
            "shoal dash": ([jobs.SHOAL, "dash", f"{run}/"], "canvas"),
            "TensorBoard": (command, "scalar-card line-chart"),
        }
        for _ in range(args.turns):
            for way, (command, chart) in ways.items():
                found.setdefault(way, []).append(first_chart(browser, command, chart))
        browser.close()
    print("| seconds | until the address | from there to the first chart | both | of processors |")
    print("|---|---|---|---|---|")
    for way, times in found.items():
        print(f"| {way} | " + " | ".join(spread(column) for column in zip(*times)) + " |")
    print(f"\nMedians (least to greatest) of {args.turns}, load {os.getloadavg()[0]:.1f}.")


def spread(times):
    """Times as a text."""
    return f"{statistics.median(times):.2f} ({min(times):.2f} to {max(times):.2f})"


def first_chart(browser, command, chart):
    """The seconds from the start of a server to its address, from there to a chart, a CSS selector,
    both, and those of processors.
    """
    spent, began = processors(), time.monotonic()
    path = os.pathsep.join(filter(None, [str(BOARD), os.environ.get("PYTHONPATH")]))
    server = subprocess.Popen(
        list(map(str, command)), stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
        env={**os.environ, "PYTHONPATH": path},
    )  # fmt: skip
    try:
        for line in server.stdout:
            if address := SERVED.search(line):
                break
        served = time.monotonic()
        tab = browser.new_page()
        tab.goto(address[0])
        tab.locator(chart).first.wait_for(timeout=300_000)
        done, spent = time.monotonic(), processors() - spent
        tab.close()
    finally:
        server.terminate()
        server.communicate()
    return served - began, done - served, done - began, spent


def processors(process="self"):
    """The seconds of processors that the descendants of a process have had."""
    seconds = 0.0
    for thread in pathlib.Path(f"/proc/{process}/task").glob("*"):
        for child in (thread / "children").read_text().split():
            fields = pathlib.Path(f"/proc/{child}/stat").read_text().rpartition(")")[2].split()
            seconds += sum(map(int, fields[11:13])) / os.sysconf("SC_CLK_TCK") + processors(child)
    return seconds


def write_board(run, board):
    """Write for TensorBoard what a run has: of its rows and of what its first worker reports."""
    sys.path.append(str(BOARD))
    from tensorboard.compat.proto.event_pb2 import Event
    from tensorboard.compat.proto.summary_pb2 import Summary
    from tensorboard.summary.writer.record_writer import RecordWriter

    board.mkdir()

    def add(at, step, numbers):
        """Write some numbers of a step."""
        values = [Summary.Value(tag=tag, simple_value=x) for tag, x in numbers.items()]
        when = datetime.datetime.fromisoformat(at.rstrip("Z")).timestamp()
        event = Event(wall_time=when, step=step, summary=Summary(value=values))
        writer.write(event.SerializeToString())

    with open(board / "events.out.tfevents.0.month", "wb") as file:
        writer = RecordWriter(file)
        writer.write(Event(wall_time=0, file_version="brain.Event:2").SerializeToString())
        for line in open(run / "sense.jsonl"):
            row = json.loads(line)
            numbers = dict(
                loss=row["loss"], batch=row["batch"], workers=row["size"],
                seconds=row["seconds"]["median"], rate=row["samples"] / row["span"],
            )  # fmt: skip
            add(row["time"], row["step"], {f"shoal/{k}": v for k, v in numbers.items()})
        for n, line in enumerate(open(run / "metrics.jsonl")):
            report = json.loads(line)
            if report["rank"] == 0:
                add(report["time"], n, report["metrics"])


if __name__ == "__main__":
    main()
