"""A worker of the tests: trains by an example and writes the loss of each global batch to
FOLDER/RANK.

python3 curve.py EXAMPLE STEPS DTYPE FOLDER

The environment's COMPRESS is how gradients of shoal.torch.ddp are compressed.
"""

import functools
import importlib
import json
import os
import pathlib
import sys

import shoal

EXAMPLES = pathlib.Path(__file__).resolve().parent.parent
sys.path[:0] = [str(EXAMPLES / "digits"), str(EXAMPLES / "gpt")]

if __name__ == "__main__":
    example, steps, dtype, folder = sys.argv[1:]
    job, train = shoal.join(), importlib.import_module(example).train
    if "COMPRESS" in os.environ:
        import shoal.torch
        from shoal.torch import PowerSGD, TopK  # noqa: F401  what COMPRESS may name

        shoal.torch.ddp = functools.partial(shoal.torch.ddp, compress=eval(os.environ["COMPRESS"]))
    if example == "char_gpt":
        losses = train(job, os.environ["TEXT"], int(steps))
    else:
        losses = train(job, int(steps), dtype)
    pathlib.Path(folder, str(job.rank)).write_text(json.dumps(losses))
