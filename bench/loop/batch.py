"""The batch of the digits: fixed ones, and one that policies change, from the smallest on, trained
for as many statistical epochs. Fixed batches that learn less in these are trained longer, too.
"""

from __future__ import annotations

import statistics

import jobs

FIXED = [32, 128, 1024]
# How many times as long fixed batches are trained, for one that learns as much to be among them.
LONGER = {32: [1], 128: [1, 1.5, 2], 1024: [1, 3, 4]}
PACE = dict(kind="digits", a=0.008, b=0.0001)
# The target is this much below the best final accuracy of a fixed batch in as many epochs.
BELOW = 0.005


def measure(args):
    """The trainings, a dict each, in turns so that all see the machine alike."""
    turn = [(batch, round(n * args.epochs)) for batch in FIXED for n in LONGER[batch]]
    return [
        train(batch, seed, epochs)
        for seed in range(args.seeds)
        for batch, epochs in [*turn, (0, args.epochs)]
    ]


def train(batch, seed, epochs):
    """One training with a fixed batch; 0 = policies change it from the smallest on."""
    options = dict(PACE, seed=seed, epochs=epochs, batch=batch or FIXED[0])
    flags = []
    if not batch:
        options.update(least=FIXED[0], most=FIXED[-1])
        flags = ["--auto"]
    # Every batch has the rate that suits it: the square root of its factor.
    options["rate"] = 0.1 * (options["batch"] / FIXED[0]) ** 0.5
    with jobs.Run(4, flags, **options) as run:
        run.finish()
        curve = [m["metrics"] for m in run.lines("metrics.jsonl") if "accuracy" in m["metrics"]]
        # The rate alone follows the noise, which is no other batch.
        changes = [c for c in run.changes().values() if c["policy"] and "batch=" in c["to"]]
    return dict(
        part="batch", batch=batch, seed=seed, epochs=epochs, curve=curve, changes=len(changes)
    )


def trainings_of(results, batch):
    """The trainings of a batch by the epochs that were asked for, the fewest first."""
    found = {}
    for r in results:
        if r["part"] == "batch" and r["batch"] == batch:
            found.setdefault(r["epochs"], []).append(r)
    return dict(sorted(found.items()))


def median(rows, name):
    """The median of what the last reports of some trainings say."""
    return statistics.median(r["curve"][-1][name] for r in rows)


def target(results):
    """The accuracy to be reached: a little less than the best of the fixed batches in the fewest
    epochs.
    """
    first = [next(iter(trainings_of(results, batch).values())) for batch in FIXED]
    return max(median(rows, "accuracy") for rows in first) - BELOW


def shortest_to_target(results, batch):
    """The shortest trainings of a batch that reach the target; None = none do."""
    there = [
        r for r in trainings_of(results, batch).values() if median(r, "accuracy") >= target(results)
    ]
    return there[0] if there else None


def text(results):
    """The table of the trainings and what it comes to; "" where there were none."""
    if not trainings_of(results, 0):
        return ""
    lines = [
        "| batch | epochs | final accuracy | from seed to seed | seconds | changes |",
        "|---|---|---|---|---|---|",
    ]
    for batch in [*FIXED, 0]:
        for rows in trainings_of(results, batch).values():
            last = [100 * r["curve"][-1]["accuracy"] for r in rows]
            lines.append(
                f"| {batch or 'adaptive, from 32'} | {median(rows, 'samples') / SAMPLES:.1f} |"
                f" {statistics.median(last):.1f} % | {min(last):.1f}–{max(last):.1f} % |"
                f" {median(rows, 'seconds'):.1f} |"
                f" {statistics.median(r['changes'] for r in rows):g} |"
            )
    fixed = [shortest_to_target(results, batch) for batch in FIXED]
    seconds = sorted(median(rows, "seconds") if rows else float("inf") for rows in fixed)
    mine = shortest_to_target(results, 0)
    lines.append(f"\nThe target is {100 * target(results):.1f} %.")
    if mine is None:
        lines[-1] += " The adaptive batch does not reach it."
    else:
        took = median(mine, "seconds")
        lines[-1] += (
            f" The adaptive batch reaches it in {took:.1f} s, {took / seconds[0]:.2f} of the"
            f" {seconds[0]:.1f} s of the best fixed batch that is known afterwards, and"
            f" {took / seconds[len(seconds) // 2]:.2f} of the median fixed batch's."
        )
    return "\n".join(lines)


# How many samples an epoch of the digits has.
SAMPLES = 12942
