"""The text of a mesh: axes with their degrees, and what a plan says of the positions on them."""

from __future__ import annotations

import difflib
import re
from typing import List, NamedTuple, Optional, Tuple

from .arguments import wrong_type

_NAME = re.compile(r"[a-z][a-z0-9_]*")
_KIND = re.compile(r"[A-Za-z0-9._-]{1,64}")  # as topo.CheckKind has it
_ATTRIBUTES = ("micro", "ahead", "chunks", "on")
_MOST = 1 << 30  # of each number of an attribute, as layout.ParseMesh has it
_MOST_RANKS = 1 << 18  # of a mesh, as layout.MaxRanks


class Axis(NamedTuple):
    """An axis of a mesh. docs/formats/layout.md says what its attributes mean."""

    name: str
    size: int
    shares: Optional[Tuple[int, ...]] = None  # one for each position
    micro: Optional[int] = None
    ahead: Optional[Tuple[int, ...]] = None  # one for each position
    chunks: Optional[int] = None
    on: Optional[Tuple[str, ...]] = None  # the kind of host of each position

    def __str__(self) -> str:
        """The text of the axis, in its normal form."""
        parts = [
            *(["/".join(map(str, self.shares))] if self.shares else []),
            *([f"micro={self.micro}"] if self.micro else []),
            *(["ahead=" + "/".join(map(str, self.ahead))] if self.ahead else []),
            *([f"chunks={self.chunks}"] if self.chunks else []),
            *(["on=" + "/".join(self.on)] if self.on else []),
        ]
        return f"{self.name}={self.size}" + (f"({';'.join(parts)})" if parts else "")

    def check(self) -> None:
        """Raises ValueError for what no axis can be, or contradicts itself."""
        if not _NAME.fullmatch(self.name):
            raise ValueError(
                f'axis "{self.name}": a name has small letters, digits and _, and begins with a'
                " letter"
            )
        if not 1 <= self.size <= _MOST_RANKS:
            raise ValueError(
                f"axis {self.name} has size {self.size}; it must be between 1 and {_MOST_RANKS}"
            )
        if self.shares and self.chunks:
            raise ValueError(
                f"axis {self.name}: shares and chunks contradict each other: chunks are dealt alike"
            )
        ahead = self.ahead or ()
        for stage, (before, held) in enumerate(zip(ahead, ahead[1:]), 1):
            if held > before:
                raise ValueError(
                    f"axis {self.name}: ahead={'/'.join(map(str, ahead))} must not ascend: stage"
                    f" {stage} would wait for ever for micro-batches that the one before it holds"
                    " back"
                )


def parse_axes(text: str) -> List[Axis]:
    """The axes of a text such as dp=2,pp=2(8/6;micro=4); none for the empty text, which is one
    rank. Raises TypeError for what is no text, and ValueError, in the words of layout.ParseMesh in
    Go, for a text that is no mesh.
    """
    if not isinstance(text, str):
        raise wrong_type("mesh", text, "a text with the degree of each axis, as 'dp=2,tp=4'")
    try:
        axes = [_parse_axis(item.strip()) for item in _split(text)]
        _check(axes)
    except ValueError as e:
        raise ValueError(f"mesh {text!r}: {e}") from None
    return axes


def _check(axes: List[Axis]) -> None:
    """Raises ValueError for axes that are none, contradict each other or are too many ranks."""
    ranks, names, micro, on = 1, set(), "", ""
    for axis in axes:
        axis.check()
        if axis.name in names:
            raise ValueError(f"axis {axis.name} comes twice")
        if axis.micro and micro:
            raise ValueError(f"{micro} and {axis.name} both have micro; a mesh has it once")
        if axis.on and on:
            raise ValueError(f"{on} and {axis.name} both have on; a mesh has it once")
        names.add(axis.name)
        micro = axis.name if axis.micro else micro
        on = axis.name if axis.on else on
        ranks *= axis.size
        if ranks > _MOST_RANKS:
            raise ValueError(f"more than {_MOST_RANKS} ranks")


def _split(text: str) -> List[str]:
    """The texts of the axes: what is between commas that are not in parentheses."""
    if not text.strip():
        return []
    parts, depth = [""], 0
    for character in text:
        depth += (character == "(") - (character == ")")
        if character == "," and depth == 0:
            parts.append("")
        else:
            parts[-1] += character
    return parts


def _parse_axis(text: str) -> Axis:
    """The axis of a text such as pp=2(8/6;micro=4)."""
    name, named, rest = text.partition("=")
    degree, called, inside = rest.partition("(")
    try:
        size = _number(degree, 0)
    except ValueError:
        named = ""
    if not named:
        raise ValueError(f'"{text}" is not of the form axis=size, such as tp=8')
    axis = Axis(name.strip(), size)
    if not called:
        return axis
    inside = inside.strip()
    if not inside.endswith(")") or "(" in inside or ")" in inside[:-1]:
        raise ValueError(f'"{text}" does not end in one closing bracket')
    seen = set()
    for item in inside[:-1].split(";"):
        key, named, value = item.partition("=")
        key, value = (key.strip(), value) if named else ("", item)
        if key in seen:
            raise ValueError(f"axis {axis.name}: {key or 'shares'} twice")
        seen.add(key)
        try:
            axis = _with_attribute(axis, key, value)
        except ValueError as e:
            raise ValueError(f"axis {axis.name}: {e}") from None
    return axis


def _with_attribute(axis: Axis, key: str, value: str) -> Axis:
    """The axis with an attribute of this text; the key of shares is ""."""
    if key == "":
        return axis._replace(shares=_numbers(axis, "shares", value, 0))
    if key == "ahead":
        return axis._replace(ahead=_numbers(axis, "ahead", value, 1))
    if key == "on":
        return axis._replace(on=_kinds(axis, value))
    if key in ("micro", "chunks"):
        number = _number(value, 1)
        if number > _MOST:
            raise ValueError(f"{key} is {number}; it is at most {_MOST}")
        return axis._replace(micro=number) if key == "micro" else axis._replace(chunks=number)
    near = difflib.get_close_matches(key, _ATTRIBUTES, 1)
    meant = f" (did you mean {near[0]}?)" if near else ""
    raise ValueError(
        f'no attribute "{key}"{meant}; there are shares, such as 3/1, and'
        f" {', '.join(_ATTRIBUTES)}"
    )


def _numbers(axis: Axis, what: str, text: str, least: int) -> Tuple[int, ...]:
    """The numbers of a list, one for each position of the axis, none below `least`."""
    numbers = tuple(_number(part, least) for part in text.split("/"))
    if len(numbers) != axis.size:
        raise ValueError(
            f"{what} are {len(numbers)} numbers, and the axis has {axis.size} positions"
        )
    if not max(numbers):
        raise ValueError(f"{what} are all 0")
    if max(numbers) > _MOST:
        raise ValueError(f"{what} have {max(numbers)}; each is at most {_MOST}")
    return numbers


def _kinds(axis: Axis, text: str) -> Tuple[str, ...]:
    """The kinds of hosts of a list, one for each position of the axis."""
    kinds = tuple(kind.strip() for kind in text.split("/"))
    for kind in kinds:
        if not _KIND.fullmatch(kind):
            raise ValueError(
                f'"{kind}" names no kind of host: that is up to 64 letters, digits, and . _ -'
            )
    if len(kinds) != axis.size:
        raise ValueError(
            f"on are {len(kinds)} kinds of hosts, and the axis has {axis.size} positions"
        )
    return kinds


def _number(text: str, least: int) -> int:
    """The number of a text, which is not below `least`."""
    text = text.strip()
    if not re.fullmatch(r"[0-9]+", text) or not least <= int(text) <= 1 << 48:
        raise ValueError(f'"{text}" is not a whole number from {least} on')
    return int(text)
