"""Has the optimizer of Megatron-Core's own groups load checkpoints that others have trained, and prints what each parameter then has.

    PYTHON format/megatron/testdata/groups.py FOLDER DIST [FOLDER DIST …]

PYTHON has torch and megatron-core; nothing here needs a GPU. FOLDER has mp_rank_00 of one rank, which goes by the order of parameters; DIST is of torch_dist, of which the groups are
matched as Megatron-Core does. Prints a JSON object for each folder: state under KIND.NAME, and what the groups are.
"""

import contextlib
import json
import logging
import pathlib
import sys

import torch
import torch.distributed
from torch.testing._internal.distributed.fake_pg import FakeStore

import torch_dist


def build():
    """Megatron's own model of the llama of ../../dcp/testdata/make_fsdp.py."""
    from megatron.core import parallel_state
    from megatron.core.models.gpt.gpt_layer_specs import get_gpt_layer_local_spec
    from megatron.core.models.gpt.gpt_model import GPTModel
    from megatron.core.transformer.transformer_config import TransformerConfig
    torch.distributed.init_process_group("fake", store=FakeStore(), rank=0, world_size=1)
    parallel_state.initialize_model_parallel(1, 1)
    config = TransformerConfig(num_layers=2, hidden_size=8, num_attention_heads=4, num_query_groups=2, ffn_hidden_size=6, gated_linear_unit=True, add_bias_linear=False,
                               normalization="RMSNorm", activation_func=torch.nn.functional.silu, use_cpu_initialization=True, bias_activation_fusion=False,
                               gradient_accumulation_fusion=False)
    return GPTModel(config, get_gpt_layer_local_spec(normalization="RMSNorm"), 12, 16, share_embeddings_and_output_weights=False, position_embedding_type="rope")


def prepare():
    """A model, and Megatron-Core's groups of its parameters."""
    torch.Tensor.cuda, torch.cuda.synchronize, torch.cuda.current_device = lambda t, *_, **__: t, lambda *_: None, lambda: "cpu"  # where Megatron expects a GPU
    logging.disable(logging.WARNING)
    model = build()
    from megatron.core import optimizer as core
    from megatron.core.optimizer.optimizer_config import OptimizerConfig
    gathered = torch.distributed.all_gather_object
    torch.distributed.all_gather_object = lambda out, x, *_, **__: out.__setitem__(0, x)  # of the one rank that there is
    groups = core._get_param_groups([model], OptimizerConfig(lr=3.0, min_lr=0.0), None)
    torch.distributed.all_gather_object = gathered
    return model, groups


def main(model, groups, folder, dist):
    """What an optimizer of its own then has."""
    from megatron.core.optimizer.optimizer import MegatronOptimizer
    optimizer = torch.optim.AdamW([dict(g) for g in groups], lr=3.0)
    path, = pathlib.Path(folder).glob("*/mp_rank_00/model_optim_rng.pt")
    saved = torch.load(path, weights_only=False)["optimizer"]
    optimizer.load_state_dict(saved.get("optimizer", saved))  # mixed precision has it around torch's
    found = {"lr": [g["lr"] for g in optimizer.param_groups], "weight_decay": [g["weight_decay"] for g in optimizer.param_groups]}
    for name, p in model.named_parameters():
        for kind, value in optimizer.state[p].items():
            found[f"{kind}.{name}"] = torch_dist.show(value)
    path, = pathlib.Path(dist).glob("*/common.pt")
    common = torch.load(path, weights_only=False)["optimizer"]["optimizer"]["param_groups"]
    matched = MegatronOptimizer._filter_and_reorder_param_groups(optimizer.param_groups, [g | {"params": []} for g in common])
    found["matched"] = [[g["lr"], g["weight_decay"], g["step"], list(g["betas"])] for g in matched]
    return found


if __name__ == "__main__":
    with contextlib.redirect_stdout(sys.stderr):
        model = prepare()
        result = {folder: main(*model, folder, dist) for folder, dist in zip(*[iter(sys.argv[1:])] * 2)}
    print(json.dumps(result))
