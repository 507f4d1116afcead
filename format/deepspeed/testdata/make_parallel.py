"""Writes DeepSpeed checkpoints of a pipeline, and of a mixture of experts, with four processes on the CPU, and what is in them.

    PYTHON format/deepspeed/testdata/make_parallel.py format/deepspeed/testdata [KIND …]

PYTHON has torch and deepspeed 0.19. Makes KIND.zip: pipe (two stages, with a tied layer, ZeRO 1; universalpipe is the same converted), pipebf16 (the same in bf16, whose optimizer DeepSpeed has in a
class of its own), tensor (two tensor parallel ranks of two data parallel ones, ZeRO 1; universaltensor is the same converted), moe0, moe1 and moe2 (four experts over two expert parallel ranks, without ZeRO, whose state has no names, and with ZeRO 1 and 2), robin (ZeRO 2 with round_robin_gradients), moerobin and moefirst (ZeRO 2 with experts, and round_robin_gradients or
use_data_before_expert_parallelism; of these what.json has the model alone), moepipe (two stages with one and with two layers of experts, over two expert parallel ranks each, and a tied layer, ZeRO 1; moepipe0 is without ZeRO and without the tied layer). what.json in each is as make.py has it; experts have their global numbers.
"""

import json
import os
import pathlib
import re
import subprocess
import sys
import tempfile

import make

RANKS = 4


def pipeline(bf16, stages=2, steps=2):
    import deepspeed
    import torch
    from deepspeed.pipe import LayerSpec, PipelineModule, TiedLayerSpec

    class Counted(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.weight = torch.nn.Parameter(torch.rand(3))
            self.register_buffer("counts", torch.arange(3, dtype=torch.float32))

        def forward(self, x):
            return x * self.weight

    tied = TiedLayerSpec("word", torch.nn.Linear, 4, 4, bias=False)
    layers = [tied, LayerSpec(torch.nn.Linear, 4, 3), torch.relu, LayerSpec(Counted), LayerSpec(torch.nn.Linear, 3, 4), tied]
    m = PipelineModule(layers, num_stages=stages, loss_fn=torch.nn.functional.mse_loss, partition_method="uniform", base_seed=5, seed_layers=True)
    config = {"train_micro_batch_size_per_gpu": 2, "optimizer": {"type": "Adam", "params": {"lr": 1e-2, "torch_adam": True}}, "zero_optimization": {"stage": 1}}
    if bf16:
        config |= {"bf16": {"enabled": True}, "data_types": {"grad_accum_dtype": "fp32"}}
    engine, _, _, _ = deepspeed.initialize(model=m, model_parameters=list(m.parameters()), config=config)
    kind = torch.bfloat16 if bf16 else torch.float32
    for _ in range(steps):
        engine.train_batch(iter([(torch.rand(2, 4, dtype=kind), torch.rand(2, 4, dtype=kind))] * 4))
    return engine, lambda name: name


def experts(stage, ep=2, steps=2, robin=False, first=False):
    import deepspeed
    import torch
    from deepspeed.moe.layer import MoE
    from deepspeed.moe.utils import split_params_into_different_moe_groups_for_optimizer
    from deepspeed.utils import groups

    class Model(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.a = torch.nn.Linear(4, 4)
            self.moe = MoE(4, torch.nn.Linear(4, 4), num_experts=4, ep_size=ep, k=1)
            self.b = torch.nn.Linear(4, 3)

        def forward(self, x):
            return self.b(self.moe(self.a(x))[0])

    torch.manual_seed(5)
    m = Model()
    given = split_params_into_different_moe_groups_for_optimizer({"params": list(m.parameters()), "name": "all"})
    config = {"train_micro_batch_size_per_gpu": 1, "optimizer": {"type": "Adam", "params": {"lr": 1e-2, "torch_adam": True}},
              "zero_optimization": {"stage": stage, "round_robin_gradients": robin}, "use_data_before_expert_parallelism": first, "bf16": {"enabled": stage > 0}}
    engine, _, _, _ = deepspeed.initialize(model=m, model_parameters=given, config=config)
    for _ in range(steps):
        engine.backward(engine(torch.rand(8, 4, dtype=m.b.weight.dtype)).sum())
        engine.step()
    first = groups._get_expert_parallel_rank(f"ep_size_{ep}") * (4 // ep)
    return engine, lambda name: re.sub(r"(deepspeed_experts\.)(\d+)", lambda m: m[1] + str(first + int(m[2])), name)


def expertpipe(stages=2, ep=2, steps=2, tied=True, stage=1, universal=False):
    """A pipeline in which each layer but one has experts. All ranks together have the same batch, whatever they are: no token is dropped."""
    import deepspeed
    import torch
    from deepspeed.moe.layer import MoE
    from deepspeed.moe.utils import split_params_into_different_moe_groups_for_optimizer
    from deepspeed.pipe import LayerSpec, PipelineModule, TiedLayerSpec
    from deepspeed.utils import groups

    class Block(torch.nn.Module):
        def __init__(self, experts):
            super().__init__()
            self.up = torch.nn.Linear(4, 4)
            self.moe = MoE(4, torch.nn.Linear(4, 4), num_experts=experts, ep_size=ep, k=1, drop_tokens=False, use_rts=False)

        def forward(self, x):
            return x + self.moe(torch.relu(self.up(x)))[0]

    word = [TiedLayerSpec("word", torch.nn.Linear, 4, 4, bias=False)] if tied else []
    layers = [*word, LayerSpec(Block, 4), LayerSpec(torch.nn.Linear, 4, 4), LayerSpec(Block, 2), LayerSpec(Block, 4), *word]
    m = PipelineModule(layers, num_stages=stages, loss_fn=torch.nn.functional.mse_loss, partition_method="uniform", base_seed=5, seed_layers=True)
    given = split_params_into_different_moe_groups_for_optimizer({"params": list(m.parameters()), "name": "all"})
    ranks = RANKS // stages  # data parallel ones
    config = {"train_micro_batch_size_per_gpu": 16 // ranks, "gradient_accumulation_steps": 1, "optimizer": {"type": "Adam", "params": {"lr": 1e-2, "torch_adam": True}},
              "zero_optimization": {"stage": stage}, "checkpoint": {"load_universal": universal}}
    engine, _, _, _ = deepspeed.initialize(model=m, model_parameters=given, config=config)
    for _ in range(steps):
        batch(engine, ranks)
    first = groups._get_expert_parallel_rank(f"ep_size_{ep}")
    own = {name: module.num_local_experts for name, module in m.named_modules() if isinstance(module, MoE)}
    return engine, lambda name: re.sub(r"(.*)(\.deepspeed_moe\.experts\.deepspeed_experts\.)(\d+)", lambda x: x[1] + x[2] + str(first * own[x[1]] + int(x[3])), name)


def batch(engine, ranks):
    """A step of a pipeline, with the batch of its number, and its loss."""
    import torch
    numbers = torch.Generator().manual_seed(engine.global_steps)
    x, y = torch.rand(2, 16, 4, generator=numbers)
    own = engine.grid.data_parallel_id
    return float(engine.train_batch(iter([(x.chunk(ranks)[own], y.chunk(ranks)[own])])))


def robin():
    import deepspeed
    import torch
    torch.manual_seed(5)
    m = torch.nn.Sequential(*[torch.nn.Linear(4, 4, bias=i % 2 == 0) for i in range(4)])
    config = {"train_micro_batch_size_per_gpu": 1, "optimizer": {"type": "Adam", "params": {"lr": 1e-2, "torch_adam": True}},
              "zero_optimization": {"stage": 2, "round_robin_gradients": True}, "bf16": {"enabled": True}}
    engine, _, _, _ = deepspeed.initialize(model=m, model_parameters=list(m.parameters()), config=config)
    for _ in range(2):
        engine.backward(engine(torch.rand(5, 4, dtype=torch.bfloat16)).sum())
        engine.step()
    return engine, lambda name: name


class Grid:
    """The groups of tensor and data parallel ranks, as a program tells DeepSpeed of them."""

    def __init__(self):
        import torch
        self.rank = torch.distributed.get_rank()
        self.model = [torch.distributed.new_group(ranks) for ranks in ([0, 1], [2, 3])][self.rank // 2]
        self.data = [torch.distributed.new_group(ranks) for ranks in ([0, 2], [1, 3])][self.rank % 2]

    def get_model_parallel_rank(self): return self.rank % 2
    def get_model_parallel_world_size(self): return 2
    def get_model_parallel_group(self): return self.model
    def get_data_parallel_rank(self): return self.rank // 2
    def get_data_parallel_world_size(self): return 2
    def get_data_parallel_group(self): return self.data


# How the parameters of Parts are cut, as a program says it. Of the ten rows of words one only fills up.
SHARING = {
    "universal_checkpoint_version": 0.2,
    "tp_replicated_parameter_patterns": [r"norm\.(weight|bias)", "down.bias"],
    "parameter_with_row_parallelism_patterns": ["down.weight"],
    "parameter_with_2_sub_params_cat_dim_0": [r"gate\.weight$"],
    "parameter_with_sub_params": [{"patterns": ["qkv.weight"], "shape": ((4, 2, 2), 4), "partition_dim": 0}],
    "vocabulary_parameter_patterns": ["words.weight"],
    "original_vocab_size": 9,
    "padded_vocab_size": 10,
}


def tensors(stage=1, steps=2):
    import deepspeed
    import torch
    grid = Grid()

    class Parts(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.words, self.norm = torch.nn.Embedding(5, 4), torch.nn.LayerNorm(4)
            self.qkv, self.gate = torch.nn.Linear(4, 4, bias=False), torch.nn.Linear(4, 6, bias=False)
            self.up, self.down = torch.nn.Linear(4, 3), torch.nn.Linear(3, 4)

        def forward(self, x):
            alike = self.norm(x).pow(3).sum() + self.down.bias.pow(2).sum()  # nothing of a rank is in it
            y = self.qkv(self.words(torch.arange(5)))
            return alike + (self.gate(y).sum() + self.down(self.up(y))).sum() - self.down.bias.sum()

    torch.manual_seed(5 + grid.get_model_parallel_rank())
    m = Parts()
    with torch.no_grad():
        m.norm.weight.copy_(torch.arange(1, 5) / 4)
        m.down.bias.copy_(torch.arange(4) / 8)
    config = {"train_micro_batch_size_per_gpu": 1, "optimizer": {"type": "Adam", "params": {"lr": 1e-2, "torch_adam": True}},
              "zero_optimization": {"stage": stage}, "bf16": {"enabled": True}}
    engine, _, _, _ = deepspeed.initialize(model=m, model_parameters=list(m.parameters()), config=config, mpu=grid)
    for step in range(steps):
        engine.backward(engine(torch.arange(8, dtype=torch.bfloat16).reshape(2, 4).sin() + step))
        engine.step()
    return engine, lambda name: name


def gathered(optimizer, kind):
    """All of a kind of state, by parameter, where these lie in another order than DeepSpeed's own functions think."""
    import torch
    flat, found = optimizer.single_partition_of_fp32_groups[0], {}
    own = flat.detach() if kind == "fp32" else optimizer.optimizer.state[flat][kind]
    parts = [torch.zeros_like(own) for _ in range(RANKS)]
    torch.distributed.all_gather(parts, own.contiguous())
    whole, start = torch.cat(parts), 0
    for p in optimizer.round_robin_bit16_groups[0]:
        found[p] = whole[start:start + p.numel()].view(p.shape)
        start += p.numel()
    return found


def state(optimizer, p, kind):
    """The optimizer's state of a parameter, from the parts of its ranks: DeepSpeed's own function finds none of experts."""
    import torch
    flat, = [flat for group, flat in zip(optimizer.bit16_groups, optimizer.single_partition_of_fp32_groups) if any(q is p for q in group)]
    whole = torch.zeros(p.numel())
    if p._hp_mapping is not None:
        to, at = p._hp_mapping.lp_fragment_address, p._hp_mapping.get_hp_fragment_address()
        whole[to.start:to.start + to.numel] = optimizer.optimizer.state[flat][kind][at.start:at.start + at.numel]
    torch.distributed.all_reduce(whole, group=p._dp_group)
    return whole.view(p.shape)


def train(rank, kind, out):
    os.environ.update(DS_ACCELERATOR="cpu", RANK=rank, WORLD_SIZE=str(RANKS), LOCAL_RANK=rank, MASTER_ADDR="127.0.0.1", MASTER_PORT="0")
    import deepspeed
    import deepspeed.comm.torch
    import torch
    from deepspeed.utils import safe_get_full_fp32_param, safe_get_full_optimizer_state
    sys.modules["deepspeed.comm.torch"].build_shm_op = lambda: None  # else it compiles one, for minutes
    torch.distributed.init_process_group("gloo", store=torch.distributed.FileStore(f"{out}.meeting", RANKS), rank=int(rank), world_size=RANKS)
    deepspeed.init_distributed(dist_backend="gloo")
    engine, called = expertpipe(tied=kind == "moepipe", stage=int(kind == "moepipe")) if kind.startswith("moepipe") else pipeline(kind == "pipebf16") if kind.startswith("pipe") else robin() if kind == "robin" else tensors() if kind == "tensor" else experts(int(kind[-1])) if kind[3:].isdigit() else experts(2, robin=kind == "moerobin", first=kind == "moefirst")
    engine.save_checkpoint(out, tag="global_step2", client_state={"note": "ours"} | ({"universal_checkpoint_info": SHARING} if kind == "tensor" else {}))
    what = {f"module.{called(name)}": make.show(t) for name, t in [*engine.module.named_parameters(), *engine.module.named_buffers()]}
    for name, p in engine.module.named_parameters() if kind not in ("moe0", "moepipe0", "moerobin", "moefirst", "robin", "tensor") else []:
        what[f"optimizer.fp32.{called(name)}"] = make.show(safe_get_full_fp32_param(p))
        for moment in ("exp_avg", "exp_avg_sq"):
            found = safe_get_full_optimizer_state(p, moment) if kind.startswith("pipe") else state(engine.optimizer, p, moment)
            what[f"optimizer.{moment}.{called(name)}"] = make.show(found)
    for sort in ("fp32", "exp_avg", "exp_avg_sq") if kind == "robin" else []:
        found = gathered(engine.optimizer, sort)
        what |= {f"optimizer.{sort}.{name}": make.show(found[p]) for name, p in engine.module.named_parameters()}
    pathlib.Path(f"{out}.{rank}.json").write_text(json.dumps(what))
    torch.distributed.barrier()
    torch.distributed.destroy_process_group()


def main(target, kinds):
    for kind in kinds:
        tmp = pathlib.Path(tempfile.mkdtemp(), "out")
        ranks = [subprocess.Popen([sys.executable, __file__, str(r), kind, str(tmp)]) for r in range(RANKS)]
        if any([p.wait() for p in ranks]):
            sys.exit(f"{kind} failed")
        what = {}
        for r in range(RANKS):
            what |= json.loads(pathlib.Path(f"{tmp}.{r}.json").read_text())
        if kind == "tensor":
            what = joined(tmp, target)
        (tmp / "what.json").write_text(json.dumps(what, indent=0))
        make.pack(tmp, target / f"{kind}.zip")
        if kind == "pipe":
            universal(tmp, target, what)


def joined(folder, target):
    """What is whole when DeepSpeed's own script has put the parts together, of which the model's is rounded."""
    import torch
    to, what = pathlib.Path(tempfile.mkdtemp()), {}
    subprocess.run([sys.executable, "-m", "deepspeed.checkpoint.ds_to_universal", "--input_folder", folder / "global_step2", "--output_folder", to / "global_step2_universal"], check=True)
    for path in sorted(to.glob("*/zero/*/*.pt")):
        if path.stem != "step":
            value = torch.load(path, weights_only=False)["param"]
            what[f"optimizer.{path.stem}.{path.parent.name}"] = make.show(value)
            if path.stem == "fp32":
                what[f"module.{path.parent.name}"] = make.show(value.bfloat16())
    (to / "what.json").write_text(json.dumps(what, indent=0))
    make.pack(to, target / "universaltensor.zip")
    return what


def universal(folder, target, what):
    """Converts a pipeline with DeepSpeed's own script, which leaves the model to the optimizer's state."""
    to = pathlib.Path(tempfile.mkdtemp())
    subprocess.run([sys.executable, "-m", "deepspeed.checkpoint.ds_to_universal", "--input_folder", folder / "global_step2",
                    "--output_folder", to / "global_step2_universal", "--inject_missing_state"], check=True)
    (to / "what.json").write_text(json.dumps({n: w for n, w in what.items() if n.startswith("optimizer.")}, indent=0))
    make.pack(to, target / "universalpipe.zip")


if __name__ == "__main__":
    if sys.argv[1].isdigit():
        train(*sys.argv[1:])
    else:
        main(pathlib.Path(sys.argv[1]), sys.argv[2:] or ["pipe", "pipebf16", "tensor", "moe0", "moe1", "moe2", "moerobin", "moefirst", "moepipe", "moepipe0", "robin"])
