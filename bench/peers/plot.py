"""A small SVG writer: latency and bandwidth against size, one row of panels a number of
processes.
"""

from __future__ import annotations

import html
import math

WIDTH, HEIGHT, GAP_X, GAP_Y, LEFT, TOP = 360, 220, 80, 70, 64, 64  # units of the drawing
COLOURS = [
    "#7a7a7a",
    "#0b6e99",
    "#2ca6a4",
    "#d1495b",
    "#8f6bb3",
    "#e28413",
    "#5b8c3a",
    "#8c564b",
    "#c2559d",
]

Points = list  # of (bytes, microseconds)


def _size(size: float) -> str:
    """Returns a size in bytes as text."""
    for unit, name in ((1 << 30, "GiB"), (1 << 20, "MiB"), (1 << 10, "KiB")):
        if size >= unit:
            return f"{size / unit:g} {name}"
    return f"{size:g} B"


def _time(us: float) -> str:
    """Returns a time in microseconds as text."""
    return f"{us:g} µs" if us < 1e3 else f"{us / 1e3:g} ms" if us < 1e6 else f"{us / 1e6:g} s"


def _text(x: float, y: float, text: str, anchor: str = "middle", more: str = "") -> str:
    """Returns an SVG text at a place; `more` are further attributes."""
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}"{more}>{html.escape(text)}</text>'


class Panel:
    """One pair of axes: sizes on a logarithmic x axis, and y logarithmic or linear."""

    def __init__(
        self, left: float, top: float, sizes: list, low: float, high: float, logarithmic: bool
    ) -> None:
        """Axes with their upper left corner at a place, for sizes in ascending order and values
        from `low` to `high`, on a logarithmic or a linear axis.
        """
        self.left, self.top, self.sizes, self.low, self.high, self.logarithmic = (
            left,
            top,
            sizes,
            low,
            high,
            logarithmic,
        )

    def x(self, size: float) -> float:
        """Returns the coordinate of a size."""
        low, high = math.log(self.sizes[0]), math.log(self.sizes[-1])
        return self.left + WIDTH * ((math.log(size) - low) / (high - low) if high > low else 0.5)

    def y(self, value: float) -> float:
        """Returns the coordinate of a value."""
        low, high = self.low, self.high
        if self.logarithmic:
            low, high, value = math.log(low), math.log(high), math.log(value)
        return self.top + HEIGHT * (1 - (value - low) / (high - low))

    def frame(self, title: str, ticks: list, label) -> list:
        """Returns the SVG of the grid, the title and the ticks, a list of elements; label(value) is
        the text of a tick.
        """
        out = [_text(self.left, self.top - 12, title, "start", ' class="title"')]
        for value in ticks:
            y = self.y(value)
            out.append(f'<path class="grid" d="M{self.left} {y:.1f}h{WIDTH}"/>')
            out.append(_text(self.left - 6, y + 4, label(value), "end"))
        for size in self.sizes:
            out.append(f'<path class="grid" d="M{self.x(size):.1f} {self.top}v{HEIGHT}"/>')
            out.append(_text(self.x(size), self.top + HEIGHT + 16, _size(size)))
        return out

    def line(self, points: list, colour: str) -> list:
        """Returns the SVG of a line through points, which are pairs of a size and a value."""
        at = [(self.x(size), self.y(value)) for size, value in points]
        path = "L".join(f"{x:.1f} {y:.1f}" for x, y in at)
        dots = [f'<circle cx="{x:.1f}" cy="{y:.1f}" r="2.6" fill="{colour}"/>' for x, y in at]
        return [f'<path d="M{path}" fill="none" stroke="{colour}" stroke-width="1.8"/>', *dots]


def _row(lines: dict, n: int, top: float) -> list:
    """Returns the SVG of the two panels of n processes, with their upper edge at `top`."""
    points = [p for by_n in lines.values() for p in by_n.get(n, [])]
    sizes = sorted({size for size, _ in points})
    low = 10 ** math.floor(math.log10(min(us for _, us in points)))
    high = 10 ** math.ceil(math.log10(max(us for _, us in points)))
    latency = Panel(LEFT, top, sizes, low, high, True)
    # The memory's limit leaves the picture where its buffers fit the caches.
    fastest = max(
        (
            size / us / 1e3
            for name, by_n in lines.items()
            for size, us in by_n.get(n, [])
            if size >= 16 << 20 or "limit" not in name
        ),
        default=1,
    )
    step = next(s for s in (0.5, 1, 2, 5, 10, 20, 50, 100) if fastest / s <= 7 or s == 100)
    ceiling = step * math.ceil(fastest / step)
    bandwidth = Panel(LEFT + WIDTH + GAP_X, top, sizes, 0, ceiling, False)
    decades = [10.0**e for e in range(round(math.log10(low)), round(math.log10(high)) + 1)]
    out = latency.frame(f"{n} processes: time", decades, _time)
    out += bandwidth.frame(
        f"{n} processes: GB/s",
        [step * i for i in range(round(ceiling / step) + 1)],
        lambda v: f"{v:g}",
    )
    for (name, by_n), colour in zip(lines.items(), COLOURS):
        if by_n.get(n):
            out += latency.line(by_n[n], colour)
            out += bandwidth.line(
                [(s, s / us / 1e3) for s, us in by_n[n] if s / us / 1e3 <= ceiling], colour
            )
    return out


def svg(lines: dict) -> str:
    """Returns an SVG document that shows {name: {processes: [(bytes, microseconds), …]}}."""
    processes = sorted({n for by_n in lines.values() for n in by_n if by_n[n]})
    width = LEFT + 2 * WIDTH + GAP_X + 30
    height = TOP + len(processes) * (HEIGHT + GAP_Y) - GAP_Y + 30
    out = [
        (
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}"'
            ' font-family="sans-serif" font-size="11">'
        ),
        (
            "<style>.grid{stroke:#ddd;stroke-width:.6;fill:none}"
            ".title{font-weight:bold;font-size:13px}</style>"
        ),
        f'<rect width="{width}" height="{height}" fill="#fff"/>',
    ]
    x, y = LEFT, 20
    for name, colour in zip(lines, COLOURS):
        length = 46 + 6 * len(name)
        if x + length > width:
            x, y = LEFT, y + 16
        out.append(
            f'<circle cx="{x + 4}" cy="{y}" r="4" fill="{colour}"/>'
            + _text(x + 13, y + 4, name, "start")
        )
        x += length
    for i, n in enumerate(processes):
        out += _row(lines, n, TOP + i * (HEIGHT + GAP_Y))
    return "\n".join([*out, "</svg>", ""])
