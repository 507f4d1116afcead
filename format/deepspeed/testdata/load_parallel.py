"""Has DeepSpeed load a checkpoint into a model of make_parallel.py over some ranks, and save it again.

    PYTHON format/deepspeed/testdata/load_parallel.py FOLDER TO KIND STAGE RANKS SIZE [FOLDER TO …]

KIND is moe, of SIZE expert parallel ranks, tensor, of 2 tensor parallel ranks and 2 data parallel ones, or pipe or moepipe, of SIZE stages, the latter with one expert parallel rank in each. PYTHON has torch and deepspeed. Where the files of the model are found by name, as those of experts and of
layers, and the optimizer's state by position, each rank compares the two: its weights are the master weights, rounded. Prints a JSON object with the number of parameters compared, by TO.
"""

import contextlib
import json
import multiprocessing
import os
import sys
import tempfile

import make_parallel


def begin(rank, ranks, meeting):
    """Has a rank meet the others."""
    os.environ.update(DS_ACCELERATOR="cpu", RANK=str(rank), WORLD_SIZE=str(ranks), LOCAL_RANK=str(rank), MASTER_ADDR="127.0.0.1", MASTER_PORT="0")
    import deepspeed
    import deepspeed.comm.torch
    import torch
    make_parallel.RANKS = ranks
    sys.modules["deepspeed.comm.torch"].build_shm_op = lambda: None  # else it compiles one, for minutes
    torch.distributed.init_process_group("gloo", store=torch.distributed.FileStore(meeting, ranks), rank=rank, world_size=ranks)
    deepspeed.init_distributed(dist_backend="gloo")


def end():
    import torch
    torch.distributed.barrier()
    torch.distributed.destroy_process_group()


def main(folder, to, kind, stage, size):
    import torch
    rank = torch.distributed.get_rank()
    if kind == "moe":
        engine, _ = make_parallel.experts(stage, size, 0)
    elif kind == "moepipe":
        engine, _ = make_parallel.expertpipe(size, 1, 0)
    elif kind == "pipe":
        engine, _ = make_parallel.pipeline(False, size, 0)
    else:
        engine, _ = make_parallel.tensors(stage, 0)
    with torch.no_grad():
        for p in engine.module.parameters() if stage < 3 else []:
            p.fill_(7)  # what is not loaded must not look as if it were
    engine.load_checkpoint(folder)
    compared = 0
    for p in engine.module.parameters() if stage < 3 else []:
        if p._hp_mapping is None:  # it is another rank's
            continue
        at, to_at = p._hp_mapping.lp_fragment_address, p._hp_mapping.get_hp_fragment()
        if not torch.equal(p.data.flatten()[at.start:at.start + at.numel], to_at.to(p.dtype)):
            raise SystemExit(f"rank {rank}: a parameter of {list(p.shape)} is not its master weights, rounded")
        compared += 1
    engine.save_checkpoint(to, tag="again", client_state={"universal_checkpoint_info": make_parallel.SHARING} if kind == "tensor" else {})
    return compared


def one(out, where, function, what):
    begin(*where)
    out.send(function(*what))
    end()


def spread(ranks, function, *what):
    """Runs a function on each rank, as a process of its own with what is imported already, and returns what it has on each."""
    fork, (near, far) = multiprocessing.get_context("fork"), multiprocessing.Pipe()
    with tempfile.TemporaryDirectory() as at:
        processes = [fork.Process(target=one, args=(far, (r, ranks, f"{at}/meeting"), function, what)) for r in range(ranks)]
        for p in processes:
            p.start()
        for p in processes:
            p.join()
    if any(p.exitcode for p in processes):
        sys.exit(f"{what}: a rank failed")
    return [near.recv() for _ in processes]


if __name__ == "__main__":
    with contextlib.redirect_stdout(sys.stderr):
        os.environ["DS_ACCELERATOR"] = "cpu"
        import deepspeed  # noqa: F401
        result = {to: sum(spread(int(ranks), main, folder, to, kind, int(stage), int(size))) for folder, to, kind, stage, ranks, size in zip(*[iter(sys.argv[1:])] * 6)}
    print(json.dumps(result))
