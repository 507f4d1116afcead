"""Prints where Megatron-Core puts the parameters of a model in the distributed optimizer's buffer, as that is saved: without what fills up its buckets.

    PYTHON state/format/megatron/testdata/buffers.py

PYTHON has torch and megatron-core; nothing here needs a GPU. Prints a JSON array, one for each size of buckets: how many buckets there are, how many elements, and for each parameter its shape and its first element.
"""

import json

import torch
import torch.distributed
from torch.testing._internal.distributed.fake_pg import FakeStore


def build():
    """A model of Megatron-Core with experts, in bf16, of which each parameter has a multiple of 64 elements."""
    from megatron.core import parallel_state
    from megatron.core.models.gpt.gpt_layer_specs import get_gpt_layer_local_spec
    from megatron.core.models.gpt.gpt_model import GPTModel
    from megatron.core.transformer.transformer_config import TransformerConfig
    torch.distributed.init_process_group("fake", store=FakeStore(), rank=0, world_size=1)
    parallel_state.initialize_model_parallel(1, 1)
    parallel_state.get_data_and_context_parallel_group = lambda **_: torch.distributed.group.WORLD  # which 0.16.1 asks for, and has under another name
    config = TransformerConfig(num_layers=2, hidden_size=64, num_attention_heads=4, num_query_groups=4, ffn_hidden_size=4, gated_linear_unit=True, add_bias_linear=False,
                               normalization="RMSNorm", activation_func=torch.nn.functional.silu, use_cpu_initialization=True, params_dtype=torch.bfloat16, pipeline_dtype=torch.bfloat16,
                               bf16=True, bias_activation_fusion=False, gradient_accumulation_fusion=False, num_moe_experts=2, moe_shared_expert_intermediate_size=4,
                               moe_token_dispatcher_type="alltoall")
    return GPTModel(config, get_gpt_layer_local_spec(num_experts=2, moe_grouped_gemm=False, normalization="RMSNorm"), 8, 16, share_embeddings_and_output_weights=False,
                    position_embedding_type="rope")


def places(model, size):
    from megatron.core.distributed import DistributedDataParallelConfig
    from megatron.core.distributed.param_and_grad_buffer import _ParamAndGradBuffer
    names = {p: n for n, p in model.named_parameters()}
    buffer = _ParamAndGradBuffer(DistributedDataParallelConfig(use_distributed_optimizer=True, grad_reduce_in_fp32=True), torch.bfloat16, torch.float32, list(names), torch.distributed.group.WORLD,
                                 size, names, 1.0, list(range(len(names))), nccl_ub=False)
    saved = [sum(b.numel_unpadded for b in buffer.buckets[:i]) for i in range(len(buffer.buckets))]
    found = {names[p]: [list(p.shape), saved[i] + start - buffer.bucket_indices[i][0]] for p, (start, _, i) in buffer.param_index_map.items()}
    return {"buckets": len(buffer.buckets), "elements": buffer.numel_unpadded, "places": found}


if __name__ == "__main__":
    torch.cuda.Stream = lambda *_, **__: None
    torch.cuda.current_device = lambda: torch.device("cpu")
    model = build()
    print(json.dumps([places(model, size) for size in (None, 5000, 300)]))
