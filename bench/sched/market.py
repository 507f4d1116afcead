#!/usr/bin/env python3
"""Two jobs on two hosts share a cable of 200 Mbit/s: as TCP divides it, and by shoal limit with the
rates of a market. Hosts are network namespaces of this machine, so it needs root.

usage: make build && sudo .venv/bin/python bench/sched/market.py [--turns N] [--steps N]
"""

from __future__ import annotations

import argparse
import json
import os
import pathlib
import statistics
import subprocess
import sys

HERE = pathlib.Path(__file__).resolve().parent
BENCH = HERE.parent
sys.path += [str(BENCH / name) for name in ("hosts", "peers", "loop")]

import jobs  # noqa: E402
from network import Network, bits  # noqa: E402
from programs import Processes, json_lines  # noqa: E402

RATE, MTU = "200mbit", 1500
# A packet has so many bytes of data, and so many on the cable.
PAYLOAD = 1448 / 1514
LINK = bits(RATE) / 8 * PAYLOAD  # bytes of data a second
COMPUTES = 0.01  # seconds of a step
SIZES = {"small": 1 << 20, "large": 1 << 22}  # elements of four bytes that a step averages
# With two hosts each sends the gradient once a step.
BYTES = {name: 4 * elements for name, elements in SIZES.items()}
WEIGHTS = [(1, 1), (4, 1), (1, 4)]  # of the small job and the large one
SKIPPED = 3  # steps after a limit that are not measured, as one has begun before it
LIMIT = 1800  # seconds of all


def rates(weights):
    """The bytes a second of each job with which Σ weight · step is least: in proportion to the root
    of weight times bytes, as price.Sell has them on one link.
    """
    roots = [(w * b) ** 0.5 for w, b in zip(weights, BYTES.values())]
    return [LINK * root / sum(roots) for root in roots]


class Job:
    """A job with a worker on each of two hosts, which `running` ends."""

    def __init__(self, net, running, name, port):
        """Start it, and wait for its first steps."""
        self.name, self.home = name, running.folder / name
        self.home.mkdir()
        self.env = {"XDG_RUNTIME_DIR": str(self.home), "XDG_STATE_HOME": str(self.home)}
        options = dict(
            jobs.DEFAULTS, kind="still", a=COMPUTES, b=0, elements=SIZES[name], epochs=1 << 20
        )
        token, address = self.home / "token", f"{net.address[0]}:{port}"
        place = ["--slots", "1", "--token-file", str(token), "--log-dir", str(self.home)]
        worker = [sys.executable, str(jobs.WORKER), json.dumps(options)]
        command = [str(jobs.SHOAL), "run", "--name", name, "--listen", address, "-n", "2"]
        # the route of one job is not to be judged by what the other one sends
        command += ["--fixed-routes", *place, "--", *worker]
        running.start(net.command(0, *command), **self.env)
        while not token.exists() and running.running():
            pass
        agent = [str(jobs.SHOAL), "agent", "--join", address, *place]
        running.start(net.command(1, *agent), **self.env)
        while not self.steps() and running.running():
            pass

    def steps(self):
        """The seconds of the steps so far."""
        found = self.home.glob("*/metrics.jsonl")
        return [m["metrics"]["seconds"] for path in found for m in json_lines(path.read_text())]

    def limit(self, rate):
        """Hold each of its hosts to so many bytes a second; None = to none."""
        text = "none" if rate is None else f"{rate:.0f}B/s"
        subprocess.run(
            [str(jobs.SHOAL), "limit", self.name, text],
            env={**os.environ, **self.env},
            check=True,
            stdout=subprocess.DEVNULL,
        )


def medians(running, both, steps, limits):
    """The median step of both jobs with limits, of at least so many steps of each."""
    begun = []
    for job, rate in zip(both, limits):
        job.limit(rate)
    for job in both:
        begun.append(len(job.steps()) + SKIPPED)
    while any(len(job.steps()) < at + steps for job, at in zip(both, begun)):
        if not running.running():
            raise SystemExit("a job has ended")
    return [statistics.median(job.steps()[at:]) for job, at in zip(both, begun)]


def measure(turns, steps):
    """Steps as TCP divides the cable, and by the market, in turns; a dict each."""
    found = []
    net = Network(2, RATE, MTU)
    try:
        with Processes(LIMIT) as running:
            both = [Job(net, running, name, 7077 + i) for i, name in enumerate(SIZES)]
            for turn in range(turns):
                fair = medians(running, both, steps, [None, None])
                for weights in WEIGHTS:
                    limits = rates(weights)
                    took = medians(running, both, steps, limits)
                    predicted = [COMPUTES + b / x for b, x in zip(BYTES.values(), limits)]
                    found.append(
                        dict(turn=turn, weights=weights, predicted=predicted, took=took, fair=fair)
                    )
    finally:
        net.close()
    return found


def weighed(weights, seconds):
    """Σ weight · step."""
    return sum(w * s for w, s in zip(weights, seconds))


def text(results):
    """The table."""
    out = [
        "| weights | predicted s | measured s | off by | weighted sum, of that without limits |",
        "|---|---|---|---|---|",
    ]
    for weights in WEIGHTS:
        some = [r for r in results if r["weights"] == weights]
        took = [statistics.median(r["took"][i] for r in some) for i in range(2)]
        predicted = some[0]["predicted"]
        off = [t / p - 1 for t, p in zip(took, predicted)]
        sums = sorted(weighed(weights, r["took"]) / weighed(weights, r["fair"]) for r in some)
        out.append(
            f"| {weights[0]}:{weights[1]} | {predicted[0]:.3f}, {predicted[1]:.3f} |"
            f" {took[0]:.3f}, {took[1]:.3f} | {off[0]:+.1%}, {off[1]:+.1%} |"
            f" {statistics.median(sums):.3f} ({sums[0]:.3f} to {sums[-1]:.3f}) |"
        )
    fair = [statistics.median(r["fair"][i] for r in results) for i in range(2)]
    return "\n".join(out) + f"\n\nWithout limits: {fair[0]:.3f}, {fair[1]:.3f} s."


def main() -> None:
    """Measure, and print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--turns", type=int, default=5, help="how often all is measured")
    parser.add_argument("--steps", type=int, default=8, help="steps of each job, at least")
    parser.add_argument("--json", help="also keep all results in this file")
    args = parser.parse_args()
    if os.geteuid() != 0:
        raise SystemExit("hosts are network namespaces, which need root")
    load = os.getloadavg()[0]
    results = measure(args.turns, args.steps)
    print(text(results) + f"\nLoad of the machine before: {load:.1f}.")
    if args.json:
        pathlib.Path(args.json).write_text(json.dumps(results, indent=1) + "\n")


if __name__ == "__main__":
    main()
