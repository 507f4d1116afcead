#!/usr/bin/env python3
"""Measures how long training pauses while its mesh changes, on hosts that are joined by slow
cables; needs root.

usage: make build && bench/hosts/reshape.py [--write]

Four workers train the GPT of examples/gpt/mesh_gpt.py, and `shoal reshape` takes them from mesh to
mesh. A pause is the time from the end of the last step on one mesh to the beginning of the first on
the next, on the rank that comes last each time.
"""

from __future__ import annotations

import argparse
import itertools
import os
import pathlib
import statistics
import subprocess
import sys
import textwrap

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "peers"))

import turns
from network import Network, bits, parse_rate
from programs import PORT, PRIORITY, Processes, json_lines
from report import LIMITS, facts, section, table

WORKER = str(turns.ROOT / "bench" / "hosts" / "reshape_worker.py")
RANKS = 4  # workers, shared by the hosts
WAY = [  # meshes, one after the other
    "dp=4",
    "tp=4",
    "dp=4",
    "pp=4",
    "dp=2,tp=2",
    "tp=4",
    "pp=2,tp=2",
    "pp=4",
    "pp=2,dp=2",
    "dp=2,tp=2",
]
STEPS = 2  # on every mesh, before the next one is asked for
BAR = 1.25  # what a pause may take of bytes/rate and a barrier
LIMITED = 2e8  # the rate in bits/s up to which the cables are the limit


class Training:
    """A job on the hosts of a network, and what its workers have written. One thread uses it; the
    `with` of the processes ends the job.
    """

    def __init__(self, net: Network, all_: Processes, first: str, args: argparse.Namespace) -> None:
        """Starts the job on the mesh `first`, and does not wait until it trains."""
        self._net, self._all = net, all_
        self._told, token = all_.folder / "told", all_.folder / "token"
        self._told.touch()
        home = str(all_.folder)
        self._env = {"XDG_RUNTIME_DIR": home, "XDG_STATE_HOME": home, "OMP_NUM_THREADS": "1"}
        place = [
            "--slots",
            str(RANKS // len(net.hosts)),
            "--token-file",
            str(token),
            "--log-dir",
            home,
        ]
        worker = [turns.PYTHON, WORKER, first, str(args.width), str(args.text), str(self._told)]
        all_.start(
            net.command(
                0,
                turns.SHOAL,
                "run",
                "-n",
                str(RANKS),
                "--name",
                "bench",
                "--listen",
                f"{net.address[0]}:{PORT}",
                *place,
                "--",
                *worker,
            ),
            **self._env,
        )
        self._wait_until(token.exists)
        for h in net.hosts[1:]:
            all_.start(
                net.command(h, turns.SHOAL, "agent", "--join", f"{net.address[0]}:{PORT}", *place),
                **self._env,
            )
        self._since = 0  # the first line that is of the mesh of now
        self._mesh = first  # the mesh of now

    def _wait_until(self, reached) -> None:
        """Waits until reached() is true; raises Failure if the job ends before, or takes too long.
        """
        while not reached():
            if not self._all.running():
                raise turns.Failure("the job has ended")

    def _new_lines(self) -> list[tuple[int, dict]]:
        """Returns the lines that were written since the present mesh is there, each with its
        number.
        """
        return list(enumerate(json_lines(self._told.read_text())))[self._since :]

    def _times(self, what: str, mesh: str) -> dict[int, list[float]]:
        """Returns by rank when steps have begun or ended (`what`) on a mesh, the present or the
        next, in seconds of the clock of all processes.
        """
        by: dict[int, list[float]] = {}
        for _, line in self._new_lines():
            if line["what"] == what and line["mesh"] == mesh:
                by.setdefault(line["rank"], []).append(line["at"])
        return by

    def _has_trained(self, mesh: str, steps: int, what: str) -> bool:
        """Returns whether every rank has begun or ended (`what`) so many steps on a mesh."""
        times = self._times(what, mesh)
        return len(times) == RANKS and min(map(len, times.values())) >= steps

    def barrier_s(self) -> float:
        """Returns the seconds of a barrier of all ranks, which rank 0 measured before the first
        step.
        """
        return next(
            line["seconds"]
            for line in json_lines(self._told.read_text())
            if line["what"] == "barrier"
        )

    def reshape(self, mesh: str) -> dict:
        """Goes to another mesh, waits until it trains there, and returns the plan, with the seconds
        of the pause and the two meshes. Raises Failure where the command or the job fails.
        """
        self._wait_until(lambda: self._has_trained(self._mesh, STEPS, "end"))
        asked = subprocess.run(
            self._net.command(0, turns.SHOAL, "reshape", "bench", "--mesh", mesh, "--json"),
            env=dict(os.environ, **self._env),
            capture_output=True,
            text=True,
        )
        if asked.returncode:
            raise turns.Failure(f"shoal reshape --mesh {mesh}: {asked.stderr}")
        self._wait_until(lambda: self._has_trained(mesh, 1, "begin"))
        ended = max(times[-1] for times in self._times("end", self._mesh).values())
        begun = max(times[0] for times in self._times("begin", mesh).values())
        before, self._mesh = self._mesh, mesh
        self._since = next(i for i, line in self._new_lines() if line.get("mesh") == mesh)
        return dict(json_lines(asked.stdout)[0], before=before, after=mesh, pause=begun - ended)


def measure(args: argparse.Namespace) -> list[dict]:
    """Measures the changes of the mesh for every rate and number of hosts; returns the results, one
    a change and round.
    """
    os.nice(PRIORITY)
    results = []
    for rate, hosts in itertools.product(args.rate, args.hosts):
        for name, about in turns.in_turn(args, ["reshape"], f"{hosts} hosts, {rate}, "):
            net = Network(hosts, rate, 1500)
            try:
                with Processes(args.limit) as all_:
                    training = Training(net, all_, args.way[0], args)
                    for mesh in args.way[1:]:
                        line = dict(
                            training.reshape(mesh),
                            **about,
                            rate=rate,
                            bits_per_s=bits(rate),
                            hosts=hosts,
                            width=args.width,
                            nice=os.nice(0),
                            barrier=training.barrier_s(),
                        )
                        print(
                            f"{line['before']} -> {mesh}: {line['busiest'] / 1e6:.1f} MB,"
                            f" {line['pause']:.2f} s, {ratio_to_bound(line):.2f}",
                            file=sys.stderr,
                        )
                        results.append(line)
            finally:
                net.close()
    return results


def bound_s(line: dict) -> float:
    """Returns the seconds that the bytes of the busiest host take on its cable, and a barrier."""
    return line["busiest"] * 8 / line["bits_per_s"] + line["barrier"]


def ratio_to_bound(line: dict) -> float:
    """Returns how many times longer than its bound a pause is."""
    return line["pause"] / bound_s(line)


def predicted_text(lines: list[dict]) -> str:
    """Returns the seconds that the plans say it takes; with * where they did not know how fast the
    links are.
    """
    return f"{statistics.median(line['seconds'] for line in lines):.2f} s" + "*" * any(
        "link_seconds" not in line for line in lines if line["busiest"]
    )


def by_setting(document: dict) -> list[tuple[str, list[dict]]]:
    """Returns the results of each number of hosts and rate, with a title."""
    by: dict[str, list[dict]] = {}
    for line in document["results"]:
        by.setdefault(
            f"{line['hosts']} hosts × {RANKS // line['hosts']}, {line['rate'][:-4]}"
            f" {line['rate'][-4:].capitalize()}/s",
            [],
        ).append(line)
    return list(by.items())


def text(document: dict) -> str:
    """Returns a table for each setting: a row for each change of the mesh."""
    tables = []
    for title, lines in by_setting(document):
        rows = []
        for change in dict.fromkeys((line["before"], line["after"]) for line in lines):
            of = [line for line in lines if (line["before"], line["after"]) == change]
            pause = statistics.median(line["pause"] for line in of)
            one = of[0]
            crosses = one["busiest"] > 0
            rows.append(
                [
                    f"{change[0]} → {change[1]}",
                    f"{one['busiest'] / 1e6:.1f} MB",
                    f"{one['busiest'] * 8 / one['bits_per_s']:.2f} s",
                    predicted_text(of),
                    f"{pause:.2f} s",
                    f"{statistics.median(map(ratio_to_bound, of)):.2f}" if crosses else "–",
                ]
            )
        tables.append(
            table(
                [
                    title,
                    "busiest host",
                    "bytes / rate",
                    "predicted",
                    "pause",
                    "of bytes / rate + barrier",
                ],
                rows,
            )
        )
    return "\n\n".join(tables)


def verdict(document: dict) -> str:
    """Says how many changes are within the bar where the cables are the limit."""
    limited = [
        line for line in document["results"] if line["busiest"] and line["bits_per_s"] <= LIMITED
    ]
    within = sum(ratio_to_bound(line) <= BAR for line in limited)
    worst = max(limited, key=ratio_to_bound)
    return textwrap.fill(
        f"Promised: {BAR} × bytes / rate and a barrier, where the cables are the limit. Up to"
        f" {LIMITED / 1e6:.0f} Mbit/s that held in {within} of {len(limited)} changes in which"
        f" something crosses from host to host; the worst was {ratio_to_bound(worst):.2f},"
        f" {worst['before']} → {worst['after']} on {worst['hosts']} hosts at {worst['rate'][:-4]}"
        f" {worst['rate'][-4:].capitalize()}/s.",
        100,
    )


PAGE = """# Pauses of live reshapes

How long training pauses while its mesh changes: {ranks} workers with the GPT of
`examples/gpt/mesh_gpt.py` at a width of {width}, {state:.0f} MB of parameters and Adam's moments,
on hosts with slow cables. What a reshape does is in [design/reshape.md](design/reshape.md).

{verdict}

{kept}## Figures

{tables}

- **busiest host** is the bytes that it must send or receive, as the plan says. All plans move the
  fewest bytes that are possible.
- **predicted** is what `shoal reshape --dry-run` says; with * without the time on cables, because
  nothing had been measured on them yet.
- **pause** is the time from the end of the last step on the old mesh to the beginning of the first
  on the new one, on the rank that comes last each time. In it the state is packed, moved, proved by
  fingerprint and unpacked, and the program builds its model.
- A barrier took {barrier:.1f} ms. Packets of 1500 bytes carry 95.6 % of data, so 1.05 is the least
  of bytes / rate that is possible.

## Machine

{machine}

{quiet}

## Method

A host is a network namespace of one machine, with one cable to a switch that lets its rate through
each way. All hosts share the machine's processors, and so do their copies, fingerprints, encryption
and models. All programs run at a raised priority (nice −{nice}), which holds for their sessions too
where the scheduler shares the processors out over these. Times are medians over the runs, of which
there were up to {runs}. `make bench-reshape` builds, measures, prints the tables and writes this
page.
"""


def write(document: dict, folder: pathlib.Path) -> None:
    """Writes benchmarks-reshape.md into folder."""
    one = document["results"][0]
    page = PAGE.format(
        ranks=RANKS,
        nice=-one["nice"],
        width=one["width"],
        state=one["state"] / 1e6,
        verdict=verdict(document),
        tables=text(document),
        kept=section(folder / "benchmarks-reshape.md", LIMITS),
        barrier=1e3 * statistics.median(line["barrier"] for line in document["results"]),
        **facts(document, without=["OpenMPI", "MPICH", "gloo"]),
    )
    (folder / "benchmarks-reshape.md").write_text(page)


def main() -> int:
    """Measures as the command line says; returns the exit status."""
    parser = turns.parser(__doc__, runs=1, wait=20, limit=900, page="benchmarks-reshape.md")
    parser.add_argument(
        "--hosts",
        type=turns.list_of(int),
        default="2,4",
        help="numbers of hosts, which share the workers (2,4)",
    )
    parser.add_argument(
        "--rate",
        type=turns.list_of(parse_rate),
        default="100mbit,200mbit,1gbit",
        help="what a cable carries (100mbit,200mbit,1gbit)",
    )
    parser.add_argument(
        "--width",
        type=int,
        default=384,
        help="of the model, a multiple of 12: 384 makes a state of 107 MB, 768 one of 426 MB (384)",
    )
    parser.add_argument(
        "--way",
        nargs="+",
        default=WAY,
        help=f"the meshes that the job takes, one after the other ({' '.join(WAY)})",
    )
    parser.add_argument(
        "--text",
        type=pathlib.Path,
        default=turns.ROOT / "ARCHITECTURE.md",
        help="what the model reads",
    )
    return turns.main(
        parser.parse_args(), "reshape", measure, text, write, needs="root and make build"
    )


if __name__ == "__main__":
    sys.exit(main())
