#!/usr/bin/env python3
"""How true the timeline is: deployments whose layers sleep, off the processor as on a GPU, and
whose messages are real, with what was predicted of a step beside what it takes.

Thirty deployments are drawn at random, and others are what `shoal plan` makes of random models.

usage: bench/plan/replay.py MODEL DEPLOYMENT replays one plan of devices that are alike, and prints
both times.
"""

from __future__ import annotations

import json
import math
import pathlib
import random
import re
import shutil
import statistics
import subprocess
import sys
import tempfile

HERE = pathlib.Path(__file__).resolve().parent
SHOAL = HERE.parents[1] / "bin/shoal"
WORKER = HERE / "replay_worker.py"


def measure(args):
    """The deployments, each a dict with its mesh and seconds predicted and measured."""
    draws = random.Random(args.seed)
    drawn = {2: 1, 4: 1} if args.quick else {2: 4, 3: 3, 4: 5, 5: 3, 6: 5, 7: 4, 8: 6}
    found = []
    for workers, count in drawn.items():
        cases = [draw_case(draws, workers) for _ in range(count)]
        cases += [dict(draw_case(draws, workers), mesh="") for _ in range(1 if args.quick else 2)]
        found += replay(workers, dict(cases=cases, steps=3 if args.quick else 7))
        for case in found[-len(cases) :]:
            error = case["measured"] / case["predicted"] - 1
            print(f"{case['mesh']}: {case['predicted']:.3f} s, {error:+.1%}", flush=True)
    return found


def draw_case(draws, workers):
    """A model of layers of at least 20 ms, a batch of single samples, and a mesh for so many
    workers.
    """
    stages = draws.choice([n for n in range(1, workers + 1) if workers % n == 0 and n > 1])
    replicas, micro = workers // stages, draws.randint(2, 8)
    layers = [draw_layer(draws) for _ in range(stages + draws.randint(0, 4))]
    cuts = sorted(draws.sample(range(1, len(layers)), stages - 1))
    shares = [b - a for a, b in zip([0, *cuts], [*cuts, len(layers)])]
    ahead = sorted((draws.randint(1, micro) for _ in range(stages)), reverse=True)
    pp = f"pp={stages}({'/'.join(map(str, shares))};micro=1;ahead={'/'.join(map(str, ahead))})"
    axes = [pp, f"dp={replicas}"]
    draws.shuffle(axes)
    return dict(layers=layers, batch=replicas * micro, mesh=",".join(axes))


def draw_layer(draws):
    """What a layer takes, sends and has, before it is measured."""
    forward = draws.uniform(0.02, 0.04)
    return dict(
        forward=forward,
        backward=forward * draws.uniform(1, 2),
        update=draws.uniform(0.001, 0.005),
        out=draws.choice([1 << 14, 1 << 17, 1 << 20]),
        params=draws.choice([1 << 16, 1 << 20, 4 << 20]),
    )


def replay(workers, plan):
    """Run cases on so many workers, and return what rank 0 has written of them."""
    folder = pathlib.Path(tempfile.mkdtemp(prefix="shoal-bench-plan-"))
    try:
        (folder / "cases.json").write_text(json.dumps(plan))
        command = [SHOAL, "run", "-n", workers, "--", sys.executable, WORKER, folder, SHOAL]
        done = subprocess.run(
            list(map(str, command)), stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
        )
        if done.returncode != 0:
            sys.exit(f"a replay on {workers} workers failed:\n{done.stdout}")
        lines = (folder / "results.json").read_text().splitlines()
        return [dict(json.loads(line), part="replay", workers=workers) for line in lines]
    finally:
        shutil.rmtree(folder)


def text(results):
    """The table of errors, of all and by kind."""
    lines = [
        "| deployments | of them | error, mean | most | predicted too short, mean |",
        "|---|---|---|---|---|",
    ]
    for name, some in {
        "drawn at random": [r for r in results if not r["planned"]],
        "planned for random models": [r for r in results if r["planned"]],
        "all": results,
    }.items():
        errors = [r["measured"] / r["predicted"] - 1 for r in some]
        if errors:
            sizes = [abs(e) for e in errors]
            lines.append(
                f"| {name} | {len(some)} | {100 * statistics.mean(sizes):.1f} % |"
                f" {100 * max(sizes):.1f} % | {100 * statistics.mean(errors):+.1f} % |"
            )
    links = [r["link"] for r in results]
    lines += [
        "",
        f"Steps take from {1e3 * min(r['measured'] for r in results):.0f} to"
        f" {1e3 * max(r['measured'] for r in results):.0f} ms; messages take"
        f" {1e6 * statistics.median(link['latency'] for link in links):.0f} µs and"
        f" {statistics.median(link['rate'] for link in links) / 1e9:.2f} GB/s (medians).",
    ]
    return "\n".join(lines)


def case_of(model, deployment):
    """The case of a plan, and its number of workers: a micro-batch counts as one sample."""
    mesh = deployment["mesh"]
    micro = int(re.search(r"micro=(\d+)", mesh)[1])
    points = [p for p in model["points"] if p["micro"] == micro and p.get("tp", 1) == 1]
    degrees = dict(re.findall(r"([a-z]+)=(\d+)(?=[(,]|$)", mesh))
    if set(degrees) - {"dp", "pp"} or not points or "on=" in mesh:
        sys.exit(f"{mesh}: a replay has replicas and stages, and layers that were measured so")
    layers = [
        dict(points[0]["layers"][layer["id"]], out=micro * layer["out"], params=layer["params"])
        for layer in model["layers"]
    ]
    case = dict(layers=layers, batch=deployment["batch"] // micro,
                mesh=re.sub(r"micro=\d+", "micro=1", mesh))
    return case, math.prod(map(int, degrees.values()))


def main():
    """Replay the plan of the command line."""
    if len(sys.argv) != 3:
        sys.exit(__doc__)
    model, deployment = (json.loads(pathlib.Path(name).read_text()) for name in sys.argv[1:])
    case, workers = case_of(model, deployment)
    found = replay(workers, dict(cases=[case], steps=7))[0]
    print(
        f"predicted {1e3 * found['predicted']:.0f} ms, measured {1e3 * found['measured']:.0f} ms"
        f" (median of 7 steps): {found['measured'] / found['predicted'] - 1:+.1%}"
    )


if __name__ == "__main__":
    main()
