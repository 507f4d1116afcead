"""A straggler: one of four paced workers becomes three times as slow, and its work is moved."""

from __future__ import annotations

import statistics

import jobs

WORKERS, SLOW_RANK, SLOW, FROM = 4, 2, 3, 60
# Steps of 53 ms before somebody is slow.
OPTIONS = dict(
    kind="parts", a=0.002, b=0.0008, batch=64 * WORKERS, elements=1 << 14, epochs=1 << 20,
    slow_rank=SLOW_RANK, slow=SLOW, slow_from=FROM,
)
AUTO_STEPS, STEPS = 300, 60  # that a job makes after somebody is slow, with policies and without
SETTLED = 40  # of which the last are measured


def measure(args):
    """What came of each job, a dict each, in turns."""
    return [
        run_job(only_backward, flags)
        for _ in range(args.turns)
        for only_backward in (False, True)
        for flags in ([], ["--auto"])
    ]


def run_job(only_backward, flags):
    """Run a job until its steps are settled; says how many steps after one became slow it was
    named, None = it was not, and what steps take before and afterwards.
    """
    with jobs.Run(WORKERS, flags, only_backward=only_backward, **OPTIONS) as run:
        run.wait_for(lambda: len(run.lines("metrics.jsonl")) > FROM // 2)
        named, end = None, FROM + (AUTO_STEPS if flags else STEPS)
        # Each question is a process, so none is asked that has its answer.
        while named is None and run.process.poll() is None:
            job = run.listed()
            if job.get("steps", 0) >= end:
                break
            if any(line.startswith(f"rank {SLOW_RANK} is slow") for line in job.get("slow", [])):
                named = job["steps"] - FROM
        run.wait_for(lambda: len(run.lines("metrics.jsonl")) >= end)
        steps = run.lines("metrics.jsonl")[:end]
        changes = [c for c in run.changes().values() if c.get("policy") == "shares"]
    seconds = [m["metrics"]["seconds"] for m in steps]
    return dict(
        part="straggler", only_backward=only_backward, auto=bool(flags), named=named,
        before=statistics.median(seconds[20:FROM]), after=statistics.median(seconds[-SETTLED:]),
        changes=changes,
    )


def best_seconds(only_backward):
    """The seconds of a step in which all workers are ready at the same time, which is Σ speeds."""
    factor = (1 + 2 * SLOW) / 3 if only_backward else SLOW
    a, b = OPTIONS["a"], OPTIONS["b"]
    speeds = (WORKERS - 1) / b + 1 / (b * factor)
    return (OPTIONS["batch"] + WORKERS * a / b) / speeds


def text(results):
    """The table of the jobs; "" where there were none."""
    rows = [r for r in results if r["part"] == "straggler"]
    if not rows:
        return ""
    out = [
        "| three times as slow | policies | named after | step before, with it | of Σ speeds |",
        "|---|---|---|---|---|",
    ]
    for only_backward in (False, True):
        for auto in (False, True):
            some = [
                r for r in rows if (r["only_backward"], r["auto"]) == (only_backward, auto)
            ]
            named = ", ".join(str(r["named"]) for r in some)
            before, after = (statistics.median(r[k] for r in some) for k in ("before", "after"))
            parts = [best_seconds(only_backward) / r["after"] for r in some]
            out.append(
                f"| {'backward pass' if only_backward else 'all of its work'} |"
                f" {'shares' if auto else 'none'} | {named} steps |"
                f" {1e3 * before:.0f} ms, {1e3 * after:.0f} ms |"
                f" {100 * statistics.median(parts):.0f} %"
                f" ({100 * min(parts):.0f} to {100 * max(parts):.0f}) |"
            )
    return "\n".join(out)
