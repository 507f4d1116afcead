"""Writes checkpoints of torch's FSDP 2 with an optimizer, of two processes on the CPU, and what is in them.

    PYTHON format/dcp/testdata/make_fsdp.py format/dcp/testdata

PYTHON has a current torch. Makes flat.zip, whose groups are flattened, as torch's distributed checkpoint wants them: each hyperparameter under the name of each parameter; and listed.zip, with a list of
names for each group. The model has the names of a llama of Hugging Face, with two groups of parameters, and three steps of AdamW behind it. what.json in each has the tensors: for each
torch's name of its element type, the shape, and its bytes in hex.
"""

import json
import os
import pathlib
import subprocess
import sys
import tempfile
import zipfile

RANKS = 2
LAYERS, HIDDEN, HEADS, GROUPS, FFN, VOCAB = 2, 8, 4, 2, 6, 12


def show(t):
    import torch
    return [str(t.dtype), list(t.shape), bytes(t.detach().contiguous().reshape(-1).view(torch.uint8).tolist()).hex()]


def llama():
    import torch
    from torch import nn
    torch.manual_seed(7)

    def linear(rows, columns):
        return nn.Linear(columns, rows, bias=False)

    class Layer(nn.Module):
        def __init__(self):
            super().__init__()
            self.self_attn, self.mlp = nn.Module(), nn.Module()
            self.self_attn.q_proj, self.self_attn.k_proj = linear(HIDDEN, HIDDEN), linear(HIDDEN * GROUPS // HEADS, HIDDEN)
            self.self_attn.v_proj, self.self_attn.o_proj = linear(HIDDEN * GROUPS // HEADS, HIDDEN), linear(HIDDEN, HIDDEN)
            self.mlp.gate_proj, self.mlp.up_proj, self.mlp.down_proj = linear(FFN, HIDDEN), linear(FFN, HIDDEN), linear(HIDDEN, FFN)
            self.input_layernorm, self.post_attention_layernorm = nn.RMSNorm(HIDDEN), nn.RMSNorm(HIDDEN)

        def forward(self, x):
            y = self.input_layernorm(x)
            kv = torch.cat([self.self_attn.k_proj(y), self.self_attn.v_proj(y)], -1)
            x = x + self.self_attn.o_proj(self.self_attn.q_proj(y) * kv)
            y = self.post_attention_layernorm(x)
            return x + self.mlp.down_proj(self.mlp.gate_proj(y).sigmoid() * self.mlp.up_proj(y))

    class Llama(nn.Module):
        def __init__(self):
            super().__init__()
            self.model = nn.Module()
            self.model.embed_tokens = nn.Embedding(VOCAB, HIDDEN)
            self.model.layers = nn.ModuleList([Layer() for _ in range(LAYERS)])
            self.model.norm = nn.RMSNorm(HIDDEN)
            self.lm_head = linear(VOCAB, HIDDEN)

        def forward(self, x):
            x = self.model.embed_tokens(x)
            for layer in self.model.layers:
                x = layer(x)
            return self.lm_head(self.model.norm(x))

    return Llama()


def groups(model):
    """The groups of the optimizer: matrices, and vectors."""
    params = list(model.parameters())
    return [{"params": [p for p in params if p.dim() > 1], "weight_decay": 0.1}, {"params": [p for p in params if p.dim() == 1], "weight_decay": 0.0}]


def train(rank, out):
    os.environ.update(RANK=rank, WORLD_SIZE=str(RANKS), LOCAL_RANK=rank)
    import torch
    import torch.distributed.checkpoint as dcp
    from torch.distributed.checkpoint.state_dict import StateDictOptions, get_model_state_dict, get_optimizer_state_dict
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard
    torch.distributed.init_process_group("gloo", store=torch.distributed.FileStore(f"{out}.meeting", RANKS), rank=int(rank), world_size=RANKS)
    mesh = init_device_mesh("cpu", (RANKS,))
    m = llama()
    for layer in m.model.layers:
        fully_shard(layer, mesh=mesh)
    fully_shard(m, mesh=mesh)
    optimizer = torch.optim.AdamW(groups(m), lr=1e-2, betas=(0.9, 0.95))
    for step in range(3):
        optimizer.zero_grad()
        m((torch.arange(VOCAB) + step) % VOCAB).pow(2).mean().backward()
        optimizer.step()
    what = {}
    for kind in ("flat", "listed"):
        state = get_optimizer_state_dict(m, optimizer, options=StateDictOptions(flatten_optimizer_state_dict=kind == "flat"))
        dcp.save({"model": get_model_state_dict(m), "optim": state, "step": 3}, checkpoint_id=f"{out}/{kind}")
    whole = lambda t: t.full_tensor() if hasattr(t, "full_tensor") else t
    for name, p in m.named_parameters():
        what[f"model.{name}"] = show(whole(p))
        for key, value in optimizer.state[p].items():
            what[f"optim.state.{name}.{key}"] = show(whole(value))
    pathlib.Path(f"{out}.{rank}.json").write_text(json.dumps(what))
    torch.distributed.barrier()
    torch.distributed.destroy_process_group()


def main(target):
    tmp = pathlib.Path(tempfile.mkdtemp(), "out")
    ranks = [subprocess.Popen([sys.executable, __file__, str(r), str(tmp)]) for r in range(RANKS)]
    if any([p.wait() for p in ranks]):
        sys.exit("a rank failed")
    what = json.loads(pathlib.Path(f"{tmp}.0.json").read_text())
    for kind in ("flat", "listed"):
        (tmp / kind / "what.json").write_text(json.dumps(what, indent=0))
        with zipfile.ZipFile(target / f"{kind}.zip", "w", zipfile.ZIP_DEFLATED) as z:
            for path in sorted((tmp / kind).rglob("*")):
                z.writestr(zipfile.ZipInfo(str(path.relative_to(tmp / kind)), (2026, 1, 1, 0, 0, 0)), path.read_bytes(), zipfile.ZIP_DEFLATED)


if __name__ == "__main__":
    if len(sys.argv) == 3:
        train(*sys.argv[1:])
    else:
        main(pathlib.Path(sys.argv[1]))
