#!/usr/bin/env python3
"""Converts the same state with shoal, with torch's own tools and with the library safetensors,
compares the results bit by bit, and prints a table.

    make build && scripts/setup torch2
    .venv-torch2/bin/python bench/state/peers.py [--dir /dev/shm] [--gb 1]

Each figure is the median of three runs, each a process of its own; of theirs, start and imports are
not counted. shoal verifies what it has written; the others do not.
"""

import argparse
import os
import pathlib
import shutil
import statistics
import subprocess
import sys
import tempfile
import time

ROOT = pathlib.Path(__file__).resolve().parents[2]
SHOAL = ROOT / "bin/shoal"

MAKE = """
import sys, torch
import torch.distributed.checkpoint as dcp
from safetensors.torch import save_file
torch.manual_seed(1)
n = int(float(sys.argv[2]) * 1e9 / 14 / 4096 / 8)
state = {}
for i in range(8):
    state[f"layers.{i}.w"] = torch.randn(n, 4096).bfloat16()
    for kind in ("master", "exp_avg", "exp_avg_sq"):
        state[f"optimizer.{kind}.layers.{i}.w"] = torch.randn(n, 4096)
torch.save(state, sys.argv[1] + "/state.pt")
save_file(state, sys.argv[1] + "/state.safetensors")
dcp.save(state, checkpoint_id=sys.argv[1] + "/dcp", no_dist=True)
"""

# Each reads argv[1], writes argv[2], and prints how long that took without the imports.
THEIRS = {
    (
        "dcp",
        "pt",
    ): "from torch.distributed.checkpoint.format_utils import dcp_to_torch_save as convert",
    (
        "pt",
        "dcp",
    ): "from torch.distributed.checkpoint.format_utils import torch_save_to_dcp as convert",
    ("pt", "safetensors"): (
        "import torch\nfrom safetensors.torch import save_file\ndef convert(src, dst):"
        " save_file(torch.load(src, mmap=True), dst)"
    ),
    ("safetensors", "pt"): (
        "import torch\nfrom safetensors.torch import load_file\ndef convert(src, dst):"
        " torch.save(load_file(src), dst)"
    ),
}
FORMATS = {"safetensors": "hf"}  # as shoal calls them


def main():
    """Measures every conversion, and prints the table."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--dir", default="/dev/shm")
    parser.add_argument("--gb", default="1")
    options = parser.parse_args()
    folder = pathlib.Path(tempfile.mkdtemp(dir=options.dir))
    try:
        subprocess.run([sys.executable, "-W", "ignore", "-c", MAKE, folder, options.gb], check=True)
        source = {
            "pt": folder / "state.pt",
            "dcp": folder / "dcp",
            "safetensors": folder / "state.safetensors",
        }
        print(
            "| conversion | shoal | torch, safetensors | ratio | same bits |\n|---|---|---|---|---|"
        )
        for (before, after), code in THEIRS.items():
            ours, theirs = [], []
            for i in range(3):
                a, b = folder / f"ours.{after}", folder / f"theirs.{after}"
                for path in (a, b):
                    remove(path)
                ours.append(
                    seconds_of(
                        [
                            SHOAL,
                            "state",
                            "convert",
                            source[before],
                            a,
                            "--format",
                            FORMATS.get(after, after),
                        ]
                    )
                )
                script = (
                    f"import sys, time, warnings\nwarnings.simplefilter('ignore')\n{code}\nt ="
                    " time.time()\nconvert(sys.argv[1], sys.argv[2])\nprint(time.time() - t)"
                )
                out = subprocess.run(
                    [sys.executable, "-c", script, source[before], b],
                    check=True,
                    stdout=subprocess.PIPE,
                    text=True,
                ).stdout
                theirs.append(float(out.split()[-1]))
            same = (
                subprocess.run([SHOAL, "state", "diff", a, b], stdout=subprocess.DEVNULL).returncode
                == 0
            )
            x, y = statistics.median(ours), statistics.median(theirs)
            print(
                f"| {before} to {after} | {x:.2f} s | {y:.2f} s | {y / x:.2f}× |"
                f" {'yes' if same else 'no'} |",
                flush=True,
            )
    finally:
        shutil.rmtree(folder)


def seconds_of(command):
    """Runs a command, which must succeed, and returns the seconds that it takes."""
    started = time.time()
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    return time.time() - started


def remove(path):
    """Removes a file or a folder, if it is there."""
    if path.is_dir():
        shutil.rmtree(path)
    elif path.exists():
        os.remove(path)


if __name__ == "__main__":
    main()
