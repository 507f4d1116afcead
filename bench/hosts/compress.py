#!/usr/bin/env python3
"""Measures steps of training with compressed gradients on hosts that are joined by slow cables;
needs root.

usage: make build && bench/hosts/compress.py [--write]

One worker a host trains a GPT of 0.8 million parameters (bench/peers/step_worker.py). What a host
sends is what the kernel has put on its cable, with the headers of packets.
"""

from __future__ import annotations

import argparse
import json
import pathlib
import statistics
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "peers"))

import turns
from network import Network
from programs import PORT, Processes
from report import MIB, column_of, facts, spread, table

WORKER = str(turns.ROOT / "bench" / "peers" / "step_worker.py")
TITLES = {
    "none": "none",
    "bf16": '`"bf16"`',
    "int8": '`"int8"`',
    "topk": "`TopK(0.01)`",
    "powersgd": "`PowerSGD(4)`",
}
MODEL, STEPS, WARM_UP = "gpt-1M", 13, 3


def train_once(net: Network, form: str, limit_s: float) -> dict:
    """Runs one training with a form of compression, a key of TITLES, on the hosts until it ends;
    returns what rank 0 measured, and as `sent` the bytes that the busiest host sent in a step.
    Raises Failure if the job fails or takes longer than limit_s.
    """
    with Processes(limit_s) as all_:
        home, token = str(all_.folder), all_.folder / "token"
        env = {"XDG_RUNTIME_DIR": home, "XDG_STATE_HOME": home, "OMP_NUM_THREADS": "1"}
        place = ["--slots", "1", "--token-file", str(token), "--log-dir", home]
        worker = [turns.PYTHON, WORKER, "elastic", MODEL, str(STEPS), form]
        all_.start(
            net.command(
                0,
                turns.SHOAL,
                "run",
                "-n",
                str(len(net.hosts)),
                "--name",
                "bench",
                "--listen",
                f"{net.address[0]}:{PORT}",
                *place,
                "--",
                *worker,
            ),
            **env,
        )
        while not token.exists() and all_.running():
            pass
        for h in net.hosts[1:]:
            all_.start(
                net.command(h, turns.SHOAL, "agent", "--join", f"{net.address[0]}:{PORT}", *place),
                **env,
            )
        said, before = all_.folder / "said0", None
        while all_.running():
            text = said.read_text()
            if before is None and "BEGIN" in text:
                before = net.sent_bytes()
            if "RESULT " in text:
                break
        after = net.sent_bytes()
        line = next(line for line in said.read_text().splitlines() if "RESULT " in line)
        most = max(b - a for a, b in zip(before or after, after))
        return dict(json.loads(line.split("RESULT ")[1]), sent=most / (STEPS - WARM_UP))


def measure(args: argparse.Namespace) -> list[dict]:
    """Trains with every form in turn on hosts that it makes and removes; returns the results, one a
    round and form.
    """
    results = []
    net = Network(args.hosts, args.rate, 1500)
    try:
        for form, about in turns.in_turn(args, args.forms):
            line = dict(train_once(net, form, args.limit), **about, rate=args.rate)
            print(f"{line['step_ms']:.0f} ms, {line['sent'] / MIB:.2f} MiB", file=sys.stderr)
            results.append(line)
    finally:
        net.close()
    return results


def text(document: dict) -> str:
    """Returns the table of a measurement in Markdown; `document` is what turns.main keeps."""

    def column(form: str, key: str) -> list[float]:
        """Returns a number of all runs with a form; empty where it was not measured."""
        return list(column_of(document, form, key).values())

    rows = []
    for form in TITLES:
        if sent := column(form, "sent"):
            plain = statistics.median(column("none", "step_ms"))
            rows.append(
                [
                    TITLES[form],
                    spread([s / MIB for s in sent], 1, " MiB"),
                    f"{statistics.median(column('none', 'sent')) / statistics.median(sent):.1f}×",
                    spread(column(form, "step_ms"), 1, " ms"),
                    f"{plain / statistics.median(column(form, 'step_ms')):.1f}×",
                ]
            )
    return table(["`compress`", "a host sends in a step", "fewer", "a step", "faster"], rows)


PAGE = """# Compressed gradients between hosts

Steps of a GPT of {parameters:,} parameters ({gradient:.1f} MiB of gradients) on {hosts} hosts
with a worker each, joined by cables of {rate}: network namespaces of one machine. What the forms do
is in [design/compression.md](design/compression.md).

{table}

{quiet}

The median step after a warm-up of {warm_up}, {steps} steps a run; then the median of {runs} runs,
with the smallest and the largest. The forms take turns. What is sent is read from the kernel's
queue of the cable, headers and the agents' own messages included. `bench/hosts/compress.py --write`
wrote this page.

{machine}
"""


def write(document: dict, folder: pathlib.Path) -> None:
    """Writes benchmarks-compression.md into folder, which is docs."""
    one = document["results"][0]
    page = PAGE.format(
        parameters=one["parameters"],
        gradient=4 * one["parameters"] / MIB,
        hosts=one["n"],
        rate=one["rate"],
        table=text(document),
        warm_up=WARM_UP,
        steps=STEPS - WARM_UP,
        **facts(document, note=" The bytes do not depend on it."),
    )
    (folder / "benchmarks-compression.md").write_text(page)


def main() -> int:
    """Measures as the command line says; returns the exit status."""
    parser = turns.parser(__doc__, runs=3, wait=60, limit=300, page="benchmarks-compression.md")
    parser.add_argument("--hosts", type=int, default=2, help="hosts (2)")
    parser.add_argument("--rate", default="20mbit", help="what a cable carries (20mbit)")
    parser.add_argument(
        "--forms",
        type=turns.list_of(turns.one_of(list(TITLES))),
        default=list(TITLES),
        help=f"what to compress by ({','.join(TITLES)})",
    )
    return turns.main(
        parser.parse_args(), "compression", measure, text, write, needs="root and make build"
    )


if __name__ == "__main__":
    sys.exit(main())
