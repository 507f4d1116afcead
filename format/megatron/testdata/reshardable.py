"""Has Megatron-Core save checkpoints of torch_dist with the distributed optimizer's buffers (dp_reshardable), and where these are of one bucket once more with the state of each parameter (fully_reshardable).

    PYTHON format/megatron/testdata/reshardable.py format/megatron/testdata

PYTHON has torch and megatron-core; nothing here needs a GPU: the ranks are processes, with gloo. Makes, of models with experts, in buckets that two data parallel ranks share:

    reshardable.zip  two pipeline parallel ranks of two chunks each, tied embeddings, small buckets
    sharded.zip      two tensor parallel ranks, of which data parallel ranks are expert parallel ones
"""

import argparse
import contextlib
import pathlib
import sys
import tempfile
import zipfile

import torch
import torch.distributed
import torch.multiprocessing

import distributed

SIZES = {"hidden": 8, "ffn": 6, "experts": 2, "layers": 4, "vocabulary": 32, "positions": 32}
RUNS = {
    "reshardable": SIZES | {"tp": 1, "pp": 2, "dp": 2, "ep": 1, "chunks": 2, "bucket": 500, "tied": True, "shared": True},
    "sharded": SIZES | {"tp": 2, "pp": 1, "dp": 2, "ep": 2, "chunks": 1, "bucket": 0, "tied": False, "shared": False},
}


def fill(optimizer, chunks, seed):
    """Gives parameters random numbers, which are the same on all ranks that have one alike, and the state of them that this rank has too."""
    for one in optimizer.chained_optimizers:
        one._init_optimizer_states_with_dummy_values()
    for i, chunk in enumerate(chunks):
        for name, p in chunk.module.named_parameters():
            numbers = torch.Generator().manual_seed(sum(k * b for k, b in enumerate(str(seed(name, p, i)).encode(), 1)))
            whole, average, square = (torch.randn(p.nelement(), generator=numbers) for _ in range(3))
            p.data.copy_(whole.view(p.shape))
            for one in optimizer.chained_optimizers:
                if p in one.model_param_group_index_map:
                    at = one._get_model_param_range_map(p)["param"]
                    group, order = one.model_param_group_index_map[p]
                    main = one.optimizer.param_groups[group]["params"][order]
                    state = one.optimizer.state[main]
                    main.data.copy_(whole[at.start:at.end])
                    state["exp_avg"].copy_(average[at.start:at.end])
                    state["exp_avg_sq"].copy_(square[at.start:at.end].square())
                    state["step"].fill_(12)


def save(rank, run, folder):
    distributed.pretend()
    from megatron.core import dist_checkpointing, parallel_state
    from megatron.core.optimizer import OptimizerConfig, get_megatron_optimizer
    torch.distributed.init_process_group("gloo", init_method=f"file://{folder}/store", rank=rank, world_size=run["tp"] * run["pp"] * run["dp"])
    parallel_state.initialize_model_parallel(run["tp"], run["pp"], run["chunks"] if run["chunks"] > 1 else None, expert_model_parallel_size=run["ep"], expert_tensor_parallel_size=run["tp"])
    chunks = distributed.build(run)
    optimizer = get_megatron_optimizer(OptimizerConfig(optimizer="adam", lr=3.0, min_lr=0.0, bf16=True, params_dtype=torch.bfloat16, use_distributed_optimizer=True), chunks)
    tp, pp, ep = parallel_state.get_tensor_model_parallel_rank(), parallel_state.get_pipeline_model_parallel_rank(), parallel_state.get_expert_model_parallel_rank()

    def seed(name, p, chunk):
        if getattr(p, "shared_embedding", False):
            return "embedding"
        return name, tp if getattr(p, "tensor_model_parallel", False) else 0, pp, chunk, 0 if getattr(p, "allreduce", True) else ep

    fill(optimizer, chunks, seed)
    args = argparse.Namespace(tensor_model_parallel_size=run["tp"], pipeline_model_parallel_size=run["pp"], expert_model_parallel_size=run["ep"], expert_tensor_parallel_size=run["tp"],
                              virtual_pipeline_model_parallel_size=run["chunks"] if run["chunks"] > 1 else None, num_layers=run["layers"], num_attention_heads=4, swiglu=True,
                              untie_embeddings_and_output_weights=not run["tied"], moe_grouped_gemm=False, transformer_impl="local")
    for form in ["dp_reshardable", "fully_reshardable"][:1 if run["bucket"] else 2]:
        content = {"distrib_optim_sharding_type": form, "distrib_optim_fully_reshardable_mem_efficient": False, "chained_optim_avoid_prefix": True, "singleton_local_shards": False}
        state = {"model" if len(chunks) == 1 else f"model{i}": chunk.module.sharded_state_dict(metadata=dict(content)) for i, chunk in enumerate(chunks)}
        state |= {"optimizer": optimizer.sharded_state_dict(state, is_loading=False, metadata=dict(content)), "args": args, "iteration": 12, "checkpoint_version": 3.0}
        to = pathlib.Path(folder, form)
        to.mkdir(exist_ok=True)
        torch.distributed.barrier()
        dist_checkpointing.save(state, str(to), validate_access_integrity=False, content_metadata=content)
        torch.distributed.barrier()


def main(to):
    for name, run in RUNS.items():
        with tempfile.TemporaryDirectory() as folder:
            torch.multiprocessing.spawn(save, (run, folder), run["tp"] * run["pp"] * run["dp"])
            with zipfile.ZipFile(f"{to}/{name}.zip", "w", zipfile.ZIP_DEFLATED) as z:
                for file in sorted(pathlib.Path(folder).glob("*/*")):
                    z.writestr(zipfile.ZipInfo(str(file.relative_to(folder))), file.read_bytes(), zipfile.ZIP_DEFLATED)


if __name__ == "__main__":
    with contextlib.redirect_stdout(sys.stderr):
        main(sys.argv[1])
