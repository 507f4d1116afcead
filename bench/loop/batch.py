"""The batch of the digits: fixed ones, and one that policies change, from the smallest on."""

from __future__ import annotations

import statistics

import jobs

FIXED = [32, 128, 1024]
PACE = dict(kind="digits", a=0.008, b=0.0001)
# A target is this much below the best fixed batch's final accuracy.
BELOW = 0.005


def measure(args):
    """The trainings, a dict each, in turns so that all see the machine alike."""
    found = []
    for seed in range(args.seeds):
        for batch in [*FIXED, 0]:
            found.append(train(batch, seed, args))
    return found


def train(batch, seed, args):
    """One training with a fixed batch; 0 = policies change it from the smallest on."""
    options = dict(PACE, seed=seed, epochs=args.epochs, batch=batch or FIXED[0])
    flags = []
    if not batch:
        options.update(least=FIXED[0], most=FIXED[-1])
        flags = ["--auto"]
    # Every batch has the rate that suits it: the square root of its factor.
    options["rate"] = 0.1 * (options["batch"] / FIXED[0]) ** 0.5
    with jobs.Run(4, flags, **options) as run:
        run.finish()
        curve = [m["metrics"] for m in run.lines("metrics.jsonl") if "accuracy" in m["metrics"]]
        changes = [c for c in run.changes().values() if c["policy"]] if not batch else []
    return dict(part="batch", batch=batch, seed=seed, curve=curve, changes=len(changes))


def text(results):
    """The table of the trainings; "" where there were none."""
    rows = [r for r in results if r["part"] == "batch"]
    if not rows:
        return ""
    lines = [
        "| batch | final accuracy | seconds of the training | seconds to the target | changes |",
        "|---|---|---|---|---|",
    ]
    seeds = sorted({r["seed"] for r in rows})
    targets = {
        seed: max(r["curve"][-1]["accuracy"] for r in rows if r["seed"] == seed and r["batch"])
        - BELOW
        for seed in seeds
    }
    for batch in [*FIXED, 0]:
        some = [r for r in rows if r["batch"] == batch]
        reached = [seconds_to(r["curve"], targets[r["seed"]]) for r in some]
        got = [s for s in reached if s is not None]
        lines.append(
            f"| {batch or 'adaptive, from 32'} |"
            f" {100 * statistics.median(r['curve'][-1]['accuracy'] for r in some):.1f} % |"
            f" {statistics.median(r['curve'][-1]['seconds'] for r in some):.1f} |"
            + (f" {statistics.median(got):.1f}" if got else " –")
            + (f" ({len(got)} of {len(some)} got there)" if len(got) < len(some) else "")
            + f" | {statistics.median(r['changes'] for r in some):g} |"
        )
    return "\n".join(lines)


def seconds_to(curve, target):
    """The seconds until an accuracy was reached; None = it never was."""
    return next((m["seconds"] for m in curve if m["accuracy"] >= target), None)
