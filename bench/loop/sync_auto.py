"""A job on hosts whose cables become slow and fast again, which changes by policy `sync` how its
workers synchronise: what it does, when, and how many samples a second that brings.
"""

from __future__ import annotations

import os
import sys
import time

import jobs

sys.path += [str(jobs.HERE.parent / "hosts"), str(jobs.HERE.parent / "peers")]

from interference import lines  # noqa: E402
from network import Network  # noqa: E402
from programs import Processes  # noqa: E402
from sync_jobs import COMMON, MTU, RATE, WORKERS, start  # noqa: E402
from sync_losses import all_lines, check, commits_of_first, wait_for  # noqa: E402

FAST = "1gbit"
LIMIT_S = 900
COUNTED_S = 20  # in which samples are counted, in each state
EPOCH = 2560  # samples


def measure_following():
    """Have the cables become slow, and fast again, and return what the job did: a dict."""
    net = Network(WORKERS, FAST, MTU)
    try:
        with Processes(LIMIT_S) as running:
            options = dict(COMMON, system="shoal", sync="auto", samples=EPOCH, noisy=True)
            start(net, running, "shoal", options, ["--auto"])
            wait_for(running, lambda: len(commits_of_first(running)) > 60)
            rates = {"fast cables, ssgd": samples_per_second(running)}
            changes = []
            for rate, wanted in ((RATE, "sync=local"), (FAST, "sync=ssgd")):
                for h in net.hosts:
                    net.set_rate(h, rate)
                at = time.time()
                before = len(ended_changes(running, wanted))
                kept = wait_for(running, lambda: ended_changes(running, wanted)[before:])[0]
                changes.append(dict(kept, seconds=time.time() - at))
                rates[f"cables of {rate}, {wanted}"] = samples_per_second(running)
            epoch = commits_of_first(running)[-1]["epoch"]
            wait_for(running, lambda: commits_of_first(running)[-1]["epoch"] > epoch)
            wrong, epochs = check(all_lines(running), EPOCH)
    finally:
        net.close()
    return dict(
        part="sync auto", rates=rates, changes=changes, wrong=wrong, epochs=epochs,
        load=os.getloadavg()[0],
    )


def samples_per_second(running):
    """The samples a second that are committed from now on."""
    count = len(commits_of_first(running))
    first = wait_for(running, lambda: commits_of_first(running)[count:])[0]
    until = first["at"] + COUNTED_S
    last = wait_for(running, lambda: [x for x in commits_of_first(running) if x["at"] > until])[0]
    return (last["samples"] - first["samples"]) / (last["at"] - first["at"])


def ended_changes(running, wanted):
    """The changes by policy sync that have ended with what is wanted, in their order."""
    found = {}  # by number: each host has them
    for event in lines(running, "events.jsonl"):
        change = event.get("change", {})
        if change.get("policy") == "sync" and change["phase"] == "kept":
            if wanted in change["to"].split(","):
                found[change["number"]] = change
    return [found[number] for number in sorted(found)]


def text(results):
    """The lines on what the job did; none where that was not measured."""
    out = []
    for r in (r for r in results if r["part"] == "sync auto"):
        out += ["", "| cables and way | samples/s |", "|---|---|"]
        out += [f"| {what} | {rate:.0f} |" for what, rate in r["rates"].items()]
        out += [""]
        for c in r["changes"]:
            predicted = c.get("predicted", {}).get("mid", 0)
            out.append(
                f"{c['from']} -> {c['to']} was kept after {c['seconds']:.0f} s, from"
                f" {c.get('rate', 0):.0f} samples/s, because {c.get('because')}; predicted"
                f" {predicted:.2f}, measured {c.get('measured', 0):.2f} ({c.get('why')})."
            )
        wrong = "; ".join(r["wrong"]) or "each sample counted once in each"
        out.append(f"\nOf {r['epochs']} epochs, {wrong}.")
    return out
