"""KungFu, which no package has: it is measured where run.py is told a folder in which it was
built.
"""

from __future__ import annotations

import argparse
import pathlib

import turns

LAUNCHER, LIBRARY, HEADER = "bin/kungfu-run", "lib/libkungfu.so", "kungfu.h"
HEADERS = ("srcs/cpp/include", "include")  # where it was built, and where it was installed
NEEDS = f"{LAUNCHER}, {LIBRARY}, and {HEADER} with what it includes in {' or '.join(HEADERS)}"


def parse_folder(text: str) -> pathlib.Path:
    """The type of an argument: a folder with what is needed of KungFu; returns its absolute path.
    """
    path = pathlib.Path(text).resolve()
    if (
        not (path / LAUNCHER).is_file()
        or not (path / LIBRARY).is_file()
        or not any((path / place / HEADER).is_file() for place in HEADERS)
    ):
        raise argparse.ArgumentTypeError(f"KungFu is not in {text}: name a folder with {NEEDS}")
    return path


def compiler_words(path: pathlib.Path) -> tuple[str, ...]:
    """Returns how the measuring program is compiled against KungFu in this folder, in the form of
    SOURCES in run.py.
    """
    return (
        "g++",
        "allreduce_kungfu.cpp",
        "allreduce_kungfu",
        *(f"-I{path / place}" for place in HEADERS),
        f"-L{path / 'lib'}",
        "-lkungfu",
        f"-Wl,-rpath,{path / 'lib'}",
    )


def command(path: pathlib.Path, n: int, sizes: list[str]) -> list[str]:
    """Returns the command of KungFu's launcher for n processes and sizes in bytes, with its default
    strategy, which on one host is a star over Unix sockets.
    """
    return [
        str(path / LAUNCHER),
        "-q",
        "-logdir",
        str(turns.BUILD / "kungfu"),
        "-H",
        f"127.0.0.1:{n}",
        "-np",
        str(n),
        str(turns.BUILD / "allreduce_kungfu"),
        *sizes,
    ]
