"""Prints as JSON how DeepSpeed cuts layers of random weights in stages, evenly and by weight.

    PYTHON format/deepspeed/testdata/cuts.py > format/deepspeed/testdata/cuts.json

PYTHON has torch and deepspeed 0.19.
"""

import contextlib
import json
import random
import sys

if __name__ == "__main__":
    with contextlib.redirect_stdout(sys.stderr):
        from deepspeed.runtime.utils import partition_balanced, partition_uniform
    random.seed(3)
    found = []
    for _ in range(60):
        layers, stages = random.randint(1, 14), random.randint(1, 6)
        weights = [random.choice([0, 1, 1, 5, 7, 12]) for _ in range(layers)]
        found.append({"weights": weights, "stages": stages, "balanced": [int(x) for x in partition_balanced(weights, stages)[:-1]], "uniform": [int(x) for x in partition_uniform(layers, stages)[:-1]]})
    print(json.dumps(found))
