"""Tables and page from the results of run.py."""

from __future__ import annotations

import pathlib
import statistics

import network
import report

TITLES = {
    "shoal": "shoal",
    "shoal-plain": "shoal, data not encrypted",
    "shoal-fixed": "shoal, fixed routes",
    "gloo": "torch + gloo",
    "openmpi": "OpenMPI",
}

KEPT = ("Eight hosts", report.LIMITS)  # the sections that the page has by hand


def bound_us(line: dict) -> float:
    """Returns the microseconds in which a host can send 2(H-1)/H of the bytes: no schedule that
    sums on the hosts needs less.
    """
    return 2 * (line["hosts"] - 1) / line["hosts"] * line["bytes"] * 8 / line["bits_per_s"] * 1e6


def data_share(mtu: int) -> float:
    """Returns the share of a cable that is left for data in packets of `mtu` bytes: TCP over IPv4
    with time stamps over Ethernet.
    """
    return (mtu - 52) / (mtu + 14)


class Results:
    """The lines of one setting: so many hosts, workers on each, a rate and a packet size. It only
    reads the lines.
    """

    def __init__(self, lines: list[dict]) -> None:
        """The lines of one setting, one at least."""
        first, rate = lines[0], lines[0]["rate"]
        self.title = (
            f"{first['hosts']} hosts × {first['workers']}, {rate[:-4]} {rate[-4:].capitalize()}/s"
        )
        self.sizes = sorted({line["bytes"] for line in lines})
        self.names = [name for name in TITLES if any(line["name"] == name for line in lines)]
        self._lines = lines

    def by_run(self, name: str, size: int) -> dict[int, dict]:
        """Returns the lines of a program, by run."""
        return {
            line["run"]: line
            for line in self._lines
            if line["name"] == name and line["bytes"] == size
        }

    def row(self, name: str, cell) -> list[str]:
        """Returns a row of the table: the title of a program, and what cell(lines) returns for its
        lines of each size.
        """
        return [TITLES[name]] + [
            cell(list(self.by_run(name, size).values())) for size in self.sizes
        ]

    def ratios(self, peer: str, ours: str, size: int) -> list[float]:
        """Returns, run by run, how many times longer the peer takes than ours; empty where one of
        them was not measured.
        """
        a, b = self.by_run(peer, size), self.by_run(ours, size)
        return [a[run]["median_us"] / b[run]["median_us"] for run in a if run in b]

    def tables(self) -> str:
        """Returns the table of the times, with the share of the bound, and how many times longer
        the peers take, in Markdown.
        """
        ours = [name for name in self.names if name.startswith("shoal")]
        rows = [self.row(name, time_cell) for name in self.names]
        rows += [
            [f"{TITLES[name]}: sent / bound", *self.row(name, overhead_cell)[1:]] for name in ours
        ]
        for mine in ours:
            for peer in self.names:
                if peer not in ours:
                    rows.append(
                        [
                            f"{TITLES[peer]} / {TITLES[mine]}",
                            *(report.factors(self.ratios(peer, mine, size)) for size in self.sizes),
                        ]
                    )
        return report.table([self.title, *map(report.size_text, self.sizes)], rows)


def time_cell(lines: list[dict]) -> str:
    """Returns the times, and for large tensors the share of the bound; a dash for no lines."""
    if not lines:
        return "–"
    text = report.times([line["median_us"] for line in lines])
    share = statistics.median(bound_us(line) / line["median_us"] for line in lines)
    return f"{text}, {100 * share:.1f} %" if lines[0]["bytes"] >= report.MIB else text


def overhead_cell(lines: list[dict]) -> str:
    """Returns how many times the bound a host has sent, for large tensors; else a dash."""
    shares = [
        line["sent_bytes"] * 8e6 / line["bits_per_s"] / bound_us(line)
        for line in lines
        if "sent_bytes" in line
    ]
    return f"{statistics.median(shares):.3f}" if shares and lines[0]["bytes"] >= report.MIB else "–"


def by_setting(document: dict) -> list[Results]:
    """Returns the results of each rate, packet size and shape."""
    by: dict[tuple, list[dict]] = {}
    for line in document["results"]:
        by.setdefault((line["rate"], line["mtu"], line["hosts"], line["workers"]), []).append(line)
    return [Results(lines) for lines in by.values()]


def text(document: dict) -> str:
    """Returns the tables of a measurement."""
    return "\n\n".join(results.tables() for results in by_setting(document))


PAGE = """# Benchmarks over several hosts

A float32 all-reduce on hosts with slow cables: shoal's agents, and other libraries. One host is in
[benchmarks.md](benchmarks.md).

{kept}## Figures

{tables}

A time is the median over the runs, up to {runs}, with the smallest and the largest. From 1 MiB on
it stands with its share of the bound: 2(H−1)/H · bytes / rate, the time in which a host can send
what every schedule that sums on the hosts must send. "sent / bound" is what the busiest host put on
its cable for a call, with all headers. Packets of {mtu} bytes carry {carried:.1f} % of data, which
is the most that is possible of the bound. The other rows say how many times longer a peer takes,
each pair from one round.

## Machine

{machine}

{quiet}

## Method

- A host is a network namespace of one machine, with one cable to a switch. A cable lets its rate
  through each way (tbf, a bucket of {burst}, a queue of {queue}). All hosts share the machine's
  processors, so the tables show what the processors allow where that is less than what the cables
  do. The slower cables show the schedules alone.
- **shoal** is `shoal run --listen` on the first host, `shoal agent` on the others, and the Go
  workers of `shoal bench allreduce`. Data between hosts is encrypted by TLS unless the row says
  otherwise; the peers do not encrypt.
- **OpenMPI** is `MPI_Allreduce` with its TCP between hosts, **torch + gloo** is
  `torch.distributed.all_reduce`.
- Where a row has no entry, or a program is missing, it was not measured there.
- All programs run at a raised priority (nice −10).
- Everything else is as in [benchmarks.md](benchmarks.md): new data for every call, a barrier before
  and after it, every element of the result checked, the slowest rank counts, and the programs take
  turns.
- `make bench-hosts` installs the other libraries from Debian, builds, measures, prints the tables
  and writes this page.
"""


def write(document: dict, folder: pathlib.Path) -> None:
    """Writes benchmarks-hosts.md into folder."""
    mtu = document["results"][0]["mtu"]
    page = PAGE.format(
        tables=text(document),
        mtu=mtu,
        carried=100 * data_share(mtu),
        burst=network.BURST,
        queue=network.QUEUE,
        kept="".join(report.section(folder / "benchmarks-hosts.md", title) for title in KEPT),
        **report.facts(document, without=["MPICH"]),
    )
    (folder / "benchmarks-hosts.md").write_text(page)
