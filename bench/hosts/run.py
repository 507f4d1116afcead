#!/usr/bin/env python3
"""Measures the float32 all-reduce of real agents on hosts with slow cables, side by side with other
libraries.

usage: bench/peers/install.sh && make build && sudo bench/hosts/run.py [--write]

Hosts are network namespaces of this machine on a switch; each cable carries --rate both ways.
"""

from __future__ import annotations

import argparse
import os
import pathlib
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "peers"))

import programs  # noqa: E402
import tables  # noqa: E402
import turns  # noqa: E402
from network import Network, bits, parse_rate  # noqa: E402


def parse_shape(text: str) -> tuple[int, int]:
    """The type of an argument: a number of hosts, and of workers on each."""
    hosts, _, workers = text.partition("x")
    if hosts.isdigit() and (workers or "1").isdigit() and int(hosts) > 1:
        return int(hosts), int(workers or 1)
    raise argparse.ArgumentTypeError(
        f"{text!r} is no shape: write the number of hosts, or hosts x workers on each, such as 3x2"
    )


def measure(args: argparse.Namespace) -> list[dict]:
    """Measures every program in turn for every rate and shape; returns the results, one a round,
    program, setting and size. Raises Failure where a result is wrong or missing.
    """
    os.nice(programs.PRIORITY)
    if "openmpi" in args.only:
        programs.compile_openmpi()
    results = []
    for rate in args.rate:
        for hosts, workers in args.hosts:
            setting = {
                "hosts": hosts,
                "workers": workers,
                "rate": rate,
                "bits_per_s": bits(rate),
                "mtu": args.mtu,
            }
            for name, about in turns.in_turn(
                args, args.only, f"{hosts} hosts, {workers} workers each, {rate}, "
            ):
                net = Network(hosts, rate, args.mtu)
                try:
                    lines = programs.PROGRAMS[name](net, workers, args.bytes, args.limit)
                finally:
                    net.close()
                if [line["bytes"] for line in lines if line["verified"]] != args.bytes:
                    raise turns.Failure(f"{name}: wrong or missing results: {lines}")
                results += [dict(line, **setting, **about) for line in lines]
    return results


def main() -> int:
    """Measures as the command line says; returns the exit status."""
    parser = turns.parser(__doc__, runs=3, wait=20, limit=300, page="benchmarks-hosts.md")
    sizes = "4KiB,64KiB,1MiB,16MiB,64MiB"
    parser.add_argument(
        "--hosts",
        type=turns.list_of(parse_shape),
        default="2,3,4,3x2",
        help="numbers of hosts, or HOSTSxWORKERS (2,3,4,3x2)",
    )
    parser.add_argument(
        "--bytes",
        type=turns.list_of(turns.parse_size),
        default=sizes,
        help=f"sizes of the tensor ({sizes})",
    )
    parser.add_argument(
        "--rate",
        type=turns.list_of(parse_rate),
        default="1gbit",
        help="what a cable carries (1gbit)",
    )
    parser.add_argument("--mtu", type=int, default=1500, help="bytes a packet (1500)")
    parser.add_argument(
        "--only",
        type=turns.list_of(turns.one_of(list(programs.PROGRAMS))),
        default=list(programs.PROGRAMS),
        help=f"programs ({','.join(programs.PROGRAMS)})",
    )
    return turns.main(
        parser.parse_args(),
        "hosts",
        measure,
        tables.text,
        tables.write,
        needs="root, bench/peers/install.sh and make build",
    )


if __name__ == "__main__":
    sys.exit(main())
