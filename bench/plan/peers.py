"""What planned stages bring beside even ones, and shoal.torch.chain beside
torch.distributed.pipelining on the same stages: a part of run.py.

Both train the GPT of chain_worker.py in the same two processes, by turns; each split has processes
of its own, as in a job.
"""

from __future__ import annotations

import collections
import itertools
import json
import pathlib
import re
import statistics
import tempfile
from typing import Any, Dict, List, Tuple

import chains

WORKER = pathlib.Path(__file__).with_name("peers_worker.py")
SPLITS = ["5/5", "7/3", "8/2"]
CLUSTER = {
    "shoal": "cluster/1",
    "kinds": [{"name": "cpu", "memory": 4 << 30}],
    "hosts": [{"name": "here", "kind": "cpu", "places": 2}],
    "links": [{"inside": True, "latency": 5e-5, "rate": 4e9}],
}


def measure(args: Any) -> List[Dict[str, Any]]:
    """A row for each runtime and split."""
    starts, rounds, steps = (1, 1, 3) if args.quick else (5, 4, 3)
    # By runtime and split, the seconds of each start.
    took: Dict[Tuple[str, str], List[List[float]]] = collections.defaultdict(list)
    with tempfile.TemporaryDirectory() as folder:
        model, cluster = pathlib.Path(folder, "model.json"), pathlib.Path(folder, "cluster.json")
        chains.profile(model)
        cluster.write_text(json.dumps(CLUSTER))
        for start, split in itertools.product(range(starts), SPLITS):
            at = pathlib.Path(folder, str(start), split)
            at.mkdir(parents=True)
            worker = [chains.PYTHON, WORKER, at, split, rounds, steps]
            chains.run(chains.SHOAL, "run", "-n", 2, "--", *worker)
            for runtime, seconds in json.loads((at / "times.json").read_text()).items():
                took[runtime, split].append(seconds)
        rows = []
        for (runtime, split), by_start in took.items():
            plan = [chains.SHOAL, "plan", model, "--cluster", cluster, "--batch", 32, "--mesh"]
            said = chains.run(*plan, f"dp=1,pp=2({split};micro=4;ahead=2/1)")
            predicted = re.search(r"predicted +(\S+) (\S+) a step", said)
            scale = {"ms": 1e-3, "s": 1}[predicted[2]]
            seconds = [x for one in by_start for x in one]
            rows.append(
                {
                    "runtime": runtime,
                    "split": split,
                    "predicted": float(predicted[1]) * scale,
                    "measured": statistics.median(seconds),
                    "quartiles": statistics.quantiles(seconds, n=4)[::2],
                    "medians": [statistics.median(one) for one in by_start],
                }
            )
        return rows


def text(results: List[Dict[str, Any]]) -> str:
    """The table, and what it comes to."""
    found = {(r["runtime"], r["split"]): r for r in results}
    lines = ["| stages | predicted | chain | pipelining | chain is faster by |"]
    lines.append("|---|---|---|---|---|")
    for split in SPLITS:
        ours, theirs = found["chain", split], found["pipelining", split]
        cells = [
            f"{1e3 * r['measured']:.0f} ms"
            f" ({1e3 * r['quartiles'][0]:.0f} to {1e3 * r['quartiles'][1]:.0f})"
            for r in (ours, theirs)
        ]
        gains = sorted(b / a - 1 for a, b in zip(ours["medians"], theirs["medians"]))
        lines.append(
            f"| {split} | {1e3 * ours['predicted']:.0f} ms | {cells[0]} | {cells[1]} |"
            f" {100 * statistics.median(gains):+.1f} % ({100 * gains[0]:+.1f} to"
            f" {100 * gains[-1]:+.1f}) |"
        )
    planned = min(SPLITS, key=lambda split: found["chain", split]["predicted"])
    ratio = found["chain", SPLITS[0]]["measured"] / found["chain", planned]["measured"]
    return "\n".join(lines) + (
        f"\n\nMedians of {len(results[0]['medians'])} starts of the two processes; in brackets the"
        " quartiles of all steps, and the least and the most of all starts. The stages that shoal"
        f" plan chooses of these, {planned}, are {ratio:.2f} times as fast as even ones."
    )
