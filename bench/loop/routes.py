"""How true predictions of routes are: four hosts average gradients in one job, a cable at random
becomes slow and fast again, and then another one, and the job changes its routes. Hosts are as in
interference.py: it needs root.
"""

from __future__ import annotations

import os
import random

import interference
import jobs
import predictions
from interference import HOSTS, MTU, RATE
from network import Network, bits
from programs import Processes

LEAST = 1e7  # bits per second of the slowest cable
# Steps without a change until a cable changes again, and at most. A route is looked for again 16
# steps after a change, which the change of a cable must not be mistaken for.
QUIET, LONG = 20, 80
LIMIT = 1800  # seconds of the job at most


def measure(args):
    """The changes of routes of a job, each a dict; none without root."""
    if os.geteuid() != 0:
        return []
    draws, wanted = random.Random(args.seed), args.changes // 4
    net = Network(HOSTS, RATE, MTU)
    try:
        with Processes(LIMIT) as running:
            interference.start(net, running, str(jobs.SHOAL), [])
            slow = None  # no cable is slow
            while len(wait(running)) < wanted:
                if slow is None:
                    slow = draws.randrange(HOSTS)
                    rate = LEAST * (bits(RATE) / LEAST) ** draws.random()
                    net.set_rate(slow, f"{rate:.0f}bit")
                else:
                    net.set_rate(slow, RATE)
                    slow = None
            return [
                dict(part="routes", a=interference.OPTIONS["a"], b=0, slow=1, to=c["to"],
                     predicted=c.get("predicted"), measured=c.get("measured", 0),
                     phase=c["phase"], because=c["because"], why=c.get("why", ""))
                for c in wait(running).values()
            ]
    finally:
        net.close()


def wait(running):
    """Wait until a job has left its routes alone for some steps, or for as long as it may take to
    find one; returns the changes of its ledger, by number.
    """
    begun = steps(running)
    while running.running():
        now, last, found = steps(running), begun, {}
        for event in interference.lines(running, "events.jsonl"):
            if event["what"] == "route":
                found[event["change"]["number"]] = event["change"]
                last = max(last, event["step"])
        if predictions.is_settled(found) and now - last >= QUIET or now - begun >= LONG:
            return found
    raise SystemExit("the job has ended")


def steps(running):
    """How many steps rank 0 has told of."""
    return len(interference.lines(running, "metrics.jsonl"))


def text(results):
    """The table of the predictions, with those of other changes in one more row if there are some;
    or why there is none; "" where none were measured.
    """
    if os.geteuid() != 0:
        return "Routes are not measured: hosts are network namespaces, which need root."
    rows = [r for r in results if r["part"] == "routes"]
    if not rows:
        return ""
    others = [r for r in results if r["part"] == "predictions"]
    kinds = [("routes", 0.01, 0)] + ([("all", None, None)] if others else [])
    return predictions.table(rows + others, kinds)
