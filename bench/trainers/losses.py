"""What a loss and a new worker cost: from the kill of a worker until the next step that nobody had
made before, and from the order of a worker until its first step.
"""

from __future__ import annotations

import argparse
import pathlib
import statistics
import sys
import tempfile
import time

import machine
import turns
from report import table
from systems import SAVE, SYSTEMS, Training

FREE_TOUCHED = 0.7  # share of the free memory that is touched before a worker is ordered
STEADY_STEPS = 3  # steps that all workers have made before something is done to them


def measure(args: argparse.Namespace) -> list[dict]:
    """Trains with every system in turn; returns the results of lose_one, one a round and system. A
    system that fails has the reason in its result as `failed`, and the others go on.
    """
    results = []
    for name, line in turns.in_turn(args, args.systems, "losses "):
        turns.BUILD.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix="losses-", dir=turns.BUILD) as folder:
            try:
                training = SYSTEMS[name](pathlib.Path(folder), args.shape, args.n, args.limit)
                try:
                    line.update(lose_one(training, line["run"]))
                finally:
                    training.end()
            except turns.Failure as e:
                line["failed"] = str(e)
                print(e, file=sys.stderr)
        results.append(dict(line, part="losses", shape=args.shape, n=args.n))
        print({k: v for k, v in line.items() if k != "failed"}, file=sys.stderr, flush=True)
    return results


def lose_one(training: Training, run: int) -> dict:
    """Orders a worker, lets it train, and kills one: rank 0 in even rounds (`run`), the last rank
    in odd ones. Returns what that has cost: seconds from the order to the first step of the new
    worker, seconds from the kill to the next step, steps that were made again, and the seconds of
    an ordinary step. Blocks; raises Failure as training.until does.
    """
    before = training.until(
        lambda lines: steady_workers(lines, training.workers - 1, ()), "its first steps"
    )
    machine.touch_memory(FREE_TOUCHED)
    ordered = time.time()
    training.order()
    joined = training.until(
        lambda lines: next((x for x in lines if x["pid"] not in before), None), "the new worker"
    )
    members = training.until(
        lambda lines: steady_workers(lines, training.workers, before, joined["at"]),
        "steps of all workers",
    )
    lines = training.until(between_checkpoints(training.save), "a step between checkpoints")
    ranks = {x["rank"]: x["pid"] for x in lines if x["pid"] in members}
    # rank 0 in every second round; torchft numbers from 0 too
    victim = ranks[max(ranks) if run % 2 else min(ranks)]
    top = lines[-1]["step"]
    killed = time.time()
    training.kill(victim)

    def of_others(lines):
        """Returns the notes of the others since the kill."""
        return [x for x in lines if x["pid"] != victim and x["at"] > killed]

    after = training.until(
        lambda lines: next((x for x in of_others(lines) if x["step"] > top), None), "the next step"
    )
    notes = training.until(list, "notes")
    old = [x for x in notes if x["at"] <= killed]
    return {
        "order_s": joined["at"] - ordered,
        "kill_s": after["at"] - killed,
        "lost": repeated_steps(old, of_others(notes), top),
        "step_s": median_step_s(lines, members),
    }


def repeated_steps(before: list[dict], after: list[dict], top: int) -> int:
    """Returns how many steps were made again: those at which a process goes on below its own last
    step, or a new process below the last step of all, which is `top`. `before` and `after` are the
    notes up to the kill and those of the others since.
    """
    last = {x["pid"]: x["step"] for x in before}
    first: dict[int, int] = {}
    for line in after:
        first.setdefault(line["pid"], line["step"])
    return max(last.get(pid, top) + 1 - step for pid, step in first.items())


def steady_workers(lines, workers, before, since=0.0):
    """Returns the process ids that train, if there are exactly `workers` of them and each has made
    STEADY_STEPS since the second `since` of the wall clock; else None. `before` are process ids,
    and one at least that trains must be another; empty = any will do. `lines` are notes.
    """
    made: dict[int, int] = {}
    for line in lines:
        if line["at"] >= since:
            made[line["pid"]] = made.get(line["pid"], 0) + 1
    ready = {pid for pid, steps in made.items() if steps >= STEADY_STEPS}
    return ready if len(ready) == workers and not (before and ready <= set(before)) else None


def between_checkpoints(save: int):
    """Returns a function of the notes, which returns them when the last step is in the middle
    between two checkpoints, else None. `save` is the steps between two of them; 0 = there are none,
    and every step will do.
    """

    def found(lines):
        """Returns the notes, or None, as above."""
        return lines if not save or lines[-1]["step"] % save == save // 2 else None

    return found


def median_step_s(lines, members) -> float:
    """Returns the median time in seconds of a step of one of the members, which are process ids."""
    times = [x["at"] for x in lines if x["pid"] == max(members)]
    return statistics.median(b - a for a, b in zip(times, times[1:]))


def text(results: list[dict]) -> str:
    """Returns the table of this part in Markdown; "" when no result is of it."""
    results = [r for r in results if r["part"] == "losses"]
    if not results:
        return ""
    head = ["", "rounds", "step", "kill to next step, p50", "max", "steps done again"]
    rows = []
    for name in dict.fromkeys(r["name"] for r in results):
        own = [r for r in results if r["name"] == name and "failed" not in r]
        failed = sum(r["name"] == name and "failed" in r for r in results)
        rounds = f"{len(own)}" + (f", {failed} failed" if failed else "")
        if not own:
            rows.append([name, rounds] + ["–"] * 6)
            continue
        kills, orders = [r["kill_s"] for r in own], [r["order_s"] for r in own]
        rows.append(
            [
                name,
                rounds,
                seconds_text(statistics.median(r["step_s"] for r in own)),
                seconds_text(statistics.median(kills)),
                seconds_text(max(kills)),
                f"{statistics.median(r['lost'] for r in own):g}",
                seconds_text(statistics.median(orders)),
                seconds_text(max(orders)),
            ]
        )
    note = (
        f"Shape {results[0]['shape']}, {results[0]['n']} workers; torchrun saves every {SAVE}"
        " steps."
    )
    return f"{note}\n\n" + table(head + ["order to first step, p50", "max"], rows)


def seconds_text(value: float) -> str:
    """Returns a number of seconds as text."""
    return f"{value:.2f} s" if value < 9.995 else f"{value:.1f} s"
