#!/usr/bin/env python3
"""Measures shoal's float32 all-reduce side by side with other libraries and with the limit of the
machine's memory.

usage: bench/peers/install.sh && make build && bench/peers/run.py [--write]

Every program follows one method, see docs/benchmarks.md.
"""

from __future__ import annotations

import argparse
import functools
import json
import os
import pathlib
import subprocess
import sys

import kungfu
import report
import turns

HERE = pathlib.Path(__file__).resolve().parent
# OpenMPI's TCP, no shared memory
LOOPBACK = ["--mca", "pml", "ob1", "--mca", "btl", "tcp,self", "--mca", "btl_tcp_if_include", "lo"]


def mpi_command(name: str, n: int, sizes: list[str], *more: str) -> list[str]:
    """Returns the command of an MPI library, openmpi or mpich, with n processes and sizes in bytes;
    more are further flags of mpirun.
    """
    flags = []
    if name == "openmpi":
        flags = (
            ["--bind-to", "core"]
            if n <= (os.cpu_count() or 1)
            else ["--oversubscribe", "--bind-to", "none"]
        )
        flags += ["--allow-run-as-root"] * (os.geteuid() == 0)
    return [
        f"mpirun.{name}",
        *flags,
        *more,
        "-np",
        str(n),
        str(turns.BUILD / f"allreduce_{name}"),
        *sizes,
    ]


def shoal_command(*flags: str):
    """Returns a function that returns the command of shoal with these flags."""

    def command(n: int, sizes: list[str]) -> list[str]:
        """Returns the command for n processes and sizes in bytes."""
        return [
            turns.SHOAL,
            "bench",
            "allreduce",
            "-n",
            str(n),
            "--bytes",
            ",".join(sizes),
            "--json",
            *flags,
        ]

    return command


COMMANDS = {
    "limit": lambda n, sizes: [str(turns.BUILD / "memory_limit"), str(n), *sizes],
    "limit-foreign": lambda n, sizes: [
        str(turns.BUILD / "memory_limit"),
        "-foreign",
        str(n),
        *sizes,
    ],
    "shoal-go": shoal_command(),
    "shoal-shared": shoal_command("--shared"),
    "openmpi": lambda n, sizes: mpi_command("openmpi", n, sizes),
    "shoal-python": shoal_command(f"--python={turns.PYTHON}"),
    "shoal-foreign": shoal_command(f"--python={turns.PYTHON}", "--foreign"),
    "gloo": lambda n, sizes: [turns.PYTHON, str(HERE / "allreduce_gloo.py"), str(n), *sizes],
    "openmpi-tcp": lambda n, sizes: mpi_command("openmpi", n, sizes, *LOOPBACK),
    "mpich": lambda n, sizes: mpi_command("mpich", n, sizes),
}
# What must be compiled for them: compiler, source, program, and further flags.
SOURCES = {
    "limit": ("gcc", "memory_limit.c", "memory_limit"),
    "limit-foreign": ("gcc", "memory_limit.c", "memory_limit"),
    "openmpi": ("mpicc.openmpi", "allreduce_mpi.c", "allreduce_openmpi"),
    "openmpi-tcp": ("mpicc.openmpi", "allreduce_mpi.c", "allreduce_openmpi"),
    "mpich": ("mpicc.mpich", "allreduce_mpi.c", "allreduce_mpich"),
}


def compile_programs(sources: list[tuple[str, ...]]) -> None:
    """Compiles the measuring programs, each once, into turns.BUILD; sources are in the form of
    SOURCES. Raises CalledProcessError if one fails.
    """
    turns.BUILD.mkdir(parents=True, exist_ok=True)
    for compiler, source, program, *flags in dict.fromkeys(sources):
        subprocess.run(
            [
                compiler,
                "-O3",
                "-march=native",
                "-Wall",
                "-o",
                turns.BUILD / program,
                HERE / source,
                *flags,
            ],
            check=True,
        )


def run_program(name: str, command: list[str], sizes: list[int], limit_s: float) -> list[dict]:
    """Runs one program and returns its lines, one a size in bytes; raises Failure when it fails,
    takes longer than limit_s, or one of its results is wrong.
    """
    output = turns.run_and_read(command, limit_s)
    # KungFu's launcher writes before a line who has printed it.
    lines = [json.loads(line[line.index('{"') :]) for line in output.splitlines() if '{"' in line]
    wrong = [line["bytes"] for line in lines if not line["verified"]]
    if wrong or [line["bytes"] for line in lines] != sizes:
        what = f"wrong results at {wrong} bytes" if wrong else "not all results"
        raise turns.Failure(f"{name}: {what}\n{output[-2000:]}")
    return lines


def measure(args: argparse.Namespace) -> list[dict]:
    """Measures every program in turn for every number of processes; returns the results, one a
    round, program, number and size.
    """
    commands = {name: COMMANDS[name] for name in args.only}
    sources = [SOURCES[name] for name in args.only if name in SOURCES]
    if args.kungfu:
        commands["kungfu"] = functools.partial(kungfu.command, args.kungfu)
        sources.append(kungfu.compiler_words(args.kungfu))
    compile_programs(sources)
    results = []
    for n in args.n:
        for name, about in turns.in_turn(args, list(commands), f"n={n} "):
            command = commands[name](n, [str(size) for size in args.bytes])
            results += [
                dict(line, **about) for line in run_program(name, command, args.bytes, args.limit)
            ]
    return results


def main() -> int:
    """Measures as the command line says; returns the exit status."""
    parser = turns.parser(__doc__, runs=5, wait=60, limit=600, page="benchmarks.md and its plot")
    sizes = "4KiB,64KiB,1MiB,16MiB,64MiB,256MiB"
    parser.add_argument("-n", type=turns.list_of(int), default=[2, 4], help="processes (2,4)")
    parser.add_argument(
        "--bytes",
        type=turns.list_of(turns.parse_size),
        default=sizes,
        help=f"sizes of the tensor ({sizes})",
    )
    parser.add_argument(
        "--only",
        type=turns.list_of(turns.one_of(list(COMMANDS))),
        default=list(COMMANDS),
        help=f"programs ({','.join(COMMANDS)})",
    )
    parser.add_argument(
        "--kungfu",
        type=kungfu.parse_folder,
        metavar="DIR",
        help=(
            f"measure KungFu too, which was built or installed in this folder: {kungfu.NEEDS}. Its"
            " workers listen on ports from 10000 on, on all addresses of the machine"
        ),
    )
    return turns.main(
        parser.parse_args(),
        "results",
        measure,
        report.text,
        report.write,
        needs="bench/peers/install.sh and make build",
    )


if __name__ == "__main__":
    sys.exit(main())
