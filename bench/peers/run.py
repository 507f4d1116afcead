#!/usr/bin/env python3
"""Measures shoal's float32 all-reduce side by side with other libraries and with the limit of the machine's memory.

usage: bench/peers/install.sh && make build && bench/peers/run.py [--write]

The programs run one after the other, and that a number of times (A B C A B C …), so that a slow minute of the machine
hits all of them; ratios are taken within a round. Every program follows one method, see docs/benchmarks.md.
"""
from __future__ import annotations

import argparse
import json
import os
import pathlib
import re
import signal
import subprocess
import sys
import time

import machine
import report

ROOT = pathlib.Path(__file__).resolve().parents[2]
HERE = ROOT / "bench" / "peers"
BUILD = ROOT / "build" / "peers"
PYTHON = "/usr/bin/python3"  # the one that Debian's python3-torch and python3-numpy belong to
UNITS = {"": 1, "B": 1, "KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30}
QUIET = 0.92  # share of idle processor time, before a program starts


def mpi(name: str, n: int, sizes: list[str]) -> list[str]:
    flags = []
    if name == "openmpi":
        flags = ["--bind-to", "core"] if n <= (os.cpu_count() or 1) else ["--oversubscribe", "--bind-to", "none"]
        flags += ["--allow-run-as-root"] * (os.geteuid() == 0)
    return [f"mpirun.{name}", *flags, "-np", str(n), str(BUILD / f"allreduce_{name}"), *sizes]


def shoal(*flags: str):
    def command(n: int, sizes: list[str]) -> list[str]:
        return [str(ROOT / "bin" / "shoal"), "bench", "allreduce", "-n", str(n), "--bytes", ",".join(sizes), "--json", *flags]

    return command


COMMANDS = {
    "limit": lambda n, sizes: [str(BUILD / "memory_limit"), str(n), *sizes],
    "shoal-go": shoal(),
    "openmpi": lambda n, sizes: mpi("openmpi", n, sizes),
    "shoal-python": shoal(f"--python={PYTHON}"),
    "gloo": lambda n, sizes: [PYTHON, str(HERE / "allreduce_gloo.py"), str(n), *sizes],
    "mpich": lambda n, sizes: mpi("mpich", n, sizes),
}


def compile_programs(names: list[str]) -> None:
    BUILD.mkdir(parents=True, exist_ok=True)
    sources = {"limit": ("gcc", "memory_limit.c", "memory_limit")}
    for name in ("openmpi", "mpich"):
        sources[name] = (f"mpicc.{name}", "allreduce_mpi.c", f"allreduce_{name}")
    for name, (compiler, source, program) in sources.items():
        if name in names:
            subprocess.run([compiler, "-O3", "-march=native", "-Wall", "-o", BUILD / program, HERE / source], check=True)


def run_program(name: str, n: int, sizes: list[int], limit_s: float) -> list[dict]:
    """Runs one program and returns its lines; raises RuntimeError with its last words when it fails."""
    command = COMMANDS[name](n, [str(s) for s in sizes])
    env = dict(os.environ, PYTHONPATH=str(ROOT / "python"))
    process = subprocess.Popen(
        command, env=env, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE, start_new_session=True
    )
    try:
        out, err = process.communicate(timeout=limit_s)
    except subprocess.TimeoutExpired:
        raise RuntimeError(f"{name}: no result after {limit_s:.0f} s: {' '.join(command)}") from None
    finally:
        try:
            os.killpg(process.pid, signal.SIGKILL)  # whatever it left behind
        except ProcessLookupError:
            pass
    lines = [json.loads(line) for line in out.splitlines() if line.startswith("{")]
    wrong = [line["bytes"] for line in lines if not line["verified"]]
    if process.returncode or wrong or [line["bytes"] for line in lines] != sizes:
        why = f"wrong results at {wrong} bytes" if wrong else f"exit {process.returncode}"
        raise RuntimeError(f"{name}: {why}: {' '.join(command)}\n{out[-500:]}{err[-2000:]}")
    return lines


def measure(args: argparse.Namespace) -> list[dict]:
    results = []
    for n in args.n:
        for run in range(args.runs):
            for name in args.only:
                quiet = machine.wait_until_idle(QUIET, args.wait)
                print(f"n={n} run {run + 1}/{args.runs} {name}{'' if quiet else ' (busy machine)'}", file=sys.stderr)
                for line in run_program(name, n, args.bytes, args.limit):
                    results.append(dict(line, run=run, name=name, quiet=quiet))
    return results


def parse_size(text: str) -> int:
    match = re.fullmatch(r"(\d+)([A-Za-z]*)", text)
    if not match or match[2] not in UNITS or int(match[1]) * UNITS[match[2]] % 4 or not int(match[1]):
        raise argparse.ArgumentTypeError(f"{text!r} is no size: write a multiple of 4 bytes such as 4096, 4KiB or 16MiB")
    return int(match[1]) * UNITS[match[2]]


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    sizes = "4KiB,64KiB,1MiB,16MiB,64MiB,256MiB"
    parser.add_argument("-n", type=lambda s: [int(x) for x in s.split(",")], default=[2, 4], help="processes (2,4)")
    parser.add_argument("--bytes", type=lambda s: [parse_size(x) for x in s.split(",")],
                        default=[parse_size(x) for x in sizes.split(",")], help=f"sizes of the tensor ({sizes})")
    parser.add_argument("--runs", type=int, default=5, help="rounds over all programs (5)")
    parser.add_argument("--only", type=lambda s: s.split(","), default=list(COMMANDS),
                        help=f"programs ({','.join(COMMANDS)})")
    parser.add_argument("--wait", type=float, default=60, help="seconds to wait for an idle machine before a program (60)")
    parser.add_argument("--limit", type=float, default=600, help="seconds that one program may run (600)")
    parser.add_argument("--from", dest="source", type=pathlib.Path, help="read results from this file, measure nothing")
    parser.add_argument("--write", action="store_true", help="write docs/benchmarks.md and its plot")
    args = parser.parse_args()
    unknown = [name for name in args.only if name not in COMMANDS]
    if unknown:
        parser.error(f"--only: unknown program {unknown[0]}; known are {', '.join(COMMANDS)}")
    return args


def main() -> int:
    args = parse_arguments()
    if args.source:
        document = json.loads(args.source.read_text())
    else:
        started = time.strftime("%Y-%m-%d", time.gmtime())
        try:
            compile_programs(args.only)
            results = measure(args)
        except FileNotFoundError as e:
            print(f"run.py: {e.filename} is missing; run bench/peers/install.sh and make build first", file=sys.stderr)
            return 1
        except (RuntimeError, subprocess.CalledProcessError) as e:
            print(f"run.py: {e}", file=sys.stderr)
            return 1
        document = {"date": started, "machine": machine.describe(ROOT), "results": results}
        BUILD.mkdir(parents=True, exist_ok=True)
        (BUILD / "results.json").write_text(json.dumps(document))
    print(report.text(document))
    if args.write:
        report.write(document, ROOT / "docs")
    return 0


if __name__ == "__main__":
    sys.exit(main())
