"""What the pages of all measurements have in common; and tables, judgement and page from the results of run.py."""
from __future__ import annotations

import pathlib
import statistics
from typing import Sequence

import plot

TITLES = {
    "limit": "limit of the memory",
    "shoal-go": "shoal, Go",
    "shoal-python": "shoal, Python",
    "openmpi": "OpenMPI",
    "openmpi-tcp": "OpenMPI, TCP",
    "mpich": "MPICH",
    "gloo": "torch + gloo",
    "kungfu": "KungFu",
}
MIB = 1 << 20
IN_MEMORY = 16 * MIB  # smaller buffers stay in the caches, where the limit of the memory says little
# (shoal's client, peer, sizes, processes, factor): what shoal promises to be faster by
BARS = [
    ("shoal-go", "openmpi", [64 * MIB, 256 * MIB], [2, 4], 2.0),
    ("shoal-go", "gloo", [64 * MIB, 256 * MIB], [2, 4], 3.0),
    ("shoal-python", "gloo", [4096], [2], 3.0),
]


class Results:
    """The medians of the runs, by program, number of processes and size."""

    def __init__(self, lines: list[dict]) -> None:
        self._us: dict[tuple, dict[int, float]] = {}
        for line in lines:
            self._us.setdefault((line["name"], line["n"], line["bytes"]), {})[line["run"]] = line["median_us"]
        self.names = [name for name in TITLES if any(key[0] == name for key in self._us)]
        self.processes = sorted({key[1] for key in self._us})
        self.sizes = sorted({key[2] for key in self._us})

    def times(self, name: str, n: int, size: int) -> list[float]:
        """Returns the median time of each run in microseconds."""
        return list(self._us.get((name, n, size), {}).values())

    def ratios(self, slow: str, fast: str, n: int, size: int) -> list[float]:
        """Returns, run by run, how many times longer slow takes than fast."""
        a, b = self._us.get((slow, n, size), {}), self._us.get((fast, n, size), {})
        return [a[run] / b[run] for run in a if run in b]


def size_text(size: int) -> str:
    for unit, name in ((1 << 30, "GiB"), (MIB, "MiB"), (1 << 10, "KiB")):
        if size >= unit and size % unit == 0:
            return f"{size // unit} {name}"
    return f"{size} B"


def spread(values: list[float], scale: float, unit: str) -> str:
    """Writes the median with three digits, and the smallest and the largest value after it."""
    if not values:
        return "–"
    median = statistics.median(values) / scale
    digits = 0 if median >= 99.95 else 1 if median >= 9.995 else 2
    extremes = f" ({min(values) / scale:.{digits}f}..{max(values) / scale:.{digits}f})" if len(values) > 1 else ""
    return f"{median:.{digits}f}{unit}{extremes}"


def times(values: list[float]) -> str:
    median = statistics.median(values) if values else 0
    return spread(values, *((1, " µs") if median < 999.5 else (1e3, " ms") if median < 999.5e3 else (1e6, " s")))


def factors(values: list[float]) -> str:
    return spread(values, 1, "×")


def table(head: list[str], rows: list[list[str]]) -> str:
    """Lays out a Markdown table that also reads well as text."""
    widths = [max(len(row[i]) for row in [head, *rows]) for i in range(len(head))]
    lines = [[cell.ljust(w) for cell, w in zip(row, widths)] for row in [head, ["-" * w for w in widths], *rows]]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def column_of(document: dict, name: str, key: str, **where: object) -> dict[int, float]:
    """A number of a program by round, of the results that have these values."""
    return {line["run"]: line[key] for line in document["results"] if all(line[k] == v for k, v in {"name": name, **where}.items())}


def facts(document: dict, without: Sequence[str] = (), note: str = "") -> dict[str, object]:
    """What every page says of a measurement: the machine, whether it was idle, and the number of rounds."""
    results = document["results"]
    busy = sum(1 for line in results if not line["quiet"])
    rows = [[key, value] for key, value in document["machine"].items() if value and key not in without] + [["date", document["date"]]]
    quiet = f"The machine was **not idle** before {busy} of {len(results)} measurements: read the times with care.{note}"
    return {
        "machine": table(["", ""], rows),
        "quiet": quiet if busy else "The machine was idle before every program.",
        "runs": 1 + max(line["run"] for line in results),
    }


def _times_table(results: Results, n: int) -> str:
    def row(name: str) -> list[str]:
        return [TITLES[name]] + [times(results.times(name, n, size)) for size in results.sizes]

    return table([f"{n} processes", *map(size_text, results.sizes)], [row(name) for name in results.names])


def _bandwidth_table(results: Results, n: int) -> str:
    def cell(name: str, size: int) -> str:
        times = results.times(name, n, size)
        if not times:
            return "–"
        text = f"{size / statistics.median(times) / 1e3:#.3g} GB/s"
        shares = results.ratios("limit", name, n, size) if name != "limit" and size >= IN_MEMORY else []
        return text + (f" ({100 * statistics.median(shares):.0f} %)" if shares else "")

    rows = [[TITLES[name], *(cell(name, size) for size in results.sizes)] for name in results.names]
    return table([f"{n} processes", *map(size_text, results.sizes)], rows)


def _ratio_table(results: Results, n: int) -> str:
    rows = []
    for ours in ("shoal-go", "shoal-python"):
        for peer in ("openmpi", "mpich", "gloo"):
            if ours in results.names and peer in results.names:
                cells = [factors(results.ratios(peer, ours, n, size)) for size in results.sizes]
                rows.append([f"{TITLES[peer]} / {TITLES[ours]}", *cells])
    return table([f"{n} processes", *map(size_text, results.sizes)], rows) if rows else ""


def _bars_table(results: Results) -> str:
    rows = []
    for ours, peer, sizes, processes, factor in BARS:
        for n in processes:
            for size in sizes:
                ratios = results.ratios(peer, ours, n, size)
                if ratios:
                    met = "yes" if statistics.median(ratios) >= factor else "NO"
                    rows.append([f"{TITLES[ours]} against {TITLES[peer]}", str(n), size_text(size), f"{factor:.0f}×",
                                 factors(ratios), met])
    return table(["what", "processes", "size", "promised", "measured", "met"], rows) if rows else ""


def text(document: dict) -> str:
    """Returns the tables of a measurement."""
    results = Results(document["results"])
    parts = []
    for n in results.processes:
        parts += [_times_table(results, n), _bandwidth_table(results, n), _ratio_table(results, n)]
    parts.append(_bars_table(results))
    return "\n\n".join(part for part in parts if part)


PAGE = """# Benchmarks

float32 all-reduce on one host: shoal, other libraries, and what the memory of the machine allows. `make bench-peers`
installs the others from Debian, builds, measures and prints the tables; `bench/peers/run.py --write` wrote this page. Several hosts
are in [benchmarks-hosts.md](benchmarks-hosts.md).

![Latency and bandwidth against size](benchmarks.svg)

## Promises

How many times longer the peer takes, for tensors in the arena.

{bars}

## Times

Median over {runs} runs, and the smallest and largest run.

{times}

## Bandwidth

Algorithm bandwidth, bytes of the tensor / time; in brackets the share of what the memory allows.

{bandwidths}

## Ratios

Time of the peer / time of shoal, each pair from one round; median, smallest and largest.

{ratios}

## Machine

{machine}

{quiet}

## Method

- Every program does the same: fill the buffers anew with random data, barrier, time one in-place sum all-reduce, barrier, check
  every element of the result. The second barrier, which is not timed, keeps a rank that checks from taking the processor of one that is
  still in the call. A call takes as long as on its slowest rank. A run's figure is the median over its calls
  (8 to 500 of them, by size, after a warm-up); a table's figure is the median over the runs.
- The programs take turns (A B C A B C …), and each waits for an idle machine before it starts.
- The data are whole numbers whose sums are exact in float32 in every order, so that results are compared bit by bit.
- **shoal**: `shoal bench allreduce`, tensors in the arena; from Go, and from Python with NumPy.
- **OpenMPI**, **MPICH**: `MPI_Allreduce` with `MPI_IN_PLACE` from C over shared memory (the default); OpenMPI bound to
  cores where there are enough, else with `--oversubscribe --bind-to none`. In place because that is what shoal does.
- **OpenMPI, TCP**: the same, over TCP on the loopback device instead of shared memory (`--mca pml ob1 --mca btl tcp,self`).
- **torch + gloo**: `torch.distributed.all_reduce` over loopback TCP, one torch thread a process.
- **KungFu**: its all-reduce from C++, in place, by its own launcher with its default strategy, which on one host is a star over Unix
  sockets. No package has it: `run.py --kungfu DIR` measures what was built in a folder. For this page it {kungfu} measured.
- **limit of the memory**: a C program in which one pinned process a core reads each buffer once and writes each result
  once, straight in shared memory, with spinning barriers. Buffers below 16 MiB fit the caches.
"""


def write(document: dict, folder: pathlib.Path) -> None:
    """Writes benchmarks.md and benchmarks.svg into folder."""
    results = Results(document["results"])

    def tables(make) -> str:
        return "\n\n".join(make(results, n) for n in results.processes)

    page = PAGE.format(
        bars=_bars_table(results), times=tables(_times_table), bandwidths=tables(_bandwidth_table),
        ratios=tables(_ratio_table), kungfu="was" if "kungfu" in results.names else "was not", **facts(document))
    (folder / "benchmarks.md").write_text(page)
    lines = {name: {n: [(size, statistics.median(results.times(name, n, size))) for size in results.sizes
                        if results.times(name, n, size)] for n in results.processes} for name in results.names}
    (folder / "benchmarks.svg").write_text(plot.svg({TITLES[name]: by_n for name, by_n in lines.items()}))
