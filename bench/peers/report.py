"""What the pages of all measurements have in common; and tables, judgement and page from the
results of run.py.
"""

from __future__ import annotations

import pathlib
import statistics
import textwrap
from typing import NamedTuple, Sequence

import plot

TITLES = {
    "limit": "limit of the memory",
    "limit-foreign": "limit of the memory, foreign",
    "shoal-go": "shoal, Go",
    "shoal-python": "shoal, Python",
    "shoal-foreign": "shoal, Python, foreign memory",
    "shoal-shared": "shoal, Go, shared result",
    "openmpi": "OpenMPI",
    "openmpi-tcp": "OpenMPI, TCP",
    "mpich": "MPICH",
    "gloo": "torch + gloo",
    "kungfu": "KungFu",
}
MIB = 1 << 20
# smaller buffers stay in the caches, where the limit of the memory says little
IN_MEMORY = 16 * MIB
PEERS = ("openmpi", "openmpi-tcp", "mpich", "gloo", "kungfu")
LIMITS = "Limits"  # the section that every page has by hand; docs/design/benchmarks.md has the rest
KEPT = (LIMITS, "Checkpoints", "GPUs")  # the sections that this page has by hand


class Results:
    """The medians of the runs in µs, by program, number of processes and size."""

    def __init__(self, lines: list[dict]) -> None:
        """From the lines of run.py's programs, each with its name and round."""
        self._us: dict[tuple, dict[int, float]] = {}
        for line in lines:
            self._us.setdefault((line["name"], line["n"], line["bytes"]), {})[line["run"]] = line[
                "median_us"
            ]
        self.names = [name for name in TITLES if any(key[0] == name for key in self._us)]
        self.processes = sorted({key[1] for key in self._us})
        self.sizes = sorted({key[2] for key in self._us})

    def times(self, name: str, n: int, size: int) -> list[float]:
        """Returns the median time of each run in microseconds."""
        return list(self._us.get((name, n, size), {}).values())

    def ratios(self, slow: str, fast: str, n: int, size: int) -> list[float]:
        """Returns, run by run, how many times longer slow takes than fast; empty where one of them
        was not measured.
        """
        a, b = self._us.get((slow, n, size), {}), self._us.get((fast, n, size), {})
        return [a[run] / b[run] for run in a if run in b]

    def best_peer(self, n: int, size: int) -> str:
        """Returns the peer with the least median time, "" where none was measured."""
        measured = [name for name in PEERS if self.times(name, n, size)]
        return min(
            measured, key=lambda name: statistics.median(self.times(name, n, size)), default=""
        )


class Promise(NamedTuple):
    """A bar: what one of shoal's clients is to reach with n processes at some sizes."""

    ours: str  # a key of TITLES
    n: int
    sizes: tuple[int, ...]  # bytes
    # to be faster than by a factor, "limit" for a share of it, "best" for the fastest peer; "" for
    # a time
    peer: str
    promised: float  # a factor, a share or microseconds

    def row(self, results: Results, size: int) -> list[str]:
        """Returns a row of the table, whether the promise is kept at a size; empty if nothing was
        measured.
        """
        peer = results.best_peer(self.n, size) if self.peer == "best" else self.peer
        if not peer:
            values, promised, cell = (
                results.times(self.ours, self.n, size),
                f"≤ {self.promised:.0f} µs",
                times,
            )
            what = TITLES[self.ours]
        else:
            values = results.ratios(peer, self.ours, self.n, size)
            share = peer == "limit"
            promised, cell = (
                (f"≥ {100 * self.promised:.0f} %", percents)
                if share
                else (f"≥ {self.promised:g}×", factors)
            )
            what = f"{TITLES[self.ours]} {'of the' if share else 'against'} {TITLES[peer]}"
        if not values:
            return []
        median = statistics.median(values)
        met = median >= self.promised if peer else median <= self.promised
        return [what, str(self.n), size_text(size), promised, cell(values), "yes" if met else "NO"]


LARGE = (16 * MIB, 64 * MIB, 256 * MIB)
PROMISES = [
    Promise("shoal-go", 2, LARGE, "best", 4.0),
    Promise("shoal-go", 2, LARGE, "limit", 0.85),
    Promise("shoal-go", 2, (MIB,), "best", 1.5),
    Promise("shoal-go", 4, (MIB, *LARGE), "best", 4.0),
    Promise("shoal-foreign", 2, LARGE, "best", 2.0),
    Promise("shoal-python", 2, (4096,), "gloo", 10.0),
    Promise("shoal-python", 2, (4096,), "", 20.0),
    Promise("shoal-go", 2, (4096,), "", 10.0),
]


def size_text(size: int) -> str:
    """Returns a size in bytes as text."""
    for unit, name in ((1 << 30, "GiB"), (MIB, "MiB"), (1 << 10, "KiB")):
        if size >= unit and size % unit == 0:
            return f"{size // unit} {name}"
    return f"{size} B"


def spread(values: list[float], scale: float, unit: str) -> str:
    """Returns the median in a unit, which is `scale` of the values, with three digits, and the
    smallest and the largest value after it; a dash for no values.
    """
    if not values:
        return "–"
    median = statistics.median(values) / scale
    digits = 0 if median >= 99.95 else 1 if median >= 9.995 else 2
    extremes = (
        f" ({min(values) / scale:.{digits}f}..{max(values) / scale:.{digits}f})"
        if len(values) > 1
        else ""
    )
    return f"{median:.{digits}f}{unit}{extremes}"


def times(values: list[float]) -> str:
    """Returns times in microseconds as text."""
    median = statistics.median(values) if values else 0
    return spread(
        values,
        *((1, " µs") if median < 999.5 else (1e3, " ms") if median < 999.5e3 else (1e6, " s")),
    )


def factors(values: list[float]) -> str:
    """Returns ratios as text."""
    return spread(values, 1, "×")


def percents(values: list[float]) -> str:
    """Returns shares as text."""
    return spread(values, 0.01, " %")


def table(head: list[str], rows: list[list[str]]) -> str:
    """Returns a Markdown table that also reads well as text."""
    widths = [max(len(row[i]) for row in [head, *rows]) for i in range(len(head))]
    lines = [
        [cell.ljust(w) for cell, w in zip(row, widths)]
        for row in [head, ["-" * w for w in widths], *rows]
    ]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def column_of(document: dict, name: str, key: str, **where: object) -> dict[int, float]:
    """Returns the number `key` of a program by round, of the results that have these values."""
    return {
        line["run"]: line[key]
        for line in document["results"]
        if all(line[k] == v for k, v in {"name": name, **where}.items())
    }


def facts(document: dict, without: Sequence[str] = (), note: str = "") -> dict[str, object]:
    """Returns what every page says of a measurement, as fields for its text: `machine` without some
    rows, `quiet`: whether it was idle, with a note where it was not, and `runs`: the number of
    rounds.
    """
    results = document["results"]
    busy = sum(1 for line in results if not line["quiet"])
    rows = [
        [key, value] for key, value in document["machine"].items() if value and key not in without
    ] + [["date", document["date"]]]
    quiet = textwrap.fill(
        f"The machine was **not idle** before {busy} of {len(results)} measurements: read the times"
        f" with care.{note}",
        100,
    )
    return {
        "machine": table(["", ""], rows),
        "quiet": quiet if busy else "The machine was idle before every program.",
        "runs": 1 + max(line["run"] for line in results),
    }


def _times_table(results: Results, n: int) -> str:
    """Returns the table of the times with n processes."""

    def row(name: str) -> list[str]:
        """Returns the row of a program."""
        return [TITLES[name]] + [times(results.times(name, n, size)) for size in results.sizes]

    return table(
        [f"{n} processes", *map(size_text, results.sizes)], [row(name) for name in results.names]
    )


def _bandwidth_table(results: Results, n: int) -> str:
    """Returns the table of the bandwidths with n processes."""

    def cell(name: str, size: int) -> str:
        """Returns the bandwidth of a program at a size, and the share of the memory's limit."""
        times = results.times(name, n, size)
        if not times:
            return "–"
        text = f"{size / statistics.median(times) / 1e3:#.3g} GB/s"
        limit = "limit-foreign" if name == "shoal-foreign" else "limit"
        shares = (
            results.ratios(limit, name, n, size)
            if not name.startswith("limit") and size >= IN_MEMORY
            else []
        )
        return text + (f" ({100 * statistics.median(shares):.0f} %)" if shares else "")

    rows = [[TITLES[name], *(cell(name, size) for size in results.sizes)] for name in results.names]
    return table([f"{n} processes", *map(size_text, results.sizes)], rows)


def _ratio_table(results: Results, n: int) -> str:
    """Returns the table of how many times longer peers take than shoal with n processes."""
    rows = []
    for ours in (name for name in results.names if name.startswith("shoal")):
        for peer in (name for name in PEERS if name in results.names):
            cells = [factors(results.ratios(peer, ours, n, size)) for size in results.sizes]
            rows.append([f"{TITLES[peer]} / {TITLES[ours]}", *cells])
    return table([f"{n} processes", *map(size_text, results.sizes)], rows) if rows else ""


def _promises_table(results: Results) -> str:
    """Returns the table of the promises."""
    rows = [
        row for promise in PROMISES for size in promise.sizes if (row := promise.row(results, size))
    ]
    return table(["what", "processes", "size", "promised", "measured", "met"], rows) if rows else ""


def section(page: pathlib.Path, title: str) -> str:
    """Returns a section of a page as it is now, with its title, or "" where there is none: what is
    written by hand stays when the figures are written anew.
    """
    _, found, rest = (page.read_text() if page.exists() else "").partition(f"## {title}\n")
    return f"## {title}\n{rest.partition(chr(10) + '## ')[0].rstrip()}\n\n" if found else ""


def text(document: dict) -> str:
    """Returns the tables of a measurement."""
    results = Results(document["results"])
    parts = []
    for n in results.processes:
        parts += [_times_table(results, n), _bandwidth_table(results, n), _ratio_table(results, n)]
    parts.append(_promises_table(results))
    return "\n\n".join(part for part in parts if part)


PAGE = """# Benchmarks

A float32 all-reduce on one host: shoal, other libraries, and what the memory of the machine allows.
Other pages: [several hosts](benchmarks-hosts.md), [whole steps of training](benchmarks-steps.md),
[compressed gradients](benchmarks-compression.md), [pauses of a reshape](benchmarks-reshape.md).

## Promises

"Measured" says how many times longer the fastest of the peers takes, or what share of the limit
shoal reaches: for tensors in the arena, or for foreign ones, which are copied in and out. The
median of the runs counts.

{promises}

![Latency and bandwidth against size](benchmarks.svg)

{kept}## Times

Median over {runs} runs, and the smallest and largest run. Bandwidths, ratios and the method are in
[design/benchmarks-one-host.md](design/benchmarks-one-host.md).

{times}

## Machine

{machine}

{quiet}

`make bench-peers` installs the other libraries from Debian, builds, measures, prints the tables and
writes this page.
"""

DETAILS = """# Benchmarks on one host: bandwidths, ratios and method

The rest of [benchmarks.md](../benchmarks.md), written with it by `make bench-peers`.

## Bandwidth

Algorithm bandwidth: the bytes of the tensor divided by the time. In brackets stands the share of
what the memory allows.

{bandwidths}

## Ratios

The time of the peer divided by the time of shoal, each pair from one round: median, smallest and
largest.

{ratios}

## Method

- Every program does the same: fill the buffers anew with random data, barrier, time one in-place
  sum all-reduce, barrier, check every element of the result. The second barrier, which is not
  timed, keeps a rank that checks from taking the processor of one that is still in the call. A call
  takes as long as on its slowest rank. A run's figure is the median over its calls (8 to 500 of
  them, by size, after a warm-up). A table's figure is the median over the runs.
- The programs take turns (A B C A B C …), and each waits for an idle machine before it starts.
- The data are whole numbers whose sums are exact in float32 in every order, so that results are
  compared bit by bit.
- **shoal**: `shoal bench allreduce`, tensors in the arena; from Go, and from Python with NumPy.
  **Foreign memory** is the process's own, which is copied in and out.
- **OpenMPI**, **MPICH**: `MPI_Allreduce` with `MPI_IN_PLACE` from C over shared memory (the
  default). OpenMPI is bound to cores where there are enough, otherwise it runs with
  `--oversubscribe --bind-to none`. In place, because that is what shoal does.
- **OpenMPI, TCP**: the same, over TCP on the loopback device instead of shared memory
  (`--mca pml ob1 --mca btl tcp,self`).
- **torch + gloo**: `torch.distributed.all_reduce` over loopback TCP, one torch thread a process.
- **KungFu**: its all-reduce from C++, in place, by its own launcher with its default strategy,
  which on one host is a star over Unix sockets. No package has it: `run.py --kungfu DIR` measures
  what was built in a folder. For this page it {kungfu} measured.
- **limit of the memory**: a C program in which one pinned process a core reads each buffer once and
  writes each result once, straight in shared memory, with spinning barriers. Buffers below 16 MiB
  fit the caches. **Foreign**: the same, between copies of each buffer from the memory of its
  process and back.
"""


def write(document: dict, folder: pathlib.Path) -> None:
    """Writes benchmarks.md, design/benchmarks-one-host.md and benchmarks.svg into folder."""
    results = Results(document["results"])

    def tables(make) -> str:
        """Returns the tables that make(results, n) returns for each number of processes."""
        return "\n\n".join(make(results, n) for n in results.processes)

    page = PAGE.format(
        promises=_promises_table(results),
        times=tables(_times_table),
        kept="".join(section(folder / "benchmarks.md", title) for title in KEPT),
        **facts(document),
    )
    (folder / "benchmarks.md").write_text(page)
    details = DETAILS.format(
        bandwidths=tables(_bandwidth_table),
        ratios=tables(_ratio_table),
        kungfu="was" if "kungfu" in results.names else "was not",
    )
    (folder / "design" / "benchmarks-one-host.md").write_text(details)
    lines = {
        name: {
            n: [
                (size, statistics.median(results.times(name, n, size)))
                for size in results.sizes
                if results.times(name, n, size)
            ]
            for n in results.processes
        }
        for name in results.names
    }
    (folder / "benchmarks.svg").write_text(
        plot.svg({TITLES[name]: by_n for name, by_n in lines.items()})
    )
