"""Has Megatron-Core load a checkpoint of torch_dist into the model of optimizer.py, on each of two tensor and two pipeline parallel ranks in turn, and prints what these then hold.

    PYTHON format/megatron/testdata/torch_dist.py FOLDER [SAVED]

PYTHON has torch and megatron-core; nothing here needs a GPU. Prints a JSON array: for each rank its tensor and pipeline parallel index, the tensors of the model under Megatron's names, and
the optimizer's under KIND.NAME. With SAVED it is one rank with everything, and Megatron-Core saves in that folder, which is empty, what it has
loaded: of mixed.zip that is core.zip.
"""

import contextlib
import dataclasses
import json
import logging
import sys

import torch
import torch.distributed
import torch.distributed.checkpoint
from torch.testing._internal.distributed.fake_pg import FakeStore


def show(t):
    return [str(t.dtype), list(t.shape), bytes(t.detach().contiguous().reshape(-1).view(torch.uint8).tolist()).hex()]


def build(tp, pp, rank):
    """Megatron's own model, of whatever this rank has, in bf16 and filled with sevens."""
    from megatron.core import parallel_state
    from megatron.core.models.gpt.gpt_layer_specs import get_gpt_layer_local_spec
    from megatron.core.models.gpt.gpt_model import GPTModel
    from megatron.core.transformer.transformer_config import TransformerConfig
    torch.distributed.init_process_group("fake", store=FakeStore(), rank=rank, world_size=tp * pp)
    parallel_state.initialize_model_parallel(tp, pp)
    config = TransformerConfig(num_layers=4, hidden_size=8, num_attention_heads=4, num_query_groups=2, ffn_hidden_size=6, gated_linear_unit=True, add_bias_linear=False,
                               normalization="RMSNorm", activation_func=torch.nn.functional.silu, use_cpu_initialization=True, params_dtype=torch.bfloat16, pipeline_dtype=torch.bfloat16,
                               bf16=True, tensor_model_parallel_size=tp, pipeline_model_parallel_size=pp, bias_activation_fusion=False, gradient_accumulation_fusion=False)
    model = GPTModel(config, get_gpt_layer_local_spec(normalization="RMSNorm"), 12, 16, pre_process=parallel_state.is_pipeline_first_stage(),
                     post_process=parallel_state.is_pipeline_last_stage(), share_embeddings_and_output_weights=True, position_embedding_type="rope")
    with torch.no_grad():
        for p in model.parameters():
            p.data = torch.full_like(p, 7, dtype=torch.bfloat16)
    return model


def states(model, keys):
    """What an optimizer asks for: its tensors, one for each of its kinds and parameters of the model."""
    found = {}
    for name, sharded in keys.items():
        if type(sharded).__name__ not in ("ShardedTensor", "ShardedTensorFactory"):
            continue
        for kind in ("exp_avg", "exp_avg_sq", "fp32_param", "param"):
            data = torch.full_like(sharded.data, 7, dtype=torch.float32)
            changed = {"key": f"optimizer.state.{kind}.{sharded.key}", "data": data}
            if hasattr(sharded, "dtype"):
                changed["dtype"] = torch.float32
            found[f"{kind}.{name}"] = dataclasses.replace(sharded, **changed)
    return found


def load(folder, saved, tp, pp, rank):
    from megatron.core import dist_checkpointing, parallel_state
    model = build(tp, pp, rank)
    common = dist_checkpointing.load_common_state_dict(folder)
    content = {k: v for k, v in common["content_metadata"].items()}
    keys = model.sharded_state_dict(metadata=dict(content))
    state = dist_checkpointing.load({"model": keys, "states": states(model, keys)}, folder, validate_access_integrity=False)
    missing, unexpected = model.load_state_dict(state["model"], strict=True)
    assert not missing and not unexpected, (missing, unexpected)
    assert state["iteration"] == 12 and state["args"].no_save_rng and state["content_metadata"]["distrib_optim_sharding_type"] == "fully_reshardable", state
    group = state["optimizer"]["optimizer"]["param_groups"][1]
    result = {"tp": parallel_state.get_tensor_model_parallel_rank(), "pp": parallel_state.get_pipeline_model_parallel_rank(), "lr": group["lr"], "step": group["step"],
              "common_step": state["optimizer"]["optimizer"]["state"]["common_step"],
              "model": {k: show(v) for k, v in model.state_dict().items() if isinstance(v, torch.Tensor)},
              "states": {k: show(v) for k, v in state["states"].items()}}
    if saved:
        keys = model.sharded_state_dict(metadata=dict(content))
        again = states(model, keys)
        for name, value in state["states"].items():
            again[name] = dataclasses.replace(again[name], data=value)
        save({"model": keys, "states": {k: v for k, v in again.items() if not k.startswith("param.")}, "iteration": 12, "args": state["args"]}, saved, content)
    parallel_state.destroy_model_parallel()
    torch.distributed.destroy_process_group()
    return result


def save(state, folder, content):
    from megatron.core import dist_checkpointing
    dist_checkpointing.save(state, folder, validate_access_integrity=False, content_metadata=content)


def main(folder, saved=None):
    torch.Tensor.cuda, torch.cuda.synchronize, torch.cuda.current_device = lambda t, *_, **__: t, lambda *_: None, lambda: "cpu"  # where Megatron expects a GPU
    alone = torch.distributed.checkpoint.load_state_dict
    torch.distributed.checkpoint.load_state_dict = lambda *of, **how: alone(*of, **how | {"no_dist": True})  # the other ranks are not there
    logging.disable(logging.WARNING)
    return [load(folder, saved, 1, 1, 0)] if saved else [load(folder, None, 2, 2, rank) for rank in range(4)]


if __name__ == "__main__":
    with contextlib.redirect_stdout(sys.stderr):
        result = main(*sys.argv[1:])
    print(json.dumps(result))
