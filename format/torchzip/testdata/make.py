"""Writes the files of this folder with the torch that runs it, and beside each what is in it, as JSON.

    .venv/bin/python format/torchzip/testdata/make.py format/torchzip/testdata/torch1.13
    .venv-torch2/bin/python format/torchzip/testdata/make.py format/torchzip/testdata/torch2.15
"""

import argparse
import json
import pathlib
import sys

import torch

OUT = pathlib.Path(sys.argv[1])
DTYPES = """float64 float32 float16 bfloat16 int64 int32 int16 int8 uint8 bool complex128 complex64
            uint16 uint32 uint64 float8_e5m2 float8_e4m3fn float8_e8m0fnu float8_e5m2fnuz float8_e4m3fnuz""".split()


def contents(value, path, found):
    """Add every tensor in value, nested dicts and lists, to the dict found, and return that.

    The key is the tensor's name: path, "" for the outermost value, and the keys and indices below
    it, joined by dots. The item is its element type, its shape and the bytes of its elements in
    hex, row-major.
    """
    if isinstance(value, torch.Tensor):
        packed = value.detach().clone(memory_format=torch.contiguous_format).reshape(-1)
        raw = bytes(packed.view(torch.uint8).tolist()) if packed.numel() else b""
        found[path] = [str(value.dtype), list(value.shape), raw.hex()]
    elif isinstance(value, dict):
        for key, item in value.items():
            contents(item, f"{path}.{key}" if path else str(key), found)
    elif isinstance(value, (list, tuple)):
        for i, item in enumerate(value):
            contents(item, f"{path}.{i}", found)
    return found


def save(name, value, **how):
    torch.save(value, OUT / f"{name}.pt", **how)
    (OUT / f"{name}.json").write_text(json.dumps(contents(value, "", {}), indent=0) + "\n")


def training():
    torch.manual_seed(7)
    model = torch.nn.Sequential(torch.nn.Linear(4, 3), torch.nn.Linear(3, 2, bias=False))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, betas=(0.9, 0.95))
    model(torch.rand(5, 4)).sum().backward()
    optimizer.step()
    return {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "step": 12}


def views():
    base = torch.arange(24, dtype=torch.float32).reshape(4, 6)
    return {
        "base": base, "t": base.t(), "cols": base[:, 2:5], "rows": base[1:3], "step": base[::2, ::3], "scalar": torch.tensor(2.5),
        "empty": torch.empty(0, 3), "expanded": torch.tensor([1.0, 2.0, 3.0]).expand(4, 3), "one": base[:, :1].t(),
        "perm": torch.arange(24).reshape(2, 3, 4).permute(2, 0, 1), "param": torch.nn.Parameter(base[0]),
        "list": [torch.ones(2), {"a": 1}], "nums": [1, 2.5, True, None], "none": None, "text": "é", "dtype": torch.bfloat16,
        "size": torch.Size([2, 3]), "device": torch.device("cpu"), "args": argparse.Namespace(tp=2, dtype=torch.float16), "big": 1 << 70,
    }


def types():
    found = {}
    for name in DTYPES:
        if dtype := getattr(torch, name, None):
            raw = torch.arange(6 * torch.empty(0, dtype=dtype).element_size(), dtype=torch.uint8)
            found[name] = (raw.remainder(2).bool() if name == "bool" else raw.view(dtype)).reshape(2, 3)
    return found


def lightning():
    """A checkpoint as Lightning 2.6 writes it, of a model whose first and last weights are tied."""
    torch.manual_seed(3)
    model = torch.nn.Sequential(torch.nn.Embedding(4, 2), torch.nn.Linear(2, 2), torch.nn.Linear(2, 4, bias=False))
    model[2].weight = model[0].weight
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    model(torch.arange(3)).sum().backward()
    optimizer.step()
    return {
        "epoch": 3, "global_step": 12, "pytorch-lightning_version": "2.6.0",
        "state_dict": {f"model.{name}": t for name, t in model.state_dict().items()}, "loops": {}, "callbacks": {},
        "optimizer_states": [optimizer.state_dict()], "lr_schedulers": [], "hyper_parameters": {"lr": 1e-3},
    }


OUT.mkdir(exist_ok=True)
save("training", training())
save("views", views())
save("types", types())
before16 = {"_use_new_zipfile_serialization": False}  # the form before torch 1.6
save("legacy-training", training(), **before16)
save("legacy-views", views(), **before16)
save("legacy-types", types(), **before16)
if hasattr(torch.serialization, "set_crc32_options"):
    save("lightning", lightning())
    torch.serialization.set_crc32_options(False)
    save("unsummed", {"w": torch.arange(6, dtype=torch.float32).reshape(2, 3), "step": 3})
