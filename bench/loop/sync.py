"""How long the same samples take by several ways to synchronise: four paced workers, on hosts whose
cables carry 50 Mbit/s, beside torchft and hivemind, and on one host beside a worker that is three
times as slow; and what policy `sync` does as cables change. Hosts are network namespaces of this
machine, so those need root.

docs/experiments/sync-times.md has what came of it. Peers are measured where `scripts/setup torchft`
and `scripts/setup hivemind` have installed them.
"""

from __future__ import annotations

import json
import os
import statistics
import sys
import time

import jobs
import sync_auto
import sync_losses
from interference import lines
from network import Network
from programs import PRIORITY, Processes
from sync_jobs import COMMON, LIMIT, MTU, RATE, ROOT, ROUND, WORKERS, commits, start, worker

LINKS = [
    ("shoal", "ssgd"), ("shoal", f"diloco:every={ROUND}"),
    ("torchft", "ssgd"), ("torchft", f"diloco:every={ROUND}"),
    ("hivemind", f"local:every={ROUND}"),  # its groups take seconds to form, longer than a step
]
SLOW = dict(COMMON, slow=3, slow_worker=2, width=64)
# With pair work is divided by speed without --auto too.
STRAGGLER = [("ssgd", []), (f"pair:every={ROUND}", []), ("ssgd", ["--auto"])]
WARM, ROUNDS = 1, 3  # rounds before samples are counted, and while they are
ENOUGH_S = 40  # after which what was counted is enough, of what takes longer than all others
SETTLE_S = 60  # for policies to divide the work


def measure(args):
    """The speed of each way to synchronise, in turns, and what losses cost: a dict each."""
    if os.geteuid() == 0:
        os.nice(PRIORITY)
    found = []

    def add(**row):
        """Keep a row, and show it."""
        found.append(row)
        print(json.dumps(row), file=sys.stderr, flush=True)

    links = [x for x in LINKS if x[0] == "shoal" or (ROOT / "build/tools" / x[0]).exists()]
    for turn in range(args.turns):
        for system, sync in links if os.geteuid() == 0 else []:
            add(**speed_over_links(system, sync), turn=turn)
        for sync, flags in STRAGGLER:
            add(**speed_beside_slow_worker(sync, flags), turn=turn)
    for system, sync in links if os.geteuid() == 0 else []:
        add(**sync_losses.measure_kill(system, sync))
    if os.geteuid() == 0:
        add(**sync_losses.measure_disturbances())
        add(**sync_auto.measure_following())
    return found


def speed_over_links(system, sync):
    """Train on hosts with slow cables, and return how fast that is."""
    net = Network(WORKERS, RATE, MTU)
    try:
        with Processes(LIMIT) as running:
            start(net, running, system, dict(COMMON, system=system, sync=sync))
            row = measure_speed(running, net.sent_bytes)
    finally:
        net.close()
    return dict(row, part="sync", place="links", system=system, sync=sync)


def speed_beside_slow_worker(sync, flags):
    """Train on one host beside a worker that is three times as slow, and return how fast that is,
    where work is divided by speed once that is done.
    """
    divides = flags or sync.startswith("pair")
    with Processes(LIMIT) as running:
        home = str(running.folder)
        env = {"XDG_RUNTIME_DIR": home, "XDG_STATE_HOME": home}
        words = [str(jobs.SHOAL), "run", "-n", str(WORKERS), "--prefork", "torch"]
        words += ["--log-dir", home, *flags, "--"]
        running.start(words + worker(running, dict(SLOW, system="shoal", sync=sync)), **env)
        until = time.monotonic() + SETTLE_S
        while divides and running.running() and time.monotonic() < until:
            if kept_shares(running):
                break
        row = measure_speed(running, lambda: [0])
        shares = kept_shares(running)
    named = sync + (" --auto" if flags else "")
    return dict(row, part="sync", place="straggler", system="shoal", sync=named, shares=shares)


def kept_shares(running):
    """The change of the shares that policies have made and kept; None = none yet."""
    for event in lines(running, "events.jsonl"):
        change = event.get("change", {})
        if change.get("policy") == "shares" and change.get("phase") == "kept":
            return change
    return None


def measure_speed(running, sent_bytes):
    """Wait until samples of some rounds are committed, and return how fast that was: samples and
    commits a second, and bytes that a host has sent for a sample.
    """
    warm, wanted = (x * ROUND * COMMON["batch"] for x in (WARM, ROUNDS))
    begun = time.time()
    first = last = None
    while last is None and running.running():
        told = [x for x in commits(running) if x["at"] > begun and x["size"] == WORKERS]
        if first is None and told and told[-1]["samples"] - told[0]["samples"] >= warm:
            first, before = told[-1], sent_bytes()
        elif first is None and len(told) > 1 and told[-1]["at"] - told[0]["at"] > ENOUGH_S:
            first, before = told[-1], sent_bytes()
        if first and told[-1] is not first and told[-1]["at"] > first["at"] and (
            told[-1]["samples"] - first["samples"] >= wanted
            or told[-1]["at"] - first["at"] > ENOUGH_S
        ):
            last, after = told[-1], sent_bytes()
    seconds, samples = last["at"] - first["at"], last["samples"] - first["samples"]
    count = sum(first["at"] < x["at"] <= last["at"] for x in told)
    return dict(
        seconds=seconds, samples=samples, samples_s=samples / seconds, commits_s=count / seconds,
        bytes=max(b - a for a, b in zip(before, after)) / samples, load=os.getloadavg()[0],
    )


def text(results):
    """The tables of the speeds and of the losses; "" where none were measured."""
    out = []
    for place, what in (("links", "50 Mbit/s"), ("straggler", "a worker is 3 times as slow")):
        some = [r for r in results if r["part"] == "sync" and r["place"] == place]
        if some:
            out += [f"Four workers, {what}:", "", *table(some), ""]
    return "\n".join(out + sync_losses.text(results) + sync_auto.text(results))


def table(rows):
    """The lines of a table of speeds, beside that of synchronous SGD on shoal."""
    base = {r["turn"]: r["samples_s"] for r in rows if (r["system"], r["sync"]) == LINKS[0]}
    out = [
        "| system | `sync` | samples/s | of ssgd's | time of ssgd's | commits/s | kB a sample |",
        "|---|---|---|---|---|---|---|",
    ]
    for system, sync in dict.fromkeys((r["system"], r["sync"]) for r in rows):
        mine = [r for r in rows if (r["system"], r["sync"]) == (system, sync)]
        ratios = [r["samples_s"] / base[r["turn"]] for r in mine]
        samples, count, sent = (
            statistics.median(r[key] for r in mine) for key in ("samples_s", "commits_s", "bytes")
        )
        out.append(
            f"| {system} | `{sync}` | {samples:.0f} | {statistics.median(ratios):.2f}"
            f" ({min(ratios):.2f} to {max(ratios):.2f}) | {1 / statistics.median(ratios):.2f} |"
            f" {count:.2f} | {sent / 1e3:.1f} |"
        )
    return out
