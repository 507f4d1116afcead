#!/usr/bin/env python3
"""Reshards the same state with shoal, with torch's distributed checkpoint and with the library
safetensors, compares the results bit by bit, and prints a table.

    make build && scripts/setup torch2
    .venv-torch2/bin/python bench/state/reshard.py [--dir /dev/shm] [--gb 1] [--runs 5]

torch reshards as its manual says: as many processes as there are new ranks, in a gloo group, load
the checkpoint into DTensors with the new shards, and save them. safetensors: each of these
processes reads the slices that are its shards, and writes a file. The programs take turns. shoal is
timed from outside, with its start, and verifies what it has written; the others are timed from a
barrier to a barrier, without start, imports and the memory of the shards, and do not.
"""

import argparse
import os
import pathlib
import shutil
import statistics
import subprocess
import sys
import tempfile
import threading
import time

from peers import MAKE, SHOAL, remove, seconds_of

RANK = pathlib.Path(__file__).with_name("reshard_rank.py")
LAYOUT = (
    '{{shoal: layout/1, mesh: rank={ranks}, rules: [{{match: "**", place:'
    ' "rank=shard({dim},ceil)"}}]}}\n'
)

# Old and new ranks, each with the dimension in which tensors are cut; no old ranks are one file of
# safetensors.
CASES = [
    ("dcp, FSDP 4 → 2", (4, 0), (2, 0)),
    ("dcp, FSDP 2 → 4", (2, 0), (4, 0)),
    ("dcp, tp 2 → 4", (2, 1), (4, 1)),
    ("dcp, FSDP 4 → tp 4", (4, 0), (4, 1)),
    ("safetensors, 1 → FSDP 4", None, (4, 0)),
    ("safetensors, 1 → tp 4", None, (4, 1)),
]

# Fails unless the checkpoints argv[2:] hold the tensors of the file argv[1], in the same shards.
SAME_DCP = """
import sys, torch
import torch.distributed.checkpoint as dcp
from safetensors.torch import load_file
want, cuts = load_file(sys.argv[1]), []
for path in sys.argv[2:]:
    state = {name: torch.ones_like(t) for name, t in want.items()}
    dcp.load(state, checkpoint_id=path, no_dist=True)
    for name, t in want.items():
        assert torch.equal(state[name].view(torch.uint8), t.view(torch.uint8)), (path, name)
    metadata = dcp.FileSystemReader(path).read_metadata().state_dict_metadata
    cuts.append({name: sorted((tuple(c.offsets), tuple(c.sizes)) for c in t.chunks)
                 for name, t in metadata.items()})
assert all(c == cuts[0] for c in cuts)
"""

# Fails unless the folders argv[1] and argv[2] have the same files with the same tensors.
SAME_FILES = """
import pathlib, sys, torch
from safetensors.torch import load_file
a, b = (sorted(pathlib.Path(x).glob("*.safetensors")) for x in sys.argv[1:])
assert a and [x.name for x in a] == [x.name for x in b], (a, b)
for x, y in zip(a, b):
    x, y = load_file(x), load_file(y)
    assert x.keys() == y.keys()
    for name in x:
        bits = [t[name].view(torch.uint8) for t in (x, y)]
        assert x[name].dtype == y[name].dtype and torch.equal(*bits), name
"""


def main():
    """Measures every case, and prints the table."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--dir", default="/dev/shm")
    parser.add_argument("--gb", default="1")
    parser.add_argument("--runs", type=int, default=5, help="turns that count")
    options = parser.parse_args()
    folder = pathlib.Path(tempfile.mkdtemp(dir=options.dir))
    try:
        run_python(MAKE, folder, options.gb)
        shutil.rmtree(folder / "dcp")
        (folder / "state.pt").unlink()
        print(
            "| reshard | shoal | torch, safetensors | of this, load + save | ratio | same bits"
            " |\n|---|---|---|---|---|---|"
        )
        for name, old, new in CASES:
            print(measure_row(folder, name, old, new, options.runs), flush=True)
    finally:
        shutil.rmtree(folder)


def measure_row(folder, name, old, new, runs):
    """Reshards with both programs in turn, from the ranks old to the ranks new, as in CASES, so
    many times; returns a row of the table. `folder` has the state, and gets all files. Exits where
    the results differ.
    """
    state, src, a, b = (folder / x for x in ("state.safetensors", "src", "ours", "theirs"))
    remove(src)
    if old:
        run_ranks(folder, "save", state, src, old)
    layout = folder / "layout.yaml"
    layout.write_text(LAYOUT.format(ranks=new[0], dim=new[1]))
    ours, parts = [], []
    while len(parts) < runs:
        remove(a)
        remove(b)
        if not old:
            b.mkdir()
        with StallWatch() as pulse:
            x = seconds_of(
                [
                    SHOAL,
                    "state",
                    "reshard",
                    src if old else state,
                    a,
                    "--layout",
                    layout,
                    "--format",
                    "dcp" if old else "ranks",
                ]
            )
            y = run_ranks(folder, "reshard" if old else "slice", src if old else state, b, new)
        print(
            f"{name}: {x:.2f} s, {sum(y):.2f}"
            f" s{'' if pulse.steady else ', made again: this process was stopped meanwhile'}",
            file=sys.stderr,
        )
        if pulse.steady:
            ours.append(x)
            parts.append(y)
    theirs = [sum(p) for p in parts]
    run_python(*((SAME_DCP, state, a, b) if old else (SAME_FILES, a, b)))
    load, save = (statistics.median(x) for x in zip(*parts))
    ratios = [y / x for x, y in zip(ours, theirs)]
    return (
        f"| {name} | {spread(ours, 's')} | {spread(theirs, 's')} | {load:.2f} + {save:.2f} s |"
        f" {spread(ratios, '×')} | yes |"
    )


class StallWatch:
    """Tells whether this process ran all the time: a turn in which somebody had stopped it says
    nothing, and is made again.
    """

    def __enter__(self):
        """Starts the thread. `steady` counts after the end of the with statement."""
        self.steady, self.over = True, threading.Event()
        self.thread = threading.Thread(target=self.watch)
        self.thread.start()
        return self

    def __exit__(self, *_):
        """Ends the thread, and waits for it."""
        self.over.set()
        self.thread.join()

    def watch(self):
        """Notes on a thread of its own when this process did not run for half a second."""
        last = time.monotonic()
        while not self.over.wait(0.05):
            now = time.monotonic()
            self.steady = self.steady and now - last < 0.5
            last = now
        self.steady = self.steady and time.monotonic() - last < 0.5


def run_ranks(folder, what, src, dst, cut):
    """Runs reshard_rank.py in as many processes as `cut` has ranks, which is a pair of the ranks
    and the dimension; waits for them, and returns the numbers that rank 0 has printed, seconds.
    Exits if one fails.
    """
    size, dim = cut
    meet = folder / "rendezvous"
    meet.unlink(missing_ok=True)
    started = [
        subprocess.Popen(
            [sys.executable, "-W", "ignore", RANK, what, src, dst, str(dim)],
            env={
                **os.environ,
                "RANK": str(r),
                "WORLD_SIZE": str(size),
                "RENDEZVOUS": str(meet),
                "OMP_NUM_THREADS": "1",
            },
            stdout=subprocess.PIPE,
            text=True,
        )
        for r in range(size)
    ]
    out = [p.communicate()[0] for p in started]
    if any(p.returncode for p in started):
        sys.exit(f"reshard.py: {what} of {src} failed; its own message is above")
    return [float(x) for x in out[0].split()]


def run_python(code, *args):
    """Runs a program in a Python of its own; raises CalledProcessError if it fails."""
    subprocess.run([sys.executable, "-W", "ignore", "-c", code, *args], check=True)


def spread(values, unit):
    """Returns the median, the smallest and the largest value, with a unit."""
    space = " " if unit == "s" else ""
    return f"{statistics.median(values):.2f}{space}{unit} ({min(values):.2f}..{max(values):.2f})"


if __name__ == "__main__":
    main()
