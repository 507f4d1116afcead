"""Has DeepSpeed train the pipeline with experts of make_parallel.py over some ranks, from the beginning or from a checkpoint on, and save it.

    PYTHON format/deepspeed/testdata/resume.py FROM TO STEPS RANKS STAGES EP [FROM TO …]

FROM is a folder with a checkpoint, or - for none, and EP the number of expert parallel ranks in each stage. PYTHON has torch and deepspeed. Prints a JSON object with the losses of the steps, by TO.
"""

import contextlib
import json
import os
import sys

import load_parallel
import make_parallel


def train(folder, to, steps, stages, ep):
    engine, _ = make_parallel.expertpipe(stages, ep, 0, tied=False, universal=os.path.exists(f"{folder}/latest_universal"))
    if folder != "-":
        engine.load_checkpoint(folder)
    losses = [make_parallel.batch(engine, make_parallel.RANKS // stages) for _ in range(steps)]
    engine.save_checkpoint(to, tag="step")
    return losses


if __name__ == "__main__":
    with contextlib.redirect_stdout(sys.stderr):
        os.environ["DS_ACCELERATOR"] = "cpu"
        import deepspeed  # noqa: F401
        result = {}
        for folder, to, *numbers in zip(*[iter(sys.argv[1:])] * 6):
            steps, ranks, stages, ep = map(int, numbers)
            result[to] = load_parallel.spread(ranks, train, folder, to, steps, stages, ep)[0]
    print(json.dumps(result))
