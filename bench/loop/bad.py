"""Policies that misbehave: what they cost the job beside which they run, in turns with none."""

from __future__ import annotations

import pathlib
import statistics
import tempfile

import jobs

# What a program does with a request, as Python. The first line it writes is right.
WAYS = {
    "exits": "sys.exit(1)",
    "hangs": "time.sleep(1e6)",
    "floods": "[print('x' * (1 << 16), flush=True) for _ in iter(int, 1)]",
    "says NaN": "print('{\"tick\":%d,\"change\":{\"batch\":NaN}}' % tick, flush=True)",
    "goes back and forth": "batch = 128 if o['setting']['batch'] != 128 else 64\n"
    "    print(json.dumps({'tick': tick, 'change': {'batch': batch}, 'because': 'why not'}),"
    " flush=True)",
}
PROGRAM = """#!/usr/bin/env python3
import json, sys, time

print('{"protocol": 1, "name": "bad", "levers": ["batch"]}', flush=True)
for line in sys.stdin:
    tick, o = json.loads(line)["tick"], json.loads(line)["observation"]
    %s
"""
WORKERS = 2
# The batch makes no difference to the time of a step.
OPTIONS = dict(
    kind="still", a=0.02, b=0, batch=64, least=64, most=128, elements=1 << 12, epochs=1 << 20
)
SKIPPED, STEPS = 20, 400  # steps of a job that are left out, and that are measured


def measure(args):
    """The median step of each job, a dict each: with each way in turn, and with none before it."""
    found = []
    with tempfile.TemporaryDirectory() as name:
        for turn in range(args.turns):
            for way in WAYS:
                for each in ("", way):
                    found.append(dict(run_job(pathlib.Path(name), each), turn=turn, beside=way))
    return found


def run_job(folder, way):
    """Run a job with a policy that misbehaves in a way; "" = with none of a user."""
    flags = ["--auto"]
    if way:
        program = folder / "bad"
        program.write_text(PROGRAM % WAYS[way])
        program.chmod(0o700)
        flags += ["--policy", str(program)]
    with jobs.Run(WORKERS, flags, **OPTIONS) as run:
        run.wait_for(lambda: len(run.lines("metrics.jsonl")) >= SKIPPED + STEPS)
        steps = [m["metrics"]["seconds"] for m in run.lines("metrics.jsonl")]
        told = [e["because"] for e in run.lines("events.jsonl") if e["what"] == "policy"]
        changes = len(run.changes())
    seconds = statistics.median(steps[SKIPPED:])
    faults = sum(line.startswith("bad left things") for line in told)
    return dict(part="bad", way=way, seconds=seconds, faults=faults, changes=changes)


def text(results):
    """The table of the ways; "" where none was measured."""
    rows = [r for r in results if r["part"] == "bad"]
    if not rows:
        return ""
    out = [
        "| a policy that | step, as against none | lines of its faults | changes |",
        "|---|---|---|---|",
    ]
    took = {(r["turn"], r["beside"], bool(r["way"])): r["seconds"] for r in rows}
    for way in WAYS:
        ratios = [
            took[turn, way, True] / took[turn, way, False] - 1
            for turn in sorted({r["turn"] for r in rows})
        ]
        some = [r for r in rows if r["way"] == way]
        out.append(
            f"| {way} | {100 * statistics.median(ratios):+.1f} %"
            f" ({100 * min(ratios):+.1f} to {100 * max(ratios):+.1f}) |"
            f" {statistics.median(r['faults'] for r in some):g} |"
            f" {statistics.median(r['changes'] for r in some):g} |"
        )
    return "\n".join(out)
