"""Writes files as Megatron-LM's checkpoint format "torch" has them, and what is in them.

    .venv-torch2/bin/python format/megatron/testdata/make.py format/megatron/testdata

Makes tp2pp2.zip (two tensor and two pipeline parallel ranks, tied embeddings), virtual.zip (two pipeline ranks with two
chunks each) and experts.zip (two expert parallel ranks). Megatron itself needs a GPU; the structure is that of its
generate_state_dict, and a stand-in for its modules makes the pickles name its classes.
"""

import argparse
import collections
import enum
import io
import json
import pathlib
import random
import sys
import types
import zipfile

import numpy
import torch


def module(name):
    sys.modules[name] = types.ModuleType(name)
    parent, _, child = name.rpartition(".")
    if parent:
        if parent not in sys.modules:
            module(parent)
        setattr(sys.modules[parent], child, sys.modules[name])
    return sys.modules[name]


enums = module("megatron.core.transformer.enums")
enums.AttnBackend = enum.Enum("AttnBackend", {"flash": 1, "auto": 5}, module="megatron.core.transformer.enums")


def args(tp, pp, ep):
    return argparse.Namespace(
        tensor_model_parallel_size=tp, pipeline_model_parallel_size=pp, expert_model_parallel_size=ep, num_layers=4, hidden_size=4,
        params_dtype=torch.bfloat16, attention_backend=enums.AttnBackend.auto, lr=1e-4, betas=(0.9, 0.95), data_path=["a", "b"], seed=None)


class Writer:
    """Collects the files of the ranks and what is in them."""

    def __init__(self):
        self.files, self.what, self.next = {}, {}, 0

    def tensor(self, *shape, dtype=torch.bfloat16):
        size = torch.Size(shape).numel() * torch.empty(0, dtype=dtype).element_size()
        raw = torch.arange(self.next, self.next + size).remainder(251).to(torch.uint8)
        self.next += size
        return raw.view(dtype).reshape(shape)

    def expect(self, name, place, t):
        key = f"{name} {place}" if place else name
        assert key not in self.what, key
        self.what[key] = [str(t.dtype), list(t.shape), bytes(t.contiguous().reshape(-1).view(torch.uint8).tolist()).hex()]

    def rank(self, folder, shown, place, **models):
        """One rank: shown maps each of its models' names to the one in the whole model and the place there."""
        state = {"args": shown.pop("args"), "checkpoint_version": 3.0, "iteration": 12, **models}
        moment = self.tensor(3, dtype=torch.float32)
        self.expect("optimizer.optimizer.state.0.exp_avg", place, moment)
        master = self.tensor(2, dtype=torch.float32)
        self.expect("optimizer.fp32_from_fp16_params.0.0", place, master)
        state["optimizer"] = {"optimizer": {"state": {0: {"exp_avg": moment}}, "param_groups": [{"lr": 1e-4, "params": [0]}]},
                              "fp32_from_fp16_params": [[master]], "grad_scaler": None}
        generator = self.tensor(8, dtype=torch.uint8)
        self.expect("rng_state.0.torch_rng_state", place, generator)
        state["rng_state"] = [{"torch_rng_state": generator, "rng_tracker_states": {}}]
        if folder == "mp_rank_00_000":  # these are large
            state["rng_state"][0] |= {"random_rng_state": random.Random(1).getstate(), "np_rng_state": numpy.random.RandomState(1).get_state()}
        for model in models:
            for name, t in models[model].items():
                if (model, name) in shown:
                    self.expect(*shown[model, name], t)
        data = io.BytesIO()
        torch.save(state, data)
        self.files[f"iter_0000012/{folder}/model_optim_rng.pt"] = data.getvalue()

    def write(self, path):
        self.files["latest_checkpointed_iteration.txt"] = b"12\n"
        self.files["what.json"] = json.dumps(self.what, indent=0).encode()
        with zipfile.ZipFile(path, "w") as z:
            for name, data in sorted(self.files.items()):
                z.writestr(zipfile.ZipInfo(name), data, zipfile.ZIP_DEFLATED)


def tp2pp2(path):
    w = Writer()
    for tp in range(2):
        for pp in range(2):
            model, shown, at = collections.OrderedDict(), {"args": args(2, 2, 1)}, f"tp={tp}/2"
            both = f"pp={pp}/2,{at}"
            for i in range(2):
                for name, shape in (("self_attention.linear_qkv.weight", (3, 4)), ("input_layernorm.weight", (4,))):
                    key = f"decoder.layers.{i}.{name}"
                    model[key] = w.tensor(*shape)
                    shown["model", key] = f"model.decoder.layers.{2 * pp + i}.{name}", at
            model["embedding.word_embeddings.weight"] = w.tensor(5, 4)
            shown["model", "embedding.word_embeddings.weight"] = "model.embedding.word_embeddings.weight", both
            if pp == 1:
                model["decoder.final_layernorm.weight"] = w.tensor(4)
                shown["model", "decoder.final_layernorm.weight"] = "model.decoder.final_layernorm.weight", at
            model["decoder._extra_state"] = None
            w.rank(f"mp_rank_{tp:02d}_{pp:03d}", shown, both, model=model)
    w.write(path / "tp2pp2.zip")


def virtual(path):
    w = Writer()
    for pp in range(2):
        models, shown = {}, {"args": args(1, 2, 1)}
        for chunk in range(2):
            name = f"decoder.layers.0.mlp.linear_fc1.weight"
            models[f"model{chunk}"] = {name: w.tensor(2, 3)}
            shown[f"model{chunk}", name] = f"model.decoder.layers.{2 * chunk + pp}.mlp.linear_fc1.weight", ""
        w.rank(f"mp_rank_00_{pp:03d}", shown, f"pp={pp}/2", **models)
    w.write(path / "virtual.zip")


def experts(path):
    w, norm = Writer(), None
    for ep in range(2):
        model, shown = {}, {"args": args(1, 1, 2)}
        norm = w.tensor(4) if norm is None else norm
        model["decoder.layers.0.input_layernorm.weight"] = norm
        if ep == 0:
            shown["model", "decoder.layers.0.input_layernorm.weight"] = "model.decoder.layers.0.input_layernorm.weight", ""
        for i in range(2):
            name = "decoder.layers.0.mlp.experts.local_experts.%d.linear_fc1.weight"
            model[name % i] = w.tensor(2, 4)
            shown["model", name % i] = "model." + name % (2 * ep + i), ""
        model["decoder.layers.0.mlp.experts.weight1"] = w.tensor(2, 2)
        shown["model", "decoder.layers.0.mlp.experts.weight1"] = "model.decoder.layers.0.mlp.experts.weight1", f"ep={ep}/2"
        w.rank(f"mp_rank_00_{ep:03d}", shown, f"ep={ep}/2", model=model)
    w.write(path / "experts.zip")


for make in (tp2pp2, virtual, experts):
    make(pathlib.Path(sys.argv[1]))
