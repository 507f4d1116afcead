"""Has Megatron-Core's distributed optimizer load checkpoints of the format torch, on each of the ranks in turn, and prints what these then hold.

    PYTHON format/megatron/testdata/distributed.py RUNS

PYTHON has torch and megatron-core; nothing here needs a GPU. RUNS is a JSON array of objects: folder, tp, pp, dp, ep, chunks, bucket, hidden, ffn, experts, layers, vocabulary, tied and shared. Prints a JSON array with
one for each: for each rank its place, the learning rate and the number of steps, and for each parameter which elements it has of the copy in f32 and of the moments, and these.
"""

import collections
import contextlib
import json
import logging
import sys

import torch
import torch.distributed
from torch.testing._internal.distributed.fake_pg import FakeStore


def build(run):
    """The chunks of Megatron's own model, of whatever this rank has, in bf16, with buffers for gradients."""
    from megatron.core import parallel_state
    from megatron.core.distributed import DistributedDataParallel, DistributedDataParallelConfig
    from megatron.core.models.gpt.gpt_layer_specs import get_gpt_layer_local_spec
    from megatron.core.models.gpt.gpt_model import GPTModel
    from megatron.core.transformer.transformer_config import TransformerConfig
    several = run["chunks"] > 1
    config = TransformerConfig(num_layers=run["layers"], hidden_size=run["hidden"], num_attention_heads=4, ffn_hidden_size=run["ffn"], gated_linear_unit=True, add_bias_linear=False, qk_layernorm=True,
                               normalization="RMSNorm", activation_func=torch.nn.functional.silu, use_cpu_initialization=True, params_dtype=torch.bfloat16, pipeline_dtype=torch.bfloat16, bf16=True,
                               tensor_model_parallel_size=run["tp"], pipeline_model_parallel_size=run["pp"], expert_model_parallel_size=run["ep"],
                               virtual_pipeline_model_parallel_size=run["chunks"] if several else None, bias_activation_fusion=False, gradient_accumulation_fusion=False,
                               num_moe_experts=run["experts"], moe_shared_expert_intermediate_size=run["ffn"] if run["shared"] else None, moe_shared_expert_gate=run["shared"],
                               moe_token_dispatcher_type="alltoall")
    ddp = DistributedDataParallelConfig(use_distributed_optimizer=True, grad_reduce_in_fp32=True, overlap_grad_reduce=run["bucket"] > 0, bucket_size=run["bucket"] or None)
    chunks = []
    for i in range(run["chunks"]):
        stage = i if several else None
        model = GPTModel(config, get_gpt_layer_local_spec(num_experts=run["experts"], moe_grouped_gemm=False, qk_layernorm=True, normalization="RMSNorm"), run["vocabulary"], run.get("positions", 5),
                         pre_process=parallel_state.is_pipeline_first_stage(ignore_virtual=False, vp_stage=stage), post_process=parallel_state.is_pipeline_last_stage(ignore_virtual=False, vp_stage=stage),
                         share_embeddings_and_output_weights=run["tied"], position_embedding_type="learned_absolute", vp_stage=stage)
        model = model.bfloat16()  # norms too
        chunks.append(DistributedDataParallel(config, ddp, model, disable_bucketing=i > 0))
    return chunks


def show(t):
    return bytes(t.detach().contiguous().view(torch.uint8).tolist()).hex()


def load(run, rank, sent):
    from megatron.core import parallel_state
    from megatron.core.optimizer import OptimizerConfig, get_megatron_optimizer
    torch.distributed.init_process_group("fake", store=FakeStore(), rank=rank, world_size=run["tp"] * run["pp"] * run["dp"])
    parallel_state.initialize_model_parallel(run["tp"], run["pp"], run["chunks"] if run["chunks"] > 1 else None, expert_model_parallel_size=run["ep"], expert_tensor_parallel_size=run["tp"])

    def scatter(received, lists, _, group):
        """Takes what the first of the ranks has sent, which has been here before."""
        ranks = tuple(torch.distributed.get_process_group_ranks(group))
        if lists is not None:
            for to, part in zip(ranks, lists):
                sent[ranks, to].append(part.clone())
        received.copy_(sent[ranks, rank].popleft())

    torch.distributed.scatter = scatter
    chunks = build(run)
    optimizer = get_megatron_optimizer(OptimizerConfig(optimizer="adam", lr=3.0, min_lr=0.0, bf16=True, params_dtype=torch.bfloat16, use_distributed_optimizer=True), chunks)
    place = [parallel_state.get_tensor_model_parallel_rank(), parallel_state.get_pipeline_model_parallel_rank(), parallel_state.get_expert_model_parallel_rank()]
    folder = f"{run['folder']}/iter_0000012/mp_rank_{place[0]:02d}"
    folder += f"_{place[1]:03d}" if run["pp"] > 1 else ""
    folder += f"_{place[2]:03d}" if run["ep"] > 1 else ""
    model = torch.load(folder + "/model_optim_rng.pt", weights_only=False)
    for i, chunk in enumerate(chunks):
        state = model["model" if len(chunks) == 1 else f"model{i}"]
        missing, unexpected = chunk.module.load_state_dict(state, strict=False)
        assert not unexpected and not [x for x in missing if not x.endswith("_extra_state")], (missing, unexpected)
    optimizer.load_state_dict(model["optimizer"])
    steps = {float(state.pop("step")) for one in optimizer.chained_optimizers for state in one.optimizer.state.values()}  # FusedAdam, which Megatron has where there is a GPU, has it in the groups
    optimizer.load_parameter_state(folder + "/distrib_optim.pt")
    found = {}
    for one in optimizer.chained_optimizers:
        for i, chunk in enumerate(chunks):
            for name, p in chunk.module.named_parameters():
                if p not in one.model_param_group_index_map:
                    continue
                at = one._get_model_param_range_map(p)["param"]
                group, order = one.model_param_group_index_map[p]
                group = one.optimizer.param_groups[group]
                main = group["params"][order]
                state = one.optimizer.state[main]
                found[f"{i} {name}"] = {"from": at.start, "to": at.end, "of": p.nelement(), "fp32": show(main), "exp_avg": show(state["exp_avg"]), "exp_avg_sq": show(state["exp_avg_sq"]),
                                        "lr": group["lr"], "wd_mult": group["wd_mult"]}
    buckets = sum(len(b.buckets) for one in optimizer.chained_optimizers for b in one.buffers)
    parallel_state.destroy_model_parallel()
    torch.distributed.destroy_process_group()
    return {"tp": place[0], "pp": place[1], "ep": place[2], "buckets": buckets, "steps": sorted(steps), "params": found}


def pretend():
    """Gives Megatron the processor where it expects a GPU."""
    torch.Tensor.cuda, torch.cuda.synchronize, torch.cuda.current_device = lambda t, *_, **__: t, lambda *_: None, lambda: "cpu"
    torch.cuda.Stream = lambda *_, **__: None
    tensor, kind = torch.tensor, torch.Tensor.type
    torch.tensor = lambda *of, device=None, **how: tensor(*of, **how)
    torch.Tensor.type = lambda t, *of, **how: kind(t, *of, **how) if of or how else kind(t).replace("torch.", "torch.cuda.")
    logging.disable(logging.WARNING)


def main(runs):
    pretend()
    group = torch.distributed.new_group
    torch.distributed.new_group = lambda *of, backend=None, **how: group(*of, **how)  # none of gloo, which would connect to the others
    torch.distributed.all_gather_object = lambda out, x, *_, **__: out.__setitem__(slice(None), [x] * len(out))  # the others have as many groups
    found = []
    for run in json.loads(runs):
        sent = collections.defaultdict(collections.deque)
        try:
            found.append({"ranks": [load(run, rank, sent) for rank in range(run["tp"] * run["pp"] * run["dp"])]})
        except AssertionError as e:
            if "unpadded elements" not in str(e):
                raise
            found.append({"refused": str(e)})
            torch.distributed.destroy_process_group()
            __import__("megatron.core.parallel_state").core.parallel_state.destroy_model_parallel()
    return found


if __name__ == "__main__":
    with contextlib.redirect_stdout(sys.stderr):
        result = main(sys.argv[1])
    print(json.dumps(result))
