"""Writes DeepSpeed checkpoints of each ZeRO stage with two processes on the CPU, and what is in them.

    PYTHON format/deepspeed/testdata/make.py format/deepspeed/testdata

PYTHON has torch and deepspeed 0.19. Makes zero1.zip, zero2.zip, zero3.zip, and universal1.zip and universal3.zip (converted). what.json in
each has for every tensor element type, shape and bytes, row-major; the optimizer's as DeepSpeed's own converter finds them.
"""

import json
import os
import pathlib
import subprocess
import sys
import tempfile
import zipfile


def show(t):
    import torch
    raw = t.detach().cpu().contiguous().reshape(-1).view(torch.uint8).tolist()
    return [str(t.dtype), list(t.shape), bytes(raw).hex()]


def model():
    import torch
    torch.manual_seed(5)
    m = torch.nn.Sequential(torch.nn.Linear(4, 3), torch.nn.Linear(3, 5, bias=False), torch.nn.Linear(5, 3))
    m[1].weight.requires_grad = False
    m.register_buffer("counts", torch.arange(3, dtype=torch.float32))
    return m


def train(rank, port, stage, out):
    os.environ.update(DS_ACCELERATOR="cpu", RANK=rank, WORLD_SIZE="2", LOCAL_RANK=rank, MASTER_ADDR="127.0.0.1", MASTER_PORT=port)
    import deepspeed
    import torch
    deepspeed.init_distributed(dist_backend="gloo")
    m = model()
    groups = [{"params": [m[0].weight, m[2].weight], "weight_decay": 0.1}, {"params": [m[0].bias, m[2].bias], "weight_decay": 0.0}]
    config = {"train_micro_batch_size_per_gpu": 1, "optimizer": {"type": "Adam", "params": {"lr": 1e-2, "torch_adam": True}},
              "zero_optimization": {"stage": stage}, "bf16": {"enabled": True}}
    engine, _, _, _ = deepspeed.initialize(model=m, model_parameters=groups, config=config)
    for _ in range(2):
        engine.backward(engine(torch.rand(5, 4, dtype=torch.bfloat16)).sum())
        engine.step()
    engine.save_checkpoint(out, tag="global_step2", client_state={"note": "ours"})
    what = {}
    for name, p in m.named_parameters():
        if stage < 3:
            what[f"module.{name}"] = show(p)
        elif not p.requires_grad:
            with deepspeed.zero.GatheredParameters([p]):
                what[f"module.{name}"] = show(p.data)
    what |= {f"module.{name}": show(b) for name, b in m.named_buffers()}
    if rank == "0":
        pathlib.Path(out, "what.json").write_text(json.dumps(what, indent=0))


def pack(folder, to):
    with zipfile.ZipFile(to, "w") as z:
        for path in sorted(p for p in folder.rglob("*") if p.is_file() and p.suffix != ".py"):
            z.writestr(zipfile.ZipInfo(str(path.relative_to(folder))), path.read_bytes(), zipfile.ZIP_DEFLATED)


def universal(folder, to):
    """Converts a checkpoint with DeepSpeed's own script, and adds what it finds of the optimizer's state to what.json."""
    import torch
    subprocess.run([sys.executable, "-m", "deepspeed.checkpoint.ds_to_universal", "--input_folder", folder / "global_step2",
                    "--output_folder", to / "global_step2_universal", "--inject_missing_state"], check=True)
    what, shapes = json.loads((folder / "what.json").read_text()), {n: p.shape for n, p in model().named_parameters()}
    for path in sorted(to.glob("*/zero/*/*.pt")):
        if path.stem != "step":
            value = torch.load(path, weights_only=False)
            value = value if isinstance(value, torch.Tensor) else value["param"]  # stage 3 has flat tensors
            what[f"optimizer.{path.stem}.{path.parent.name}"] = show(value.reshape(shapes.get(path.parent.name, value.shape)))
    (to / "what.json").write_text(json.dumps(what, indent=0))
    injected = [n for n in what if n.startswith("optimizer.fp32.") and n.replace("fp32", "exp_avg") not in what]  # only the converter makes these
    (folder / "what.json").write_text(json.dumps({n: w for n, w in what.items() if n not in injected}, indent=0))


def main(target, stages=(1, 2, 3)):
    for stage in stages:
        tmp, to, port = pathlib.Path(tempfile.mkdtemp()), pathlib.Path(tempfile.mkdtemp()), str(29500 + (os.getpid() + stage) % 1000)
        ranks = [subprocess.Popen([sys.executable, __file__, r, port, str(stage), str(tmp)]) for r in "01"]
        if any([p.wait() for p in ranks]):
            sys.exit(f"stage {stage} failed")
        universal(tmp, to)
        pack(tmp, target / f"zero{stage}.zip")
        if stage != 2:
            pack(to, target / f"universal{stage}.zip")


if __name__ == "__main__":
    if len(sys.argv) == 2:
        main(pathlib.Path(sys.argv[1]))
    else:
        train(sys.argv[1], sys.argv[2], int(sys.argv[3]), sys.argv[4])
