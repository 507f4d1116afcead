"""What planned stages bring beside even ones, and shoal.torch.chain beside
torch.distributed.pipelining on the same stages: a part of run.py.

Both train the GPT of chain_worker.py in the same two processes, by turns.
"""

from __future__ import annotations

import json
import pathlib
import re
import statistics
import tempfile
from typing import Any, Dict, List

import chains

WORKER = pathlib.Path(__file__).with_name("peers_worker.py")
CLUSTER = {
    "shoal": "cluster/1",
    "kinds": [{"name": "cpu", "memory": 4 << 30}],
    "hosts": [{"name": "here", "kind": "cpu", "places": 2}],
    "links": [{"inside": True, "latency": 5e-5, "rate": 4e9}],
}


def measure(args: Any) -> List[Dict[str, Any]]:
    """A row for each runtime and split, and one for what shoal plan chooses among them."""
    rounds, steps = (1, 3) if args.quick else (6, 4)
    with tempfile.TemporaryDirectory() as folder:
        model, cluster = pathlib.Path(folder, "model.json"), pathlib.Path(folder, "cluster.json")
        chains.profile(model)
        cluster.write_text(json.dumps(CLUSTER))
        words = [chains.SHOAL, "run", "-n", 2, "--", chains.PYTHON, WORKER, folder, rounds, steps]
        chains.run(*words)
        took = json.loads(pathlib.Path(folder, "times.json").read_text())
        rows = []
        for name, seconds in took.items():
            runtime, split = name.split()
            plan = [chains.SHOAL, "plan", model, "--cluster", cluster, "--batch", 32, "--mesh"]
            said = chains.run(*plan, f"dp=1,pp=2({split};micro=4;ahead=2/1)")
            predicted = re.search(r"predicted +(\S+) (\S+) a step", said)
            scale = {"ms": 1e-3, "s": 1}[predicted[2]]
            rows.append(
                {
                    "runtime": runtime,
                    "split": split,
                    "predicted": float(predicted[1]) * scale,
                    "measured": statistics.median(seconds),
                    "quartiles": statistics.quantiles(seconds, n=4)[::2],
                }
            )
        return rows


def text(results: List[Dict[str, Any]]) -> str:
    """The table, and what it comes to."""
    found = {(r["runtime"], r["split"]): r for r in results}
    splits = [r["split"] for r in results if r["runtime"] == "chain"]
    lines = ["| stages | predicted | chain | pipelining | chain is faster by |"]
    lines.append("|---|---|---|---|---|")
    for split in splits:
        ours, theirs = found["chain", split], found["pipelining", split]
        cells = [
            f"{1e3 * r['measured']:.0f} ms"
            f" ({1e3 * r['quartiles'][0]:.0f} to {1e3 * r['quartiles'][1]:.0f})"
            for r in (ours, theirs)
        ]
        gain = theirs["measured"] / ours["measured"] - 1
        lines.append(
            f"| {split} | {1e3 * ours['predicted']:.0f} ms | {cells[0]} | {cells[1]} |"
            f" {100 * gain:+.1f} % |"
        )
    planned = min(splits, key=lambda split: found["chain", split]["predicted"])
    ratio = found["chain", splits[0]]["measured"] / found["chain", planned]["measured"]
    return "\n".join(lines) + (
        f"\n\nThe stages that shoal plan chooses of these, {planned}, are {ratio:.2f} times as fast"
        " as even ones."
    )
