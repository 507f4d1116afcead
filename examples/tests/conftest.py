"""Lets the tests of the examples import torch_world, as pytest loads this before them."""

import pathlib
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "python/tests"))
