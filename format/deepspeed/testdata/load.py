"""Has DeepSpeed load a checkpoint into the model of make.py, or with MODEL=llama that of ../../dcp/testdata/make_fsdp.py, and prints what it then holds.

    PYTHON format/deepspeed/testdata/load.py FOLDER STAGE RANKS [FOLDER STAGE RANKS …]

Each rank is a process of its own. PYTHON has torch and deepspeed. Prints a JSON object for each folder: for each parameter its weights in f32, the moments, and the number of steps.
"""

import contextlib
import json
import multiprocessing
import os
import pathlib
import sys
import tempfile

import make


def weights(optimizer, p, stage, universal):
    """The copy in f32 of a parameter. In the stages 1 and 2 DeepSpeed's own function gives a moment after a universal checkpoint was loaded."""
    from deepspeed.utils import safe_get_full_fp32_param
    if stage == 3 or not universal:
        return safe_get_full_fp32_param(p)
    at = p._hp_mapping.get_hp_fragment_address()
    flat, = [flat for group, flat in zip(optimizer.bit16_groups, optimizer.single_partition_of_fp32_groups) if any(q is p for q in group)]
    return flat.narrow(0, at.start, at.numel).view(p.shape)


def whole(p):
    """A parameter of stage 3, whose parts the ranks have. DeepSpeed's own gather returns before gloo is done, now and then."""
    import torch
    parts = [torch.empty_like(p.ds_tensor) for _ in range(torch.distributed.get_world_size())]
    torch.distributed.all_gather(parts, p.ds_tensor.data)
    return torch.cat(parts)[:p.ds_numel].view(p.ds_shape)


def program():
    """The model, its groups, and something to train it with. What is not loaded must not look as if it were."""
    import torch
    if os.environ.get("MODEL") == "llama":
        sys.path.insert(0, str(pathlib.Path(__file__).parents[2] / "dcp/testdata"))
        import make_fsdp
        model = make_fsdp.llama()
        groups, given = make_fsdp.groups(model), torch.arange(make_fsdp.VOCAB)
    else:
        model = make.model()
        groups, given = [{"params": [model[0].weight, model[2].weight]}, {"params": [model[0].bias, model[2].bias]}], torch.rand(5, 4, dtype=torch.bfloat16)
    with torch.no_grad():
        for t in [*model.parameters(), *model.buffers()]:
            t.fill_(7)
    return model, [g | {"weight_decay": 0.5} for g in groups], given


def main(folder, stage, rank, ranks, meeting):
    """Loads it as one of some ranks, which find each other at a file."""
    os.environ.update(DS_ACCELERATOR="cpu", RANK=str(rank), WORLD_SIZE=str(ranks), LOCAL_RANK=str(rank), MASTER_ADDR="127.0.0.1", MASTER_PORT="0")
    import deepspeed
    import deepspeed.comm.torch
    import torch
    import torch.distributed
    from deepspeed.utils import safe_get_full_optimizer_state
    sys.modules["deepspeed.comm.torch"].build_shm_op = lambda: None  # else it compiles one, for minutes
    torch.distributed.init_process_group("gloo", store=torch.distributed.FileStore(meeting, ranks), rank=rank, world_size=ranks)
    universal = pathlib.Path(folder, "latest_universal").exists()
    deepspeed.init_distributed(dist_backend="gloo")
    model, groups, given = program()
    config = {"train_micro_batch_size_per_gpu": 1, "optimizer": {"type": "Adam", "params": {"lr": 3.0, "torch_adam": True}},
              "zero_optimization": {"stage": stage}, "bf16": {"enabled": True}, "checkpoint": {"load_universal": universal}}
    engine, _, _, _ = deepspeed.initialize(model=model, model_parameters=groups, config=config)
    _, client = engine.load_checkpoint(folder)
    if stage < 3 and not universal:
        engine.optimizer._lazy_init_hp_params_optimizer_state()  # else its state has no names before the first step
    found = {"note": client.get("note"), "lr": engine.optimizer.optimizer.param_groups[0]["lr"], "steps": engine.global_steps}
    found |= {f"weight_decay.{i}": g["weight_decay"] for i, g in enumerate(engine.optimizer.optimizer.param_groups)}
    for state in engine.optimizer.optimizer.state.values():
        if "step" in state:
            found["step"] = float(state["step"])
    for name, p in engine.module.named_parameters():
        found[f"module.{name}"] = make.show(whole(p) if stage == 3 else p.data)
        if not p.requires_grad:
            continue
        found[f"optimizer.fp32.{name}"] = make.show(weights(engine.optimizer, p, stage, universal))
        for kind in ("exp_avg", "exp_avg_sq"):
            found[f"optimizer.{kind}.{name}"] = make.show(safe_get_full_optimizer_state(p, kind))
    found |= {f"module.{name}": make.show(b) for name, b in engine.module.named_buffers()}
    engine.backward(engine(given).sum())
    engine.step()
    torch.distributed.destroy_process_group()  # ends its threads: one that still ran at the exit would abort it, now and then
    return found


def one(out, *where):
    found = main(*where)
    if out:
        out.send(found)


def spread(folder, stage, ranks):
    """Runs each rank as a process of its own, with what is imported already, and returns what the first finds."""
    fork, (near, far) = multiprocessing.get_context("fork"), multiprocessing.Pipe()
    with tempfile.TemporaryDirectory() as at:
        processes = [fork.Process(target=one, args=(None if r else far, folder, stage, r, ranks, f"{at}/meeting")) for r in range(ranks)]
        for p in processes:
            p.start()
        far.close()
        found = near.recv()
        for p in processes:
            p.join()
    if any(p.exitcode for p in processes):
        sys.exit("a rank failed")
    return found


if __name__ == "__main__":
    with contextlib.redirect_stdout(sys.stderr):
        os.environ["DS_ACCELERATOR"] = "cpu"
        import deepspeed  # noqa: F401
        result = {folder: spread(folder, int(stage), int(ranks)) for folder, stage, ranks in zip(*[iter(sys.argv[1:])] * 3)}
    print(json.dumps(result))
