#!/usr/bin/env python3
"""Measures steps of training with compressed gradients on hosts that are joined by slow cables; needs root.

usage: make build && bench/hosts/compress.py [--write]

One worker a host trains a GPT of 0.8 million parameters (bench/peers/step_worker.py). What a host sends is what the kernel has put on its cable,
with the headers of packets.
"""
from __future__ import annotations

import argparse
import json
import pathlib
import signal
import statistics
import sys
import time

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "bench" / "peers"))

import machine
from network import Network
from programs import PORT, PYTHON, SHOAL, Failure, Processes
from report import spread, table

WORKER = str(ROOT / "bench" / "peers" / "step_worker.py")
FORMS = ["none", "bf16", "int8", "topk", "powersgd"]
TITLES = {"none": "none", "bf16": '`"bf16"`', "int8": '`"int8"`', "topk": "`TopK(0.01)`", "powersgd": "`PowerSGD(4)`"}
MODEL, STEPS, WARM_UP = "gpt-1M", 13, 3
MIB = 1 << 20


def run(net: Network, compress: str, limit_s: float) -> dict:
    """Trains once; returns what rank 0 measured, and the bytes that the busiest host sent in a step."""
    with Processes(limit_s) as all_:
        home, token = str(all_.folder), all_.folder / "token"
        env = {"XDG_RUNTIME_DIR": home, "XDG_STATE_HOME": home, "OMP_NUM_THREADS": "1"}
        place = ["--slots", "1", "--token-file", str(token), "--log-dir", home]
        worker = [PYTHON, WORKER, "elastic", MODEL, str(STEPS), compress]
        all_.start(net.command(0, SHOAL, "run", "-n", str(len(net.hosts)), "--name", "bench", "--listen", f"{net.address[0]}:{PORT}", *place,
                               "--", *worker), **env)
        while not token.exists() and all_.running():
            pass
        for h in net.hosts[1:]:
            all_.start(net.command(h, SHOAL, "agent", "--join", f"{net.address[0]}:{PORT}", *place), **env)
        said, before = all_.folder / "said0", None
        while all_.running():
            text = said.read_text()
            if before is None and "BEGIN" in text:
                before = net.sent()
            if "RESULT " in text:
                break
        after = net.sent()
        line = next(line for line in said.read_text().splitlines() if "RESULT " in line)
        most = max(b - a for a, b in zip(before or after, after))
        return dict(json.loads(line.split("RESULT ")[1]), compress=compress, sent=most / (STEPS - WARM_UP))


def report(document: dict) -> str:
    """The table of a measurement."""
    def column(form: str, key: str) -> list[float]:
        return [r[key] for r in document["results"] if r["compress"] == form]

    rows = []
    for form in FORMS:
        if sent := column(form, "sent"):
            rows.append([TITLES[form], spread([s / MIB for s in sent], 1, " MiB"), f"{statistics.median(column('none', 'sent')) / statistics.median(sent):.1f}×",
                         spread(column(form, "step_ms"), 1, " ms"), f"{statistics.median(column('none', 'step_ms')) / statistics.median(column(form, 'step_ms')):.1f}×"])
    return table(["`compress`", "a host sends in a step", "fewer", "a step", "faster"], rows)


PAGE = """# Compressed gradients between hosts

Steps of a GPT of {parameters:,} parameters ({gradient:.1f} MiB of gradients) on {hosts} hosts with a worker each, joined by cables of {rate}:
network namespaces of one machine. `bench/hosts/compress.py --write` wrote this page. What the forms do is in
[design/compression.md](design/compression.md).

{table}

{machine}

{quiet}

The median step after a warm-up of {warm_up}, {steps} steps a run; then the median of {runs} runs, with the smallest and the largest. The forms take
turns. What is sent is read from the kernel's queue of the cable, headers and the agents' own words included.
"""


def write(document: dict) -> None:
    """Writes docs/benchmarks-compression.md."""
    results = document["results"]
    busy = sum(1 for r in results if not r["quiet"])
    details = [[key, value] for key, value in document["machine"].items() if value] + [["date", document["date"]]]
    quiet = f"The machine was **not idle** before {busy} of {len(results)} runs: read the times with care. The bytes do not depend on it." if busy else "The machine was idle before every run."
    one = results[0]
    page = PAGE.format(parameters=one["parameters"], gradient=4 * one["parameters"] / MIB, hosts=one["n"], rate=document["rate"], table=report(document),
                       machine=table(["", ""], details), quiet=quiet, warm_up=WARM_UP, steps=STEPS - WARM_UP, runs=1 + max(r["run"] for r in results))
    (ROOT / "docs" / "benchmarks-compression.md").write_text(page)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--hosts", type=int, default=2, help="hosts (2)")
    parser.add_argument("--rate", default="20mbit", help="what a cable carries (20mbit)")
    parser.add_argument("--forms", type=lambda s: s.split(","), default=FORMS, help=f"what to compress by ({','.join(FORMS)})")
    parser.add_argument("--runs", type=int, default=3, help="rounds over all forms (3)")
    parser.add_argument("--wait", type=float, default=60, help="seconds to wait for an idle machine before a run (60)")
    parser.add_argument("--limit", type=float, default=300, help="seconds that one run may take (300)")
    parser.add_argument("--write", action="store_true", help="write docs/benchmarks-compression.md")
    args = parser.parse_args()
    if unknown := [form for form in args.forms if form not in FORMS]:
        parser.error(f"--forms: unknown form {unknown[0]}; known are {', '.join(FORMS)}")
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # as an exception: nothing is left behind
    results = []
    net = Network(args.hosts, args.rate, 1500)
    try:
        for i in range(args.runs):
            for form in args.forms:
                quiet = machine.wait_until_idle(0.92, args.wait)
                line = dict(run(net, form, args.limit), run=i, quiet=quiet)
                print(f"run {i + 1}/{args.runs} {form}: {line['step_ms']:.0f} ms, {line['sent'] / MIB:.2f} MiB{'' if quiet else ' (busy machine)'}", file=sys.stderr)
                results.append(line)
    except Failure as e:
        print(f"compress.py: {e}", file=sys.stderr)
        return 1
    finally:
        net.close()
    document = {"date": time.strftime("%Y-%m-%d", time.gmtime()), "rate": args.rate, "machine": machine.describe(ROOT), "results": results}
    print(report(document))
    if args.write:
        write(document)
    return 0


if __name__ == "__main__":
    sys.exit(main())
