"""How true predictions are: many changes of the batch of paced workers, predicted and measured."""

from __future__ import annotations

import math
import random
import statistics

import jobs

# a and b of workers, in seconds: from one that hardly cares for the batch to one that is linear.
SHAPES = [(0.02, 0.00002), (0.01, 0.0001), (0.002, 0.0004)]


def measure(args):
    """The changes of all jobs, each a dict."""
    found = []
    for number, (a, b) in enumerate(SHAPES):
        found += change_at_random(a, b, args.changes // len(SHAPES), args.seed + number)
    return found


def change_at_random(a, b, changes, seed):
    """Change the batch of a job so many times, by hand, and return what the ledger says of each."""
    draws = random.Random(seed)
    least, most = 64, 1024
    with jobs.Run(4, a=a, b=b, batch=128, least=least, most=most, epochs=1 << 20) as run:
        run.wait_for(lambda: run.steps() >= 200)
        for _ in range(changes):
            before = len(run.changes())
            batch = round(least * 2 ** draws.uniform(0, math.log2(most / least)))
            if run.set(f"batch={batch}"):
                continue  # it has that batch
            run.wait_for(lambda: len(run.changes()) > before and ended(run.changes()))
        return [
            dict(part="predictions", a=a, b=b, to=c["to"], predicted=c.get("predicted"),
                 measured=c.get("measured", 0), phase=c["phase"], why=c.get("why", ""))
            for c in run.changes().values()
        ]


def ended(changes):
    """Whether no change is being measured."""
    return all(c["phase"] != "entered" for c in changes.values())


def text(results):
    """The table of the predictions; "" where none were measured."""
    rows = [r for r in results if r["part"] == "predictions"]
    if not rows:
        return ""
    lines = [
        "| a + b · samples | changes | median error | 95 % of them | inside the band of 80 % |",
        "|---|---|---|---|---|",
    ]
    for a, b in SHAPES + [(None, None)]:
        some = [r for r in rows if a is None or (r["a"], r["b"]) == (a, b)]
        known = [r for r in some if r["predicted"] and r["measured"]]
        if not known:
            continue
        errors = sorted(abs(r["measured"] / r["predicted"]["mid"] - 1) for r in known)
        inside = [r["predicted"]["low"] <= r["measured"] <= r["predicted"]["high"] for r in known]
        what = "all" if a is None else f"{1e3 * a:g} ms + {1e6 * b:g} µs"
        lines.append(
            f"| {what} | {len(known)} of {len(some)} | {100 * statistics.median(errors):.1f} % |"
            f" {100 * errors[math.ceil(0.95 * len(errors)) - 1]:.1f} % |"
            f" {100 * sum(inside) / len(inside):.0f} % |"
        )
    return "\n".join(lines)
