"""Writes files as Megatron-LM's checkpoint format "torch" has them, with optimizers, and what the whole tensors are that were cut.

    .venv-torch2/bin/python format/megatron/testdata/optimizer.py format/megatron/testdata

The whole model, its copy in f32 and the moments are made first, and cut as Megatron cuts them: what a reader puts together must be them
again. Makes, of two tensor and two pipeline parallel ranks:

    mixed.zip        the mixed-precision optimizer: bf16, gate and up, heads of q, k and v in groups, tied embeddings, torch's AdamW
    swapped.zip      the same, the parameters of its groups in another order, and norms that differ
    alike.zip        the same in another order, with norms that are alike: nobody can tell which is which
    half.zip         the same in f16, with the scale of gradients and Apex's FusedAdam, which counts steps in the groups
    frozen.zip       the same in bf16 on one rank, and the norms and the embedding are not trained
    stages.zip       the same as mixed.zip, by a version that numbers groups as a rank meets them: of the first stage norms are not trained, and in the second they come first
    fp32.zip         the optimizer of f32: biases, no gate
    scaled.zip       the same on one rank, with groups that learn twice as fast: nobody can tell what is in them
    fewer.zip        the same, and a norm is not trained
    turned.zip       the same, in another order
    twice.zip        the same, and there are two optimizers alike
    distributed.zip  the distributed optimizer of bf16: flat buffers of padded parameters in buckets
    single.zip       the same on one model parallel rank, in one bucket
    beside.zip       common.pt, as it stands beside checkpoints of the format torch_dist, and one that asks for what is not known
    chained.zip      experts on two expert parallel ranks, each with an optimizer for what is no expert and one for experts
    together.zip     the same model on one rank, which has one optimizer
"""

import argparse
import collections
import io
import json
import pathlib
import sys
import zipfile

import torch

LAYERS, HIDDEN, HEADS, GROUPS, FFN, VOCAB = 4, 8, 4, 2, 6, 10


def cut(whole, how, tp, size):
    """The part of a tensor parallel rank."""
    if how == "rows":
        return whole.chunk(size, 0)[tp].clone()
    if how == "columns":
        return whole.chunk(size, 1)[tp].clone()
    if how == "halves":
        return torch.cat([half.chunk(size, 0)[tp] for half in whole.chunk(2, 0)])
    return whole.clone()


class Model:
    """The whole tensors of a model: what each is called in a stage, and how it is cut."""

    def __init__(self, seed, dtype, bias=False, gated=True, experts=0, pp=2, ones=True):
        self.ones = ones
        self.random, self.dtype, self.pp, self.stages = torch.Generator().manual_seed(seed), dtype, pp, [[] for _ in range(pp)]
        self.whole, self.state = {}, {}  # by the name in the whole model
        rows = (HEADS + 2 * GROUPS) * HIDDEN // HEADS
        self.add(0, "embedding.word_embeddings.weight", (VOCAB, HIDDEN), "rows")
        for layer in range(LAYERS):
            def add(name, shape, how, constant=None):
                self.add(layer * pp // LAYERS, f"decoder.layers.{layer}.{name}", shape, how, constant, layer % (LAYERS // pp))
            add("self_attention.linear_proj.weight", (HIDDEN, HIDDEN), "columns")
            if bias:
                add("self_attention.linear_proj.bias", (HIDDEN,), "whole", 0)
            add("self_attention.linear_qkv.layer_norm_weight", (HIDDEN,), "whole", 1)
            add("self_attention.linear_qkv.weight", (rows, HIDDEN), "rows")
            if bias:
                add("self_attention.linear_qkv.bias", (rows,), "rows")
            if experts:
                add("pre_mlp_layernorm.weight", (HIDDEN,), "whole", 1)
                add("mlp.router.weight", (experts, HIDDEN), "whole")
                for expert in range(experts):
                    add(f"mlp.experts.local_experts.{expert}.linear_fc1.weight", (2 * FFN, HIDDEN), "halves")
                    add(f"mlp.experts.local_experts.{expert}.linear_fc2.weight", (HIDDEN, FFN), "columns")
                    if bias and layer == 0:
                        add(f"mlp.experts.local_experts.{expert}.linear_fc2.bias", (HIDDEN,), "whole", 0)
                continue
            add("mlp.linear_fc1.layer_norm_weight", (HIDDEN,), "whole", 1)
            add("mlp.linear_fc1.weight", (2 * FFN if gated else FFN, HIDDEN), "halves" if gated else "rows")
            if bias:
                add("mlp.linear_fc1.bias", (FFN,), "rows", 0)
            add("mlp.linear_fc2.weight", (HIDDEN, FFN), "columns")
        self.add(pp - 1, "decoder.final_layernorm.weight", (HIDDEN,), "whole", 1)
        if pp > 1:  # tied: the last stage has the embedding too
            self.stages[-1].append(("embedding.word_embeddings.weight",) * 2 + ("rows",))

    def add(self, stage, name, shape, how, constant=None, layer=None):
        def random():
            return torch.randn(shape, generator=self.random)
        # What starts alike everywhere is still so when rounded; its copies in f32 have moved a little.
        main = random() if constant is None else constant + random() * 1e-4 * (constant != 0)
        if self.dtype == torch.float32 or not self.ones:
            main = random()
        self.whole[name] = main
        self.state[name] = {"exp_avg": random(), "exp_avg_sq": random().square()}
        local = name if layer is None else name.replace(f"layers.{name.split('.')[2]}.", f"layers.{layer}.", 1)
        self.stages[stage].append((name, local, how))


def args(tp, pp, ep, **more):
    return argparse.Namespace(tensor_model_parallel_size=tp, pipeline_model_parallel_size=pp, expert_model_parallel_size=ep, num_layers=LAYERS,
                              num_attention_heads=HEADS, group_query_attention=True, num_query_groups=GROUPS, **more)


class Files:
    def __init__(self):
        self.files, self.what = {}, {}

    def save(self, path, value):
        data = io.BytesIO()
        torch.save(value, data)
        self.files["iter_0000012/" + path] = data.getvalue()

    def expect(self, name, t):
        t = t.detach().contiguous()
        self.what[name] = [str(t.dtype), list(t.shape), bytes(t.reshape(-1).view(torch.uint8).tolist()).hex()]

    def write(self, path):
        self.files["latest_checkpointed_iteration.txt"] = b"12\n"
        self.files["what.json"] = json.dumps(self.what, indent=0).encode()
        with zipfile.ZipFile(path, "w") as z:
            for name, data in sorted(self.files.items()):
                z.writestr(zipfile.ZipInfo(name), data, zipfile.ZIP_DEFLATED)


def decays(name, t):
    return t.dim() != 1 and not name.endswith(".bias")


def groups(names, params, order=lambda names: names, **more):
    """Megatron's groups of parameters."""
    return [{"params": [params[n] for n in order([n for n in names if decays(n, params[n]) == decay])],
             "wd_mult": float(decay), "lr_mult": 1.0, "is_expert_parallel": False, "is_decoupled_lr": False, "lr": 1e-4, **more}
            for decay in (True, False)]


def adam(param_groups, states, step=True):
    """torch's AdamW with its state: numbers are given as torch gives them."""
    optimizer = torch.optim.AdamW(param_groups, betas=(0.9, 0.95))
    for group in optimizer.param_groups:
        if not step:
            group["step"] = 12
        for p in group["params"]:
            optimizer.state[p] = {**({"step": torch.tensor(12.0)} if step else {}), **states[id(p)]}
    return optimizer


def rank(model, stage, tp, size, rename=lambda name: name):
    """The parameters of a rank: names there, the model's, copies in f32, and state of these."""
    params, mains, states = collections.OrderedDict(), {}, {}
    for name, local, how in model.stages[stage]:
        if rename(local) is None:
            continue
        main = cut(model.whole[name], how, tp, size).requires_grad_()
        params[rename(local)], mains[rename(local)] = main.detach().to(model.dtype), main
        states[id(main)] = {kind: cut(t, how, tp, size) for kind, t in model.state[name].items()}
    return params, mains, states


def expect(files, model, step=True, frozen=()):
    for name, main in model.whole.items():
        files.expect("model." + name, main.to(model.dtype))
        if any(f in name for f in frozen):
            continue
        if model.dtype != torch.float32:
            files.expect("optimizer.fp32." + name, main)
        for kind, t in model.state[name].items():
            files.expect(f"optimizer.{kind}.{name}", t)
        if step:
            files.expect("optimizer.step." + name, torch.tensor(12.0))


def mixed(path, tp=2, pp=2, seed=1, dtype=torch.bfloat16, order=lambda names: names, step=True, ones=True, frozen=(), turn=()):
    files, model = Files(), Model(seed, dtype, pp=pp, ones=ones)
    for t in range(tp):
        for p in range(pp):
            params, mains, states = rank(model, p, t, tp)
            trained = [n for n in params if not any(f in n for f in frozen if p == 0 or not turn)]
            param_groups = [g for g in groups(trained, mains, order) if g["params"]]
            optimizer = adam(param_groups[::-1] if p in turn else param_groups, states, step)
            state = {"optimizer": optimizer.state_dict(), "fp32_from_fp16_params": [g["params"] for g in optimizer.param_groups]}
            if dtype == torch.float16:
                state["grad_scaler"] = {"scale": torch.tensor([4096.0]), "growth_tracker": 7, "hysteresis_tracker": 2}
            name = f"mp_rank_{t:02d}" + (f"_{p:03d}" if pp > 1 else "")
            files.save(name + "/model_optim_rng.pt", {"args": args(tp, pp, 1, swiglu=True), "iteration": 12, "model": params, "optimizer": state})
    if dtype == torch.float16:
        files.expect("optimizer.grad_scaler.scale", torch.tensor([4096.0]))
    expect(files, model, step, [f"layers.{i}.{f}" for i in range(2) for f in frozen] if turn else frozen)
    files.write(path)


def fp32(path):
    files, model = Files(), Model(3, torch.float32, bias=True, gated=False)
    for t in range(2):
        for p in range(2):
            params, mains, states = rank(model, p, t, 2)
            optimizer = adam(groups(list(params), mains), states, step=False)
            files.save(f"mp_rank_{t:02d}_{p:03d}/model_optim_rng.pt", {
                "args": args(2, 2, 1, swiglu=False), "iteration": 12, "model": params, "optimizer": optimizer.state_dict()})
    expect(files, model, step=False)
    files.write(path)


def refused(path, keep=lambda name: True, order=lambda names: names, times=1, **more):
    """The optimizer of f32 on one rank, of which nobody can tell what is what."""
    files, model = Files(), Model(8, torch.float32, bias=True, gated=False, pp=1)
    params, mains, states = rank(model, 0, 0, 1)
    optimizer = adam(groups([n for n in params if keep(n)], mains, order, **more), states, step=False).state_dict()
    files.save("mp_rank_00/model_optim_rng.pt", {
        "args": args(1, 1, 1, swiglu=False), "iteration": 12, "model": params, "optimizer": optimizer if times == 1 else [optimizer] * times})
    files.write(path)


def flat(names, tensors, bucket):
    """Megatron's coalesced buffer: parameters from the last to the first, padded in buckets of at least so many elements."""
    buffer, inside = [], []
    for name in reversed(names):
        inside += [0.0] * (-len(inside) % 64) + tensors[name].detach().reshape(-1).tolist()
        if len(inside) >= bucket:
            buffer, inside = buffer + inside, []
    return torch.tensor(buffer + inside)


def distributed(path, tp=2, pp=2, seed=4, bucket=150):
    files, model = Files(), Model(seed, torch.bfloat16, pp=pp)
    for t in range(tp):
        for p in range(pp):
            params, mains, states = rank(model, p, t, tp)
            moments = {kind: {n: states[id(mains[n])][kind] for n in params} for kind in ("exp_avg", "exp_avg_sq")}
            buffers = {kind: flat(list(params), tensors, bucket) for kind, tensors in (("param", mains), *moments.items())}
            inner = [{k: v for k, v in g.items() if k != "params"} for g in groups(list(params), mains, step=12)]
            name = f"mp_rank_{t:02d}" + (f"_{p:03d}" if pp > 1 else "")
            files.save(name + "/model_optim_rng.pt", {
                "args": args(tp, pp, 1, swiglu=True), "iteration": 12, "model": params, "optimizer": {"optimizer": {"param_groups": inner}}})
            files.save(name + "/distrib_optim.pt", {
                "buckets_coalesced": True, 0: {(torch.bfloat16, torch.float32): {**buffers, "numel_unpadded": len(buffers["param"])}}})
    expect(files, model, step=False)
    files.write(path)


def chained(path, ranks=2):
    files, model = Files(), Model(5, torch.bfloat16, bias=True, experts=4, pp=1)
    for ep in range(ranks):
        def rename(name):
            if "local_experts" not in name:
                return name
            words = name.split(".")
            expert, each = int(words[words.index("local_experts") + 1]), 4 // ranks
            words[words.index("local_experts") + 1] = str(expert % each)
            return ".".join(words) if expert // each == ep else None
        params, mains, states = rank(model, 0, 0, 1, rename)
        chain = []
        for expert in (False, True) if ranks > 1 else (False,):
            names = [n for n in params if ranks == 1 or ("experts" in n) == expert]
            param_groups = [{**g, "is_expert_parallel": expert} for g in groups(names, mains) if g["params"]]
            optimizer = adam(param_groups, states)
            chain.append({"optimizer": optimizer.state_dict(), "fp32_from_fp16_params": [g["params"] for g in optimizer.param_groups]})
        files.save("mp_rank_00" + (f"_{ep:03d}" if ranks > 1 else "") + "/model_optim_rng.pt", {
            "args": args(1, 1, ranks, swiglu=True), "iteration": 12, "model": params, "optimizer": chain if ranks > 1 else chain[0]})
    expect(files, model)
    files.write(path)


class Unknown:
    """What no reader knows."""


def beside(path):
    """What Megatron-Core keeps beside a checkpoint of its format torch_dist."""
    files = Files()
    state = {"args": args(2, 2, 1), "iteration": 7, "optimizer": {"param_groups": [{"lr": 1e-4}]}, "state": io.BytesIO(b"bytes")}
    for name, value in (("common.pt", state), ("unknown.pt", {"what": Unknown()})):
        files.save(name, value)
        files.files[name] = files.files.pop("iter_0000012/" + name)
    files.write(path)


if __name__ == "__main__":
    folder = pathlib.Path(sys.argv[1])
    mixed(folder / "mixed.zip")
    mixed(folder / "swapped.zip", order=lambda names: names[::-1], ones=False)
    mixed(folder / "alike.zip", order=lambda names: names[::-1])
    mixed(folder / "half.zip", seed=2, dtype=torch.float16, step=False)
    mixed(folder / "frozen.zip", tp=1, pp=1, seed=6, frozen=("norm", "embedding"))
    mixed(folder / "stages.zip", seed=9, ones=False, frozen=("mlp.linear_fc1.layer_norm_weight", "self_attention.linear_qkv.layer_norm_weight"), turn=(1,))
    fp32(folder / "fp32.zip")
    refused(folder / "scaled.zip", lr_mult=2.0)
    refused(folder / "fewer.zip", keep=lambda name: name != "decoder.final_layernorm.weight")
    refused(folder / "turned.zip", order=lambda names: names[::-1])
    refused(folder / "twice.zip", times=2)
    distributed(folder / "distributed.zip")
    distributed(folder / "single.zip", tp=1, pp=1, seed=7, bucket=1 << 20)
    chained(folder / "chained.zip")
    chained(folder / "together.zip", ranks=1)
    beside(folder / "beside.zip")
