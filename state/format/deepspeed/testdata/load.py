"""Has DeepSpeed load a universal checkpoint into the model of make.py, on one rank, and prints what it then holds.

    PYTHON state/format/deepspeed/testdata/load.py FOLDER STAGE

PYTHON has torch and deepspeed. Prints a JSON object: for each parameter its weights in f32, the moments, and the number of steps.
"""

import contextlib
import json
import os
import sys

import make


def weights(optimizer, p, stage):
    """The copy in f32 of a parameter. In the stages 1 and 2 DeepSpeed's own function gives a moment after a universal checkpoint was loaded."""
    from deepspeed.utils import safe_get_full_fp32_param
    if stage == 3:
        return safe_get_full_fp32_param(p)
    at = p._hp_mapping.get_hp_fragment_address()
    flat, = [flat for group, flat in zip(optimizer.bit16_groups, optimizer.single_partition_of_fp32_groups) if any(q is p for q in group)]
    return flat.narrow(0, at.start, at.numel).view(p.shape)


def main(folder, stage):
    os.environ.update(DS_ACCELERATOR="cpu", RANK="0", WORLD_SIZE="1", LOCAL_RANK="0", MASTER_ADDR="127.0.0.1", MASTER_PORT="0")
    import deepspeed
    import deepspeed.comm.torch
    import torch
    import torch.distributed
    from deepspeed.utils import safe_get_full_optimizer_state
    sys.modules["deepspeed.comm.torch"].build_shm_op = lambda: None  # else it compiles one, for minutes
    store = torch.distributed.HashStore()
    torch.distributed.init_process_group("gloo", store=store, rank=0, world_size=1)
    deepspeed.init_distributed(dist_backend="gloo")
    model = make.model()
    with torch.no_grad():  # what is not loaded must not look as if it were
        for p in model.parameters():
            p.fill_(7)
    groups = [{"params": [model[0].weight, model[2].weight], "weight_decay": 0.5}, {"params": [model[0].bias, model[2].bias], "weight_decay": 0.5}]
    config = {"train_micro_batch_size_per_gpu": 1, "optimizer": {"type": "Adam", "params": {"lr": 3.0, "torch_adam": True}},
              "zero_optimization": {"stage": stage}, "bf16": {"enabled": True}, "checkpoint": {"load_universal": True}}
    engine, _, _, _ = deepspeed.initialize(model=model, model_parameters=groups, config=config)
    _, client = engine.load_checkpoint(folder)
    found = {"note": client["note"], "lr": engine.optimizer.optimizer.param_groups[0]["lr"], "steps": engine.global_steps}
    found |= {f"weight_decay.{i}": g["weight_decay"] for i, g in enumerate(engine.optimizer.optimizer.param_groups)}
    for state in engine.optimizer.optimizer.state.values():
        if "step" in state:
            found["step"] = float(state["step"])
    for name, p in engine.module.named_parameters():
        if not p.requires_grad:
            continue
        found[f"optimizer.fp32.{name}"] = make.show(weights(engine.optimizer, p, stage))
        for kind in ("exp_avg", "exp_avg_sq"):
            found[f"optimizer.{kind}.{name}"] = make.show(safe_get_full_optimizer_state(p, kind))
    engine.backward(engine(torch.rand(5, 4, dtype=torch.bfloat16)).sum())
    engine.step()
    torch.distributed.destroy_process_group()  # ends its threads: one that still ran at the exit would abort it, now and then
    return found


if __name__ == "__main__":
    with contextlib.redirect_stdout(sys.stderr):
        result = main(sys.argv[1], int(sys.argv[2]))
    print(json.dumps(result))
