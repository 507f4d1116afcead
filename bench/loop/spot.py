#!/usr/bin/env python3
"""Compares policy `sync` with each way to synchronise that stays, on hosts that come and go.

usage: python3 bench/loop/spot.py [--seeds N] [--scenario FILE] [--shoal PATH]

Plays a scenario in virtual time with the policy, and with each other way and no policy. What local
steps bring is drawn from the seed, and no policy knows it. The same command prints the same table.
"""

from __future__ import annotations

import argparse
import json
import pathlib
import statistics
import subprocess
import tempfile
from typing import Dict, List

ROOT = pathlib.Path(__file__).resolve().parents[2]
WAYS = ("ssgd", "local/4", "local/16", "local/64", "hybrid/16", "pair/16")


def play(shoal: str, text: str, seed: int) -> Dict[str, float]:
    """What came of a scenario with a seed: progress a second, and changes."""
    with tempfile.NamedTemporaryFile("w", suffix=".txt") as file:
        file.write(text)
        file.flush()
        command = [shoal, "sim", file.name, "--seed", str(seed), "--json"]
        ran = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    if not ran.stdout:
        raise SystemExit(ran.stderr)
    result = json.loads(ran.stdout)
    phases = [change["phase"] for change in result.get("changes", ())]
    return {
        "goodput": result["progress"] / result["seconds"],
        "entered": phases.count("entered"),
        "reverted": phases.count("reverted"),
    }


def main() -> None:
    """Play the scenario with each seed, and print a table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seeds", type=int, default=8)
    parser.add_argument("--scenario", default=str(ROOT / "bench/loop/spot.txt"))
    parser.add_argument("--shoal", default=str(ROOT / "bin/shoal"))
    args = parser.parse_args()
    text = pathlib.Path(args.scenario).read_text()
    stays = text.replace("policy sync\n", "")
    print("| seed | " + " | ".join(WAYS) + " | `sync` | of the best | of the mean | changes |")
    print("|---" * (len(WAYS) + 5) + "|")
    of_best: List[float] = []
    of_mean: List[float] = []
    for seed in range(1, args.seeds + 1):
        fixed = [
            play(args.shoal, stays.replace("sync auto", f"sync {way}"), seed)["goodput"]
            for way in WAYS
        ]
        ours = play(args.shoal, text, seed)
        of_best.append(ours["goodput"] / max(fixed))
        of_mean.append(ours["goodput"] / statistics.mean(fixed))
        cells = [f"{x:.0f}" for x in (*fixed, ours["goodput"])]
        changes = f"{ours['entered']}, {ours['reverted']} back"
        print(
            f"| {seed} | " + " | ".join(cells) + f" | {of_best[-1]:.3f} | {of_mean[-1]:.3f} |"
            f" {changes} |",
            flush=True,
        )
    print(
        f"mean: {statistics.mean(of_best):.3f} of the best that stays, least {min(of_best):.3f};"
        f" {statistics.mean(of_mean):.3f} of the mean, least {min(of_mean):.3f}"
    )


if __name__ == "__main__":
    main()
