"""The leaves of a state, which are its arrays and values, and where the values go: numbers, texts,
and lists, tuples and dicts of these, such as the groups of an optimizer.

A checkpoint has the values in values.pt, which torch.load reads too, under the paths that `shoal
state ls --values` shows. Any thread may call the functions; only `write_values` and
`replace_values` block, for files.
"""

from __future__ import annotations

import base64
import json
import math
import os
import struct
import zipfile
from typing import Any, Dict, Iterable, Iterator, List, Mapping, MutableMapping, NamedTuple, Tuple

from .._runtime.tree import Item, flatten, unflatten
from ..errors import ShoalError
from .parts import run_shoal

FILE = "values.pt"


class Leaf(NamedTuple):
    """An array or a value of a state, and the container and key that it has there."""

    name: str  # the keys to it, joined by dots
    value: Any
    holder: Any  # the user's dict or list that has it
    key: Any  # its key or index there


def is_array(value: Any) -> bool:
    """Whether a value is an array: it has a shape and a type of elements."""
    return hasattr(value, "shape") and hasattr(value, "dtype")


def leaves(prefix: str, state: Any) -> Iterator[Leaf]:
    """The arrays and values of a state, with keys joined by dots. A list is one value unless it has
    a dict or an array in it. `prefix`, which is empty or ends with a dot, begins each name.
    """
    for key, value in state.items() if isinstance(state, Mapping) else enumerate(state):
        if _is_nested(value):
            yield from leaves(f"{prefix}{key}.", value)
        else:
            yield Leaf(f"{prefix}{key}", value, state, key)


def _is_nested(value: Any) -> bool:
    """Whether the parts of a value are leaves, and not the value itself."""
    if isinstance(value, Mapping):
        return bool(value)
    return isinstance(value, (list, tuple)) and any(
        is_array(x) or isinstance(x, Mapping) or _is_nested(x) for x in value
    )


def plan_value(leaf: Leaf) -> Any:
    """The plan of a value, which is JSON. Raises TypeError for an object of another kind."""
    items: List[Item] = []
    try:
        return flatten(leaf.name, {} if isinstance(leaf.value, Mapping) else leaf.value, items)
    except TypeError:
        kind = type(leaf.value).__name__
        raise TypeError(
            f"{leaf.name} is a {kind}: a state has arrays, and numbers, texts, None, and lists,"
            " tuples and dicts of these; leave it out"
        ) from None


def merge_plans(everyone: Iterable[Mapping[str, Any]]) -> Dict[str, Any]:
    """The values of all workers, by name, from the plans of each. Raises ValueError where workers
    differ.
    """
    plans: Dict[str, Any] = {}
    for one in everyone:
        for name, value in one.items():
            if plans.setdefault(name, value) != value:
                here, there = (unflatten(plan, []) for plan in (value, plans[name]))
                raise ValueError(
                    f"{name} is {here!r} on one worker and {there!r} on another: a value is alike"
                    " on all that have it"
                )
    return {name: unflatten(value, []) for name, value in plans.items()}


def write_values(folder: str, values: Mapping[str, Any]) -> None:
    """Write values, of the kinds of `unflatten`, durably into a folder, as torch.save writes a
    dict.
    """
    path = os.path.join(folder, FILE)
    with zipfile.ZipFile(path, "w") as archive:
        for name, text in [
            ("data.pkl", b"\x80\x02" + _pickle(dict(values)) + b"."),
            ("byteorder", b"little"),
            ("version", b"3\n"),
        ]:
            archive.writestr(zipfile.ZipInfo(f"archive/{name}"), text)
    with open(path, "rb") as file:
        os.fsync(file.fileno())


def _pickle(value: Any) -> bytes:
    """The pickle instructions (protocol 2) of a value, which comes from `unflatten`."""
    if value is None or isinstance(value, bool):
        return {None: b"N", True: b"\x88", False: b"\x89"}[value]
    if isinstance(value, int):
        text = value.to_bytes(value.bit_length() // 8 + 1, "little", signed=True)
        return b"\x8b" + struct.pack("<i", len(text)) + text
    if isinstance(value, float):
        return b"G" + struct.pack(">d", value)
    if isinstance(value, str):
        text = value.encode(errors="surrogatepass")
        return b"X" + struct.pack("<I", len(text)) + text
    if isinstance(value, bytes):
        return (
            b"c_codecs\nencode\n" + _pickle(value.decode("latin1")) + _pickle("latin1") + b"\x86R"
        )
    if isinstance(value, dict):
        return b"}(" + b"".join(_pickle(x) for pair in value.items() for x in pair) + b"u"
    inside = b"".join(map(_pickle, value))
    return b"(" + inside + b"t" if isinstance(value, tuple) else b"](" + inside + b"e"


def replace_values(wanted: List[Leaf], path: str) -> None:
    """Replace the values of a state, in the containers that the leaves name, which are the user's,
    by those of the checkpoint at `path`. Runs the `shoal` binary, and waits for it. Raises
    ShoalError for a missing value, before any is replaced.
    """
    if not wanted:
        return
    found: Dict[str, Any] = {}
    for line in run_shoal("state", "ls", "--json", "--values", path).splitlines():
        value = json.loads(line)
        found[value["value"]] = value["is"]
    for leaf in wanted:
        if leaf.name not in found and leaf.value == {}:
            raise ShoalError(
                f"{leaf.name} is empty here, and not in {path}: an optimizer has its state after"
                " its first step: make one step before"
            )
        if leaf.name not in found:
            raise ShoalError(
                f"value {leaf.name} is not in {path}; `shoal state ls --values` lists what is"
            )
        check_replaceable(leaf)
    for leaf in wanted:
        leaf.holder[leaf.key] = _with_type_of(leaf.value, found[leaf.name])


def check_replaceable(leaf: Leaf) -> None:
    """Raise ShoalError where a leaf stands in what cannot be changed."""
    if not isinstance(leaf.holder, (MutableMapping, list)):
        raise ShoalError(
            f"value {leaf.name} stands in a {type(leaf.holder).__name__}, which cannot be"
            " changed: make it a list or a dict"
        )


def _with_type_of(before: Any, value: Any) -> Any:
    """A value from JSON, of the type of `before`, which it replaces, where JSON has none of its
    own.
    """
    if isinstance(before, bool) or value is None:
        return value
    if isinstance(before, float) and isinstance(value, (int, float, str)):
        return _parse_float(value)
    if isinstance(before, int) and isinstance(value, str):
        return int(value)  # more than JSON's numbers are good for
    if isinstance(before, (bytes, bytearray)) and isinstance(value, str):
        return type(before)(base64.b64decode(value))
    if isinstance(before, (list, tuple)) and isinstance(value, list):
        same: Iterable[Tuple[Any, Any]] = zip(value, value)
        if len(before) == len(value):
            same = zip(before, value)
        elif len(set(map(type, before))) == 1:  # as a list of losses that has grown
            same = ((before[0], new) for new in value)
        return (
            type(before)(_with_type_of(a, b) for a, b in same)
            if type(before) in (list, tuple)
            else [_with_type_of(a, b) for a, b in same]
        )
    return value


def _parse_float(value: Any) -> float:
    """A float from a number, or from a text that stands for one."""
    return {"+Inf": math.inf, "-Inf": -math.inf, "NaN": math.nan}.get(value) or float(value)
