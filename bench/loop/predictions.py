"""How true predictions are: many changes of the batch, of the number of workers, and of the shares
of work where one of the paced workers is slow, predicted and measured.
"""

from __future__ import annotations

import math
import random
import statistics

import jobs

# a and b of workers, in seconds: from one that hardly cares for the batch to one that is linear.
SHAPES = [(0.02, 0.00002), (0.01, 0.0001), (0.002, 0.0004)]
WORKERS = 4

# The shares of work change where one worker takes twice as long for a sample.
SLOW = dict(kind="parts", slow_from=0, slow_rank=1, slow=2, only_backward=False, elements=1 << 14)

# The size changes from one worker to so many, with a batch that all of these divide. Steps are
# long, so that the processors of a small machine are no part of them.
MOST, BATCH = 6, 240
SIZED = [(0.03, 0.001), (0.1, 0.0005)]
LIMITS = ("--min", "1", "--max", str(MOST))

# Two workers that compute, for which a machine needs a processor each that nobody else uses.
REAL = dict(kind="computed", a=0, b=0)


def measure(args):
    """The changes of all jobs, each a dict."""
    if args.real:
        draws = random.Random(args.seed)
        return change_at_random(
            dict(REAL, batch=128, least=64, most=1024),
            lambda: f"batch={round(64 * 2 ** draws.uniform(0, 4))}",
            args.changes // len(SHAPES),
            workers=2,
        )
    found = []
    for number, (a, b) in enumerate(SHAPES):
        draws, least, most = random.Random(args.seed + number), 64, 1024
        found += change_at_random(
            dict(a=a, b=b, batch=128, least=least, most=most),
            lambda: f"batch={round(least * 2 ** draws.uniform(0, math.log2(most / least)))}",
            args.changes // len(SHAPES),
        )
    for number, (a, b) in enumerate(SIZED):
        sizes = other_sizes(random.Random(args.seed + number))
        found += change_at_random(
            dict(a=a, b=b, batch=BATCH),
            lambda sizes=sizes: f"size={next(sizes)}",
            args.changes // len(SHAPES) // 2,
            LIMITS,
        )
    draws = random.Random(args.seed)
    found += change_at_random(
        dict(SLOW, a=0.002, b=0.0004, batch=128),
        lambda: "shares=" + ":".join(str(draws.randint(2, 6)) for _ in range(WORKERS)),
        args.changes // len(SHAPES),
    )
    return found


def other_sizes(draws):
    """Sizes at random without end, of which none is as the one before."""
    last = WORKERS
    while True:
        last = draws.choice([n for n in range(1, MOST + 1) if n != last])
        yield last


def change_at_random(options, draw, changes, flags=(), workers=WORKERS):
    """Change a job so many times, by hand, to what draw() says, and return what the ledger says of
    each change. The job runs with some flags.
    """
    with jobs.Run(workers, flags, **options, epochs=1 << 20) as run:
        run.wait_for(lambda: run.steps() >= 200)
        for _ in range(changes):
            before = len(run.changes())
            if run.set(draw()):
                continue  # it has that
            run.wait_for(lambda: len(run.changes()) > before and is_settled(run.changes()), 300)
        return [
            dict(part="predictions", a=options["a"], b=options["b"], to=c["to"],
                 predicted=c.get("predicted"), measured=c.get("measured", 0), phase=c["phase"],
                 why=c.get("why", ""), slow=options.get("slow", 1))
            for c in run.changes().values()
        ]


def is_settled(changes):
    """Whether no change is being measured."""
    return all(c["phase"] != "entered" for c in changes.values())


def text(results):
    """The table of the predictions; "" where none were measured."""
    rows = [r for r in results if r["part"] == "predictions"]
    kinds = [("batch", *shape) for shape in SHAPES]
    kinds += [("size", *shape) for shape in SIZED]
    kinds += [("shares", SHAPES[-1][0], SHAPES[-1][1]), ("batch", 0, 0), ("all", None, None)]
    return table(rows, kinds)


def table(rows, kinds):
    """The table of changes of some kinds, each a name with a and b; "" without changes. A kind
    without a is of all changes.
    """
    if not rows:
        return ""
    lines = [
        "| of | a + b · samples | changes | median error | 95 % of them | in the band of 80 % |",
        "|---|---|---|---|---|---|",
    ]
    for kind, a, b in kinds:
        some = [r for r in rows if a is None or (kind_of(r), r["a"], r["b"]) == (kind, a, b)]
        known = [r for r in some if r["predicted"] and r["measured"]]
        if not known:
            continue
        errors = sorted(abs(r["measured"] / r["predicted"]["mid"] - 1) for r in known)
        inside = [r["predicted"]["low"] <= r["measured"] <= r["predicted"]["high"] for r in known]
        what = f"{1e3 * a:g} ms + {1e6 * b:g} µs" if a else "" if a is None else "PyTorch"
        lines.append(
            f"| {kind} | {what} | {len(known)} of {len(some)} |"
            f" {100 * statistics.median(errors):.1f} % |"
            f" {100 * errors[math.ceil(0.95 * len(errors)) - 1]:.1f} % |"
            f" {100 * sum(inside) / len(inside):.0f} % |"
        )
    return "\n".join(lines)


def kind_of(result):
    """What a change was of."""
    for kind, prefix in dict(size="size=", routes="route=").items():
        if result["to"].startswith(prefix):
            return kind
    return "shares" if result["slow"] > 1 else "batch"
