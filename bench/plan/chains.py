"""How true predictions for chains of PyTorch layers are, and what planned stages bring: a part of
run.py.

A GPT with a heavy head is measured by shoal.torch.profile, and trained by two workers with a thread
each, which go from deployment to deployment by shoal reshape, several times round. What shoal plan
says of each is compared with the median step.
"""

from __future__ import annotations

import contextlib
import json
import os
import pathlib
import re
import statistics
import subprocess
import tempfile
from typing import Any, Dict, Iterator, List

ROOT = pathlib.Path(__file__).resolve().parents[2]
SHOAL = ROOT / "bin/shoal"
WORKER = pathlib.Path(__file__).with_name("chain_worker.py")
PYTHON = os.environ.get("BENCH_PYTHON", ROOT / ".venv-torch2/bin/python")
ENV = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT / "python")}
EVEN = "dp=1,pp=2(5/5;micro=4;ahead=2/1)"
MESHES = [
    EVEN,
    "dp=2,pp=1(10;micro=2)",
    "dp=2,pp=1(10;micro=4)",
    "dp=2,pp=1(10;micro=8)",
    "dp=1,pp=2(8/2;micro=4;ahead=2/1)",
    "dp=1,pp=2(8/2;micro=4;ahead=4/2)",
    "dp=1,pp=2(8/2;micro=2;ahead=4/1)",
    "dp=1,pp=2(8/2;micro=8;ahead=3/1)",
    "dp=1,pp=2(8/2;micro=8;ahead=1/1)",
    "dp=1,pp=2(7/3;micro=4;ahead=3/1)",
    "dp=1,pp=2(6/4;micro=2;ahead=2/1)",
    "dp=1,pp=2(9/1;micro=4;ahead=4/1)",
    "dp=1,pp=2(5/5;micro=8;ahead=1/1)",
    "dp=1,pp=2(7/3;micro=8;ahead=2/1)",
]


def measure(args: Any) -> List[Dict[str, Any]]:
    """A row for each deployment: what was predicted, and what steps took. In each round the layers
    are measured, then a job goes through all deployments, so a machine that becomes slower does so
    for both.
    """
    meshes = MESHES[:4] if args.quick else MESHES
    rounds, steps = (1, 4) if args.quick else (2, 6)
    took: Dict[str, List[float]] = {mesh: [] for mesh in meshes}
    said: Dict[str, List[Dict[str, float]]] = {mesh: [] for mesh in meshes}
    for _ in range(rounds):
        with tempfile.TemporaryDirectory() as folder:
            model = pathlib.Path(folder, "model.json")
            profile(model)
            with training(meshes[0]) as job:
                for mesh in meshes:
                    job.go_to(mesh)
                    took[mesh] += job.steps(mesh, steps)
                for mesh in meshes:
                    said[mesh].append(predict(job.name, model, mesh))
    return [row(mesh, said[mesh], took[mesh]) for mesh in meshes]


def profile(path: pathlib.Path) -> None:
    """Measure the layers, in as many processes at once as workers will compute."""
    words = ["--micro", "2,4,8", "--threads", "1", "--rounds", "15", "-o", path]
    command = [PYTHON, "-m", "shoal.torch.profile", f"{WORKER}:chain", "--sample"]
    run(SHOAL, "run", "-n", 2, "--", *command, f"{WORKER}:fetch", *words)


def predict(job: str, model: pathlib.Path, mesh: str) -> Dict[str, float]:
    """What shoal plan says of a deployment on the hosts and links of a job."""
    plan = model.with_name("plan.json")
    run(SHOAL, "plan", model, "--job", job, "--mesh", mesh, "-o", plan)
    return json.loads(plan.read_text())["predicted"]


def row(mesh: str, said: List[Dict[str, float]], took: List[float]) -> Dict[str, Any]:
    """What was said of a deployment in the mean of the rounds, beside what steps took."""
    seconds = statistics.median(took)
    predicted, low, high = (
        statistics.fmean(s[key] for s in said) for key in ("seconds", "low", "high")
    )
    return {
        "mesh": mesh,
        "predicted": predicted,
        "low": low,
        "high": high,
        "measured": seconds,
        "quartiles": statistics.quantiles(took, n=4)[::2],
        "off": predicted / seconds - 1,
        "inside": low <= seconds <= high,
    }


def run(*words: Any, **variables: str) -> str:
    """Run a command with more environment variables, which must succeed; return what it printed."""
    listed = list(map(str, words))
    env = {**ENV, **variables}
    done = subprocess.run(
        listed, env=env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )
    if done.returncode:
        raise RuntimeError(f"{' '.join(listed)}\n{done.stdout}")
    return done.stdout


class Job:
    """A job of two workers that trains. One thread uses it."""

    def __init__(self, process: "subprocess.Popen[str]") -> None:
        """Of a launcher whose output nobody has read; waits for the first step."""
        self._lines = iter(process.stdout or ())
        self.name, self._now = "", ""
        for line in self._lines:
            found = re.search(r"job ([^,]+), 2 workers", line)
            self.name = found[1] if found else self.name
            if "STEP 0 " in line:
                self._now = re.findall(r" on (\S+) took", line)[0]
                return
        raise RuntimeError("the job ended before its first step")

    def go_to(self, mesh: str) -> None:
        """Take the job to another mesh."""
        if mesh != self._now:
            run(SHOAL, "reshape", self.name, "--mesh", mesh)
            self._now = mesh

    def steps(self, mesh: str, count: int) -> List[float]:
        """The seconds of so many steps on a mesh, after the first two there."""
        took: List[float] = []
        for line in self._lines:
            found = re.search(r"STEP \d+ on (\S+) took (\S+)", line)
            if found and found[1] == mesh:
                took.append(float(found[2]))
            if len(took) == count + 2:
                return took[2:]
        raise RuntimeError("the job ended")


@contextlib.contextmanager
def training(mesh: str) -> Iterator[Job]:
    """A block with a job that trains."""
    words = [str(SHOAL), "run", "-n", "2", "--", str(PYTHON), str(WORKER), mesh]
    process = subprocess.Popen(
        words, env=ENV, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )
    try:
        yield Job(process)
    finally:
        process.terminate()
        process.communicate()


def text(results: List[Dict[str, Any]]) -> str:
    """The table, and what it comes to."""
    lines = ["| mesh | predicted | measured | off |", "|---|---|---|---|"]
    for r in sorted(results, key=lambda r: r["measured"]):
        mark = "" if r["inside"] else ", outside"
        lines.append(
            f"| `{r['mesh']}` | {1e3 * r['predicted']:.0f} ms ({1e3 * r['low']:.0f} to"
            f" {1e3 * r['high']:.0f}) | {1e3 * r['measured']:.0f} ms"
            f" ({1e3 * r['quartiles'][0]:.0f} to {1e3 * r['quartiles'][1]:.0f}) |"
            f" {100 * r['off']:+.1f} %{mark} |"
        )
    off = [abs(r["off"]) for r in results]
    inside = sum(r["inside"] for r in results)
    pipelines = [r for r in results if "pp=2" in r["mesh"]]
    planned = min(pipelines, key=lambda r: r["predicted"])
    even = next(r for r in results if r["mesh"] == EVEN)
    return "\n".join(lines) + (
        f"\n\n{len(results)} deployments: off by {100 * statistics.median(off):.1f} % in the"
        f" median, {100 * max(off):.1f} % at most; {inside} inside what is stated. Of the"
        f" pipelines the one that is predicted to be the fastest, `{planned['mesh']}`, is"
        f" {even['measured'] / planned['measured']:.2f} times as fast as even stages."
    )
