"""How long a job that has lost a host, or got one, waits for a first plan, and how good that is."""

from __future__ import annotations

import os
import pathlib
import re
import subprocess
import textwrap

ROOT = pathlib.Path(__file__).resolve().parents[2]
TIMES = 100  # of each case


def measure(args):
    """The cases, each a dict; none where SHOAL_DATA does not name the folder with the profiles."""
    if not os.environ.get("SHOAL_DATA"):
        print("replan: skipped, since SHOAL_DATA does not name the folder with public profiles")
        return []
    # A quick run makes no fewer plans: what takes long is to plan at all.
    done = subprocess.run(
        ["go", "test", "-timeout=0", "-run=^$", "-bench=^BenchmarkReplan$"]
        + [f"-benchtime={TIMES}x", "./decide/planner"],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    )
    return parse(done.stdout)


def parse(printed):
    """The cases in what go test has printed."""
    results = []
    for line in printed.splitlines():
        name, *words = line.split()
        if not name.startswith("BenchmarkReplan/"):
            continue
        values = {unit: float(value) for value, unit in zip(words[1::2], words[2::2])}
        model, devices, change = name.split("/")[1:]
        results.append(
            {
                "model": model,
                "devices": devices.replace("=", " ").replace(",", ", "),
                "change": re.sub(r"-\d+$", "", change),  # how many processors go test may use
                "milliseconds": values["median-ms"],
                "processor": values["processor-ms"],
                "first": values["first-s"],
                "then": values["then-s"],
            }
        )
    return results


def text(results):
    """The table, and the worst of it."""
    if not results:
        return ""
    rows = [
        "| model | planned for | then | first plan after | of a processor | its step |"
        " found from it |",
        "|---|---|---|---|---|---|---|",
    ]
    for x in results:
        rows.append(
            f"| {x['model']} | {x['devices']} | {x['change'].replace('-', ' −').replace('+', ' +')}"
            f" | {x['milliseconds']:.1f} ms | {x['processor']:.1f} ms | {x['first']:.4g} s"
            f" | {x['then']:.4g} s |"
        )
    most = max(x["milliseconds"] for x in results)
    processor = max(x["processor"] for x in results)
    slower = max(x["first"] / x["then"] for x in results)
    return "\n".join(
        [
            *rows,
            "",
            textwrap.fill(
                f"Medians of {TIMES}: {most:.1f} ms at most, and {processor:.1f} ms of a processor."
                f" A step of the first plan takes up to {100 * (slower - 1):.0f}\u00a0% longer"
                " than one of the plan that is found from it.",
                100,
            ).replace("\u00a0", " "),
        ]
    )
