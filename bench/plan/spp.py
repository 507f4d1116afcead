"""What plans with own numbers of replicas bring, beside meshes and what others would choose: all
on the public profiles of PipeDream, by the one timeline.
"""

from __future__ import annotations

import json
import os
import pathlib
import statistics
import subprocess
import textwrap

ROOT = pathlib.Path(__file__).resolve().parents[2]
WHO = {  # as decide/planner/compared_test.go calls them
    "any": "`--space any`",
    "mesh": "`shoal plan`",
    "PipeDream": "PipeDream's split",
    "least maximum": "least maximum",
    "even": "even",
    "data parallel": "data parallel",
}


def measure(args):
    """The cases, each a dict with the seconds of a step by who plans; none where SHOAL_DATA does
    not name the folder with the profiles.
    """
    if not os.environ.get("SHOAL_DATA"):
        print("spp: skipped, since SHOAL_DATA does not name the folder with public profiles")
        return []
    # A quick run has no fewer cases: they take two minutes.
    done = subprocess.run(
        ["go", "test", "-count=1", "-timeout=0", "-run=^TestCompared$", "-v", "./decide/planner"],
        cwd=ROOT,
        env=dict(os.environ, PLAN_COMPARE="1"),
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    )
    lines = done.stdout.splitlines()
    return [json.loads(line[9:]) for line in lines if line.startswith("compared {")]


def text(results):
    """The table: how far above the bound each is, in the mean of the models and at most."""
    rows = ["| links | N | M | " + " | ".join(WHO.values()) + " |", "|---" * (len(WHO) + 3) + "|"]
    cells = {(x["network"], x["micro"] // x["devices"], x["devices"]) for x in results}
    for network, times, devices in sorted(cells):
        some = [
            x
            for x in results
            if (x["network"], x["devices"], x["micro"]) == (network, devices, times * devices)
        ]
        row = [network, str(devices), str(times * devices)]
        for who in WHO:
            above = [100 * (x["seconds"][who] / x["bound"] - 1) for x in some]
            row.append(f"{statistics.mean(above):.1f} / {max(above):.0f}")
        rows.append("| " + " | ".join(row) + " |")
    return "\n".join([*rows, "", *(textwrap.fill(line, 100) for line in claims(results))])


def claims(results):
    """What the cases say of the claims of SPP, in sentences."""
    if not results:
        return []

    def faster(who):
        """By how many percent `--space any` is faster, in the mean and at most."""
        list = [100 * (x["seconds"][who] / x["seconds"]["any"] - 1) for x in results]
        return f"{statistics.mean(list):.0f} % in the mean and {max(list):.0f} % at most"

    others = []
    for x in results:
        best = min(s for who, s in x["seconds"].items() if who not in ("any", "mesh"))
        others.append(100 * (best / x["seconds"]["any"] - 1))
    own = [x for x in results if x["guarantee"]]
    part = [x["guarantee"] / x["seconds"]["any"] for x in own]
    kept = sum(x["seconds"]["any"] <= x["guarantee"] * (1 + 1e-9) for x in own)
    return [
        f"`--space any` is faster than PipeDream's split by {faster('PipeDream')}, than data"
        f" parallelism by {faster('data parallel')}, and than the best of the four others by"
        f" {statistics.mean(others):.0f} % and {max(others):.0f} %. Than the mesh that `shoal plan`"
        f" chooses it is faster by {faster('mesh')}.",
        "",
        f"{len(own)} of {len(results)} plans are SPP's own, and {kept} of them keep its guarantee,"
        f" which is {statistics.mean(part):.2f} times the step in the mean and"
        f" {max(part):.2f} times at most.",
    ]
