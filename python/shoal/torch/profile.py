"""Measures a chain of layers, and writes it down for shoal plan: docs/formats/model.md.

    python3 -m shoal.torch.profile gpt.py:chain --sample gpt.py:fetch --micro 1,2 -o gpt.model.json

Under `shoal run -n 2` two processes measure at the same time, as two workers of a host compute, and
the first one writes.
"""

from __future__ import annotations

import argparse
import datetime
import errno
import importlib
import importlib.util
import json
import os
import re
import statistics
import sys
import time
from typing import Any, Callable, Dict, List, Optional, Sequence

import torch

import shoal
from shoal.errors import ShoalError

from .chain.layers import Layers
from .chain.measure import Bench, Measured
from .chain.model import Chain

_MOST_THREADS = 1024  # torch crashes where it cannot have as many as it is asked for


class Refused(Exception):
    """Something is wrong with what the command line names; the text says what."""


def load_object(name: str, what: str) -> Any:
    """What a text such as gpt.py:chain or package.module:chain names: a file or a module, and what
    is in it. Raises Refused where there is none.
    """
    place, colon, path = name.rpartition(":")
    if not colon or not place or not path:
        raise Refused(f"{what} {name!r}: give a file or a module, a colon, and the name in it")
    try:
        if place.endswith(".py"):
            if not os.path.exists(place):
                raise Refused(f"{what} {name!r}: there is no file {place}")
            module = _load_file(place)
        else:
            sys.path.insert(0, os.getcwd())
            module = importlib.import_module(place)
    except (ImportError, SyntaxError) as e:
        raise Refused(f"{what} {name!r}: {e}") from e
    found = module
    for part in path.split("."):
        if not hasattr(found, part):
            raise Refused(f"{what} {name!r}: {place} has no {path}")
        found = getattr(found, part)
    return found


def _load_file(path: str) -> Any:
    """The module of a file; the same one for the same file."""
    path = os.path.abspath(path)
    name = os.path.splitext(os.path.basename(path))[0]
    known = sys.modules.get(name)
    if known is not None and getattr(known, "__file__", None) == path:
        return known
    sys.path.insert(0, os.path.dirname(path))
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module


def parse_sizes(text: str) -> List[int]:
    """The sizes of micro-batches that a text such as 1,2,4 lists, ascending."""
    parts = text.split(",")
    if not all(re.fullmatch(r"[0-9]{1,9}", p.strip()) and int(p) for p in parts):
        raise argparse.ArgumentTypeError(f"{text!r}: give whole numbers from 1 on, as in 1,2,4")
    return sorted({int(p) for p in parts})


def parse_kind(text: str) -> str:
    """The kind of device that a text names, as agents and clusters may call one."""
    if not re.fullmatch(r"[A-Za-z0-9._-]{1,64}", text):
        raise argparse.ArgumentTypeError(
            f"{text!r} names no kind of device: that is up to 64 letters, digits, and . _ -"
        )
    return text


def kind_of(device: torch.device) -> str:
    """The kind of a device, as agents name it: the name of the GPU, with hyphens, or cpu."""
    if device.type != "cuda":
        return device.type
    words = re.split(r"[^A-Za-z0-9._-]+", torch.cuda.get_device_name(device))
    return "-".join(filter(None, words))[:64]


def profile(
    chain: Chain,
    sample: Callable[[torch.Tensor], Any],
    micro: Sequence[int],
    *,
    device: torch.device,
    rounds: int,
    name: str,
    kind: str,
    report: Callable[[str], None],
) -> Dict[str, Any]:
    """Measure a chain with micro-batches of several sizes, and return it as model/1 has it. A size
    for which a GPU has too little memory is left out, of which `report` tells. All workers of a job
    measure at the same time. Raises ShoalError where the chain cannot be measured.
    """
    layers = Layers(chain.layers, chain.optimizer)
    bench = Bench(chain, layers, device)
    points, out_bytes = [], [0] * len(layers)
    for size in micro:
        shoal.join().barrier()
        began = time.monotonic()
        try:
            measured = bench.measure(sample(torch.arange(size)), rounds)
        except getattr(torch.cuda, "OutOfMemoryError", ()) as e:
            report(f"micro {size}: left out, for the device has too little memory: {e}")
            continue
        points.append(_point_entry(measured, size, kind, device))
        out_bytes = [max(o, -(-m.out // size)) for o, m in zip(out_bytes, measured)]
        total = sum(m.forward + m.backward for m in measured)
        report(
            f"micro {size}: {1e3 * total:.1f} ms forward and backward,"
            f" {time.monotonic() - began:.0f} s to measure"
        )
    if not points:
        raise ShoalError("no micro-batch fits into the memory of the device: give smaller ones")
    return {
        "shoal": "model/1",
        "name": name,
        "layers": [
            _layer_entry(layers, number, out_bytes[number]) for number in range(len(layers))
        ],
        "points": points,
        "source": f"measured on {datetime.date.today()}, by PyTorch {torch.__version__}",
    }


def _point_entry(
    measured: List[Measured], size: int, kind: str, device: torch.device
) -> Dict[str, Any]:
    """A point of the model: what all layers took with micro-batches of a size."""
    point: Dict[str, Any] = {"device": kind, "micro": size}
    if device.type == "cpu":
        point["threads"] = torch.get_num_threads()
    point["spread"] = _round_digits(statistics.median(m.spread for m in measured))
    point["layers"] = {
        f"layers.{number}": {
            "forward": _round_digits(m.forward),
            "backward": _round_digits(m.backward),
            "by_weights": _round_digits(m.by_weights),
            "update": _round_digits(m.update),
            "kept": m.kept,
        }
        for number, m in enumerate(measured)
    }
    return point


def _layer_entry(layers: Layers, number: int, out_bytes: int) -> Dict[str, Any]:
    """A layer of the model; `out_bytes` are the bytes that it gives for a sample."""
    mine = {n: w for n, w in layers.weights.items() if w.layer == number}
    params = sum(w.nbytes for w in mine.values() if w.trained)
    whole = sum(w.nbytes for w in mine.values())
    kept = sum(x.nbytes for n in mine for x in layers.state_entries.get(n, {}).values())
    return {
        "id": f"layers.{number}",
        "kind": type(layers.modules[number]).__name__,
        "params": params,
        "state": whole + params + kept,
        "out": out_bytes,
    }


def _round_digits(number: float) -> float:
    """A number with as many digits as a measurement has."""
    return float(f"{number:.4g}")


def check_writable(path: str) -> None:
    """Raise Refused where no file can be written there, before hours of measuring are lost."""
    beside = f"{path}.{os.getpid()}.tmp"
    try:
        if not path:
            raise OSError(errno.EINVAL, "it is empty; name a file")
        if os.path.isdir(path):
            raise IsADirectoryError(errno.EISDIR, "it is a folder; name a file in it")
        if os.path.islink(path) or os.path.exists(path) and not os.path.isfile(path):
            # A file would take its place.
            raise OSError(errno.EINVAL, "it is no regular file; name another one")
        with open(beside, "x", encoding="utf-8"):
            pass
        os.unlink(beside)
    except FileNotFoundError as e:
        folder = os.path.dirname(path)
        raise Refused(f"-o {path}: there is no folder {folder}: make it first") from e
    except OSError as e:
        raise Refused(f"-o {path}: {e.strerror}") from e


def check_not_program(path: str, objects: Sequence[str]) -> None:
    """Raise Refused where a file written there would replace one that the objects, given as to
    `load_object`, come from. They are loaded.
    """
    for name in objects:
        place = name.rpartition(":")[0]
        source = place if place.endswith(".py") else getattr(sys.modules[place], "__file__", None)
        if source and os.path.exists(path) and os.path.samefile(source, path):
            raise Refused(f"-o {path}: it is the file of {name}; name another one")


def write_model(path: str, model: Dict[str, Any]) -> None:
    """Write a model to a file: whole, or not at all. Raises Refused where that fails."""
    beside = f"{path}.{os.getpid()}.tmp"
    try:
        with open(beside, "w", encoding="utf-8") as file:
            json.dump(model, file, indent=1)
            file.write("\n")
        os.replace(beside, path)
    except OSError as e:
        raise Refused(f"-o {path}: {e.strerror}") from e
    finally:
        if os.path.exists(beside):
            os.unlink(beside)


def main(arguments: Optional[Sequence[str]] = None) -> int:
    """Do what the command line says; returns the exit code."""
    parser = argparse.ArgumentParser(
        prog="python3 -m shoal.torch.profile",
        description="Measures each layer of a chain by itself, and writes a model for shoal plan.",
        epilog="example: python3 -m shoal.torch.profile gpt.py:chain --sample gpt.py:fetch"
        " --micro 4,8 -o gpt.model.json",
    )
    parser.add_argument("chain", help="the chain, as gpt.py:chain or package.module:chain")
    parser.add_argument(
        "--sample",
        required=True,
        help="a function that gives samples by their numbers, as the fetch of chain.train",
    )
    parser.add_argument(
        "--micro", type=parse_sizes, default=[1, 2, 4, 8], help="sizes of micro-batches, as 1,2,4,8"
    )
    parser.add_argument("-o", required=True, dest="output", help="the file to write")
    parser.add_argument(
        "--device", help="where to measure, as cpu or cuda:1; a GPU, where there is one"
    )
    parser.add_argument(
        "--device-name",
        type=parse_kind,
        help="the kind of device as the cluster names it; the GPU's name, or cpu",
    )
    parser.add_argument(
        "--threads", type=int, help="threads of a processor, as many as a worker will have"
    )
    parser.add_argument("--rounds", type=int, default=7, help="how often to measure, at least 5")
    given = parser.parse_args(arguments)
    if given.rounds < 5:
        parser.error(f"--rounds {given.rounds}: quartiles need at least 5")
    if given.threads is not None:
        if not 1 <= given.threads <= _MOST_THREADS:
            parser.error(f"--threads {given.threads}: from 1 to {_MOST_THREADS}")
        torch.set_num_threads(given.threads)
    try:
        _run(given)
    except Refused as e:
        print(f"shoal.torch.profile: {e}", file=sys.stderr)
        return 2
    except (ShoalError, TypeError) as e:
        print(f"shoal.torch.profile: {given.chain}: {e}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("shoal.torch.profile: SIGINT: nothing is written", file=sys.stderr)
        return 130
    return 0


def _run(given: argparse.Namespace) -> None:
    """Measure and write what a command line asks for."""
    began = time.monotonic()
    try:
        device = torch.device(given.device or ("cuda" if torch.cuda.is_available() else "cpu"))
        torch.empty(0, device=device)
    except (RuntimeError, AssertionError) as e:
        raise Refused(f"--device {given.device}: {str(e).splitlines()[0]}") from e
    if device.type == "meta":
        raise Refused(f"--device {given.device}: nothing is computed there; give cpu or a GPU")
    if shoal.join().rank == 0:
        check_writable(given.output)
    chain, sample = load_object(given.chain, "the chain"), load_object(given.sample, "--sample")
    if not isinstance(chain, Chain):
        kind = type(chain).__name__
        raise Refused(f"{given.chain} is a {kind}, and no chain of shoal.torch.chain")
    if not callable(sample):
        raise Refused(f"--sample {given.sample} is a {type(sample).__name__}, and no function")
    check_not_program(given.output, [given.chain, given.sample])
    model = profile(
        chain,
        sample,
        given.micro,
        device=device,
        rounds=given.rounds,
        name=os.path.splitext(os.path.basename(given.chain.rpartition(":")[0]))[0],
        kind=given.device_name or kind_of(device),
        report=lambda line: print(line, file=sys.stderr, flush=True),
    )
    shoal.join().barrier()  # until then all compute
    if shoal.join().rank:
        return
    write_model(given.output, model)
    spread = 100 * statistics.median(p["spread"] for p in model["points"])
    layers, points = len(model["layers"]), len(model["points"])
    print(
        f"{layers} layer{'s' * (layers > 1)}, {points} size{'s' * (points > 1)} of micro-batches:"
        f" forward, backward by input and by weights, update; spread {spread:.0f} %,"
        f" {time.monotonic() - began:.0f} s"
    )


if __name__ == "__main__":
    sys.exit(main())
