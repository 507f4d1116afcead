#!/usr/bin/env python3
"""Measures the float32 all-reduce of real agents on hosts with slow cables, side by side with other libraries.

usage: bench/peers/install.sh && make build && sudo bench/hosts/run.py [--write]

Hosts are network namespaces of this machine on a switch; each cable carries --rate both ways. The programs run one after the other,
and that a number of times (A B A B …), so that a slow minute of the machine hits all of them; ratios are taken within a round.
"""
from __future__ import annotations

import argparse
import json
import os
import pathlib
import signal
import subprocess
import sys
import time

HERE = pathlib.Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent / "peers"))

import machine  # noqa: E402
import programs  # noqa: E402
import tables  # noqa: E402
from network import Network  # noqa: E402

PRIORITY = -10  # of all programs alike: what else this machine does disturbs less
UNITS = {"B": 1, "KiB": 1 << 10, "MiB": 1 << 20}
RATES = {"mbit": 1e6, "gbit": 1e9}


def parse_size(text: str) -> int:
    for unit, factor in sorted(UNITS.items(), reverse=True):
        if text.endswith(unit) and text[:-len(unit)].isdigit():
            return int(text[:-len(unit)]) * factor
    raise argparse.ArgumentTypeError(f"{text!r} is no size: write a number and one of {', '.join(UNITS)}, such as 16MiB")


def parse_shape(text: str) -> tuple[int, int]:
    hosts, _, workers = text.partition("x")
    if hosts.isdigit() and (workers or "1").isdigit() and int(hosts) > 1:
        return int(hosts), int(workers or 1)
    raise argparse.ArgumentTypeError(f"{text!r} is no shape: write the number of hosts, or hosts x workers on each, such as 3x2")


def parse_rate(text: str) -> str:
    if text[:-4].isdigit() and text[-4:] in RATES:
        return text
    raise argparse.ArgumentTypeError(f"{text!r} is no rate: write a number and one of {', '.join(RATES)}")


def bits(rate: str) -> float:
    return int(rate[:-4]) * RATES[rate[-4:]]


def parse_arguments() -> argparse.Namespace:
    def many(parse):
        return lambda text: [parse(word) for word in text.split(",")]

    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    sizes = "4KiB,64KiB,1MiB,16MiB,64MiB"
    parser.add_argument("--hosts", type=many(parse_shape), default=[(2, 1), (3, 1), (4, 1), (3, 2)],
                        help="numbers of hosts, or HOSTSxWORKERS (2,3,4,3x2)")
    parser.add_argument("--bytes", type=many(parse_size), default=many(parse_size)(sizes), help=f"sizes of the tensor ({sizes})")
    parser.add_argument("--rate", type=many(parse_rate), default=["1gbit"], help="what a cable carries (1gbit)")
    parser.add_argument("--mtu", type=int, default=1500, help="bytes a packet (1500)")
    parser.add_argument("--runs", type=int, default=3, help="rounds over all programs (3)")
    parser.add_argument("--only", type=many(str), default=list(programs.PROGRAMS), help=f"programs ({','.join(programs.PROGRAMS)})")
    parser.add_argument("--wait", type=float, default=20, help="seconds to wait for an idle machine before a program (20)")
    parser.add_argument("--limit", type=float, default=300, help="seconds that one program may run (300)")
    parser.add_argument("--from", dest="source", type=pathlib.Path, help="read results from this file, measure nothing")
    parser.add_argument("--write", action="store_true", help="write docs/benchmarks-hosts.md")
    args = parser.parse_args()
    unknown = [name for name in args.only if name not in programs.PROGRAMS]
    if unknown:
        parser.error(f"--only: unknown program {unknown[0]}; known are {', '.join(programs.PROGRAMS)}")
    return args


def measure(args: argparse.Namespace) -> list[dict]:
    results = []
    for rate in args.rate:
        for hosts, workers in args.hosts:
            for run in range(args.runs):
                for name in args.only:
                    quiet = machine.wait_until_idle(0.9, args.wait)
                    print(f"{hosts} hosts, {workers} workers each, {rate}, run {run + 1}/{args.runs}, {name}", file=sys.stderr)
                    net = Network(hosts, rate, args.mtu)
                    try:
                        lines = programs.PROGRAMS[name](net, workers, args.bytes, args.limit)
                    finally:
                        net.close()
                    if [line["bytes"] for line in lines if line["verified"]] != args.bytes:
                        raise programs.Failure(f"{name}: wrong or missing results: {lines}")
                    setting = {"hosts": hosts, "workers": workers, "rate": rate, "bits_per_s": bits(rate), "mtu": args.mtu}
                    results += [dict(line, **setting, run=run, name=name, quiet=quiet) for line in lines]
    return results


def main() -> int:
    args = parse_arguments()
    if args.source:
        document = json.loads(args.source.read_text())
    else:
        started = time.strftime("%Y-%m-%d", time.gmtime())
        try:
            os.nice(PRIORITY)
            signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # as an exception: nothing is left behind
            if "openmpi" in args.only:
                programs.compile_openmpi()
            results = measure(args)
        except (programs.Failure, OSError, subprocess.CalledProcessError) as e:
            print(f"run.py: {e}\nIt needs root, bench/peers/install.sh and make build.", file=sys.stderr)
            return 1
        document = {"date": started, "machine": machine.describe(programs.ROOT), "results": results}
        programs.BUILD.mkdir(parents=True, exist_ok=True)
        (programs.BUILD / "hosts.json").write_text(json.dumps(document))
    print(tables.text(document))
    if args.write:
        (programs.ROOT / "docs" / "benchmarks-hosts.md").write_text(tables.page(document))
    return 0


if __name__ == "__main__":
    sys.exit(main())
