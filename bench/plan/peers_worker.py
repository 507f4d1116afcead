"""Two workers that train the GPT of chain_worker.py by turns: with shoal.torch.chain, and with
torch.distributed.pipelining on Gloo, on the same split.

shoal run -n 2 -- python3 peers_worker.py FOLDER SPLIT ROUNDS STEPS writes the seconds of all steps,
by runtime, to FOLDER/times.json.
"""

from __future__ import annotations

import json
import pathlib
import sys
import time
from typing import Callable, Dict, List

import chain_worker as gpt
import shoal
import torch
import torch.distributed
from shoal.torch.chain.layers import Layers
from shoal.torch.chain.stage import Program, Stage
from torch.distributed.pipelining import PipelineStage, Schedule1F1B

MICRO = 4


def by_chain(job: shoal.Job, split: str) -> Callable[[], None]:
    """A step of chain, by 1F1B."""
    program = Program(gpt.loss, gpt.optimizer, None, gpt.fetch)
    mesh = job.mesh(f"pp=2({split};micro={MICRO};ahead=2/1)")
    stage = Stage(Layers(gpt.layers, gpt.optimizer), program, mesh)
    stage.initialize()
    indices = list(range(gpt.BATCH))

    def step() -> None:
        """Make the step, with the all-reduce of the loss that commits it in a job."""
        job.allreduce(stage.gradients(indices))
        stage.update()

    return step


def by_pipelining(rank: int, split: str) -> Callable[[], None]:
    """A step of torch.distributed.pipelining, by 1F1B."""
    first = int(split.split("/")[0])
    modules = list(gpt.layers())
    mine = torch.nn.Sequential(*(modules[first:] if rank else modules[:first]))
    optimizer = gpt.optimizer(list(mine.parameters()))
    stage = PipelineStage(mine, rank, 2, torch.device("cpu"))
    schedule = Schedule1F1B(stage, gpt.BATCH // MICRO, loss_fn=gpt.loss)
    inputs, targets = gpt.fetch(torch.arange(gpt.BATCH))

    def step() -> None:
        """Make the step."""
        optimizer.zero_grad()
        if rank:
            schedule.step(target=targets, losses=[])
        else:
            schedule.step(inputs)
        optimizer.step()

    return step


def main() -> None:
    """Measure as the command line says."""
    folder, split = sys.argv[1:3]
    rounds, steps = map(int, sys.argv[3:])
    torch.set_num_threads(1)
    job = shoal.join()
    torch.distributed.init_process_group(
        "gloo", init_method=f"file://{folder}/store", rank=job.rank, world_size=2
    )
    ways = {"chain": by_chain(job, split), "pipelining": by_pipelining(job.rank, split)}
    took: Dict[str, List[float]] = {name: [] for name in ways}
    for turn in range(rounds):
        order = list(ways.items())
        for name, step in order[:: -1 if turn % 2 else 1]:
            for number in range(steps + 1):
                job.barrier()
                began = time.perf_counter()
                step()
                job.barrier()  # a step is over when both stages are through
                if number or turn:
                    took[name].append(time.perf_counter() - began)
    if job.rank == 0:
        pathlib.Path(folder, "times.json").write_text(json.dumps(took))
    torch.distributed.destroy_process_group()


if __name__ == "__main__":
    main()
