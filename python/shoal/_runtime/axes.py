"""The text of a mesh: axes with their degrees, and what a plan says of the positions on them."""

from __future__ import annotations

import difflib
import re
from typing import List, NamedTuple, Optional, Tuple

from .arguments import wrong_type

_AXIS = re.compile(r"\s*([a-z][a-z0-9_]*)\s*=\s*([0-9]+)\s*")
_ATTRIBUTES = ("micro", "ahead", "chunks")
_MOST = 1 << 30  # of each number of an attribute, as layout.ParseMesh has it


class Axis(NamedTuple):
    """An axis of a mesh. docs/formats/layout.md says what its attributes mean."""

    name: str
    size: int
    shares: Optional[Tuple[int, ...]] = None  # one for each position
    micro: Optional[int] = None
    ahead: Optional[Tuple[int, ...]] = None  # one for each position
    chunks: Optional[int] = None

    def __str__(self) -> str:
        """The text of the axis, in its normal form."""
        parts = [
            *(["/".join(map(str, self.shares))] if self.shares else []),
            *([f"micro={self.micro}"] if self.micro else []),
            *(["ahead=" + "/".join(map(str, self.ahead))] if self.ahead else []),
            *([f"chunks={self.chunks}"] if self.chunks else []),
        ]
        return f"{self.name}={self.size}" + (f"({';'.join(parts)})" if parts else "")


def parse_axes(text: str) -> List[Axis]:
    """The axes of a text such as dp=2,pp=2(8/6;micro=4). The empty text is one rank. Raises
    TypeError or ValueError for any other text, in the words of layout.ParseMesh in Go.
    """
    if not isinstance(text, str):
        raise wrong_type("mesh", text, "a text with the degree of each axis, as 'dp=2,tp=4'")
    axes: List[Axis] = []
    micro = ""
    try:
        for item in _split(text):
            axis = _parse_axis(item)
            if any(axis.name == other.name for other in axes):
                raise ValueError(f"axis {axis.name} comes twice")
            if axis.micro and micro:
                raise ValueError(f"{micro} and {axis.name} both have micro; a mesh has it once")
            micro = axis.name if axis.micro else micro
            axes.append(axis)
    except ValueError as e:
        raise ValueError(f"mesh {text!r}: {e}") from None
    return axes


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
    degree, called, inside = text.partition("(")
    found = _AXIS.fullmatch(degree)
    if not found or not int(found[2]):
        raise ValueError(
            f"{text!r} is not of the form axis=degree, such as tp=4, with a name in small letters"
            " and a degree of at least 1"
        )
    axis = Axis(found[1], int(found[2]))
    if not called:
        return axis
    inside = inside.strip()
    if not inside.endswith(")") or "(" in inside or ")" in inside[:-1]:
        raise ValueError(f"{text!r} does not end in one closing bracket")
    seen = set()
    try:
        for item in inside[:-1].split(";"):
            key, named, value = item.partition("=")
            key, value = (key.strip(), value) if named else ("", item)
            if key in seen:
                raise ValueError(f"{key or 'shares'} twice")
            seen.add(key)
            axis = _with_attribute(axis, key, value)
        if axis.shares and axis.chunks:
            raise ValueError("shares and chunks contradict each other: chunks are dealt alike")
        for stage, (before, held) in enumerate(zip(axis.ahead or (), (axis.ahead or ())[1:]), 1):
            if held > before:
                raise ValueError(
                    f"ahead={'/'.join(map(str, axis.ahead or ()))} must not ascend: stage {stage}"
                    " would wait for ever for micro-batches that the one before it holds back"
                )
    except ValueError as e:
        raise ValueError(f"axis {axis.name}: {e}") from None
    return axis


def _with_attribute(axis: Axis, key: str, value: str) -> Axis:
    """The axis with an attribute of this text; the key of shares is ""."""
    if key == "":
        return axis._replace(shares=_numbers(axis, "shares", value, 0))
    if key == "ahead":
        return axis._replace(ahead=_numbers(axis, "ahead", value, 1))
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


def _number(text: str, least: int) -> int:
    """The number of a text, which is not below `least`."""
    text = text.strip()
    if not re.fullmatch(r"[0-9]+", text) or int(text) < least:
        raise ValueError(f'"{text}" is not a whole number from {least} on')
    return int(text)
