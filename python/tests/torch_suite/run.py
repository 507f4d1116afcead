#!/usr/bin/env python3
"""Runs torch's in-package distributed suite against a backend and prints `N passed, N failed, N
skipped`.

    python3 run.py                       # shoal, 3 ranks, every test; needs bin/shoal
    python3 run.py --backend gloo        # the yardstick: what torch's own CPU backend passes
    python3 run.py -k all_gather -n 2    # tests whose name contains all_gather, 2 ranks

Three ranks reach the sub-group tests, which need more than two. The exit code is 0 when nothing
failed and nothing was skipped that is not in skipped-VERSION.txt of this release of torch (name,
tab, torch's own reason: CUDA, NCCL or more ranks); `--write` writes that list from a full run.
Every test that gloo passes must pass.
"""

import argparse
import json
import os
import pathlib
import subprocess
import sys
import tempfile

HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parents[2]
ENOUGH = 20  # failures after which the run is given up
DEADLINE = 90  # seconds for one test; the slowest waits 5 s for a time-out on purpose


def launch(backend: str, size: int, tests: list, temp: pathlib.Path) -> list:
    """Run `tests` in one set of ranks, and wait for these; return the outcomes up to the first
    failure, one dict a test. `temp` is an empty folder for the files of this set.
    """
    (temp / "tests").write_text("\n".join(tests))
    for name in ("barrier", "test_dir"):
        (temp / name).mkdir()
    env = dict(
        os.environ,
        BACKEND=backend,
        WORLD_SIZE=str(size),
        TEMP_DIR=str(temp),
        INIT_METHOD=f"file://{temp}/shared_init_file",
        TESTS=str(temp / "tests"),
        DEADLINE=str(DEADLINE),
        PYTHONPATH=f"{ROOT / 'python'}:{HERE}",
    )
    worker = [sys.executable, str(HERE / "rank.py")]
    with open(temp / "output", "w") as output:
        if backend == "shoal":
            subprocess.run(
                [ROOT / "bin/shoal", "run", "-n", str(size), "--", *worker],
                env=env,
                stdout=output,
                stderr=output,
            )
        else:
            ranks = [
                subprocess.Popen(worker, env=dict(env, RANK=str(r)), stdout=output, stderr=output)
                for r in range(size)
            ]
            for rank in ranks:
                rank.wait()
    return merge([read(temp / f"results.{r}") for r in range(size)], tests, temp / "output")


def read(path: pathlib.Path) -> list:
    """The outcomes that a rank has written to this file; none where there is no file."""
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def merge(by_rank: list, tests: list, output: pathlib.Path) -> list:
    """One outcome a test, up to the first failure: failed if any rank failed or gave none, else
    skipped if any rank skipped it, else the first rank's. `by_rank` has the outcomes of each rank,
    `output` what the ranks printed.
    """
    merged = []
    for i, name in enumerate(tests):
        outcomes = [rank[i] for rank in by_rank if i < len(rank)]
        failed = [o for o in outcomes if o["outcome"] == "failed"]
        if failed or len(outcomes) < len(by_rank):
            reason = (
                failed[0]["reason"] if failed else "a rank ended:\n" + output.read_text()[-4000:]
            )
            return merged + [{"test": name, "outcome": "failed", "reason": reason, "seconds": 0}]
        # Ranks outside a test's group may pass while the others skip; a skip is what torch's own
        # runner would report.
        merged.append(next((o for o in outcomes if o["outcome"] == "skipped"), outcomes[0]))
    return merged


def select(pattern: str) -> tuple:
    """(torch's version, names of the tests that contain `pattern`), from a process of its own:
    importing the suite fixes a lot.
    """
    code = "import suite, torch; print(torch.__version__, *suite.names(suite.load('gloo')[1]))"
    env = dict(os.environ, BACKEND="gloo", WORLD_SIZE="3", TEMP_DIR="", PYTHONPATH=str(HERE))
    ran = subprocess.run(
        [sys.executable, "-c", code], env=env, stdout=subprocess.PIPE, text=True, check=True
    )
    version, *found = ran.stdout.split()
    return ".".join(version.split(".")[:2]), [name for name in found if pattern in name]


def run_all(backend: str, size: int, tests: list) -> list:
    """Run every test, starting a new set of ranks after each failure, and print the failures as
    they come; return the outcomes, up to the ENOUGHth failure.
    """
    outcomes = []
    while len(outcomes) < len(tests):
        with tempfile.TemporaryDirectory() as temp:
            outcomes += launch(backend, size, tests[len(outcomes) :], pathlib.Path(temp))
        if outcomes[-1]["outcome"] == "failed":
            print(f"FAILED {outcomes[-1]['test']}\n{outcomes[-1]['reason']}", flush=True)
            if sum(o["outcome"] == "failed" for o in outcomes) == ENOUGH:
                print(
                    f"{ENOUGH} failures: giving up with {len(tests) - len(outcomes)} tests not run",
                    flush=True,
                )
                break
    return outcomes


def main() -> int:
    """Run the suite as the command line says, print the counts, and return the exit code."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--backend", default="shoal")
    parser.add_argument("-n", type=int, default=3, help="ranks")
    parser.add_argument("-k", default="", help="only tests whose name contains this")
    parser.add_argument("--write", action="store_true", help="write skipped-VERSION.txt")
    parser.add_argument("--json", help="write every outcome to this file, one object a line")
    args = parser.parse_args()

    version, tests = select(args.k)
    outcomes = run_all(args.backend, args.n, tests)
    if args.json:
        pathlib.Path(args.json).write_text("".join(json.dumps(o) + "\n" for o in outcomes))
    skipped = {
        o["test"]: " ".join(o["reason"].split()) for o in outcomes if o["outcome"] == "skipped"
    }
    path = HERE / f"skipped-{version}.txt"
    if args.write:
        path.write_text("".join(f"{name}\t{reason}\n" for name, reason in sorted(skipped.items())))
    # Other sizes skip other tests, gloo skips more; a release without a list skips what it likes.
    listed = args.n == 3 and args.backend == "shoal" and path.exists()
    surprises = (
        sorted(set(skipped) - {line.split("\t")[0] for line in path.read_text().splitlines()})
        if listed
        else []
    )
    for name in surprises:
        print(f"NEWLY SKIPPED {name}: {skipped[name]}")
    count = {
        kind: sum(o["outcome"] == kind for o in outcomes)
        for kind in ("passed", "failed", "skipped")
    }
    print(f"{count['passed']} passed, {count['failed']} failed, {count['skipped']} skipped")
    return 1 if count["failed"] or surprises or not count["passed"] else 0


if __name__ == "__main__":
    sys.exit(main())
