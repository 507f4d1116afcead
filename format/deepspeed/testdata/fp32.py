"""Has DeepSpeed put the weights of ZeRO checkpoints together, as its zero_to_fp32.py does.

    PYTHON format/deepspeed/testdata/fp32.py FOLDER…

PYTHON has torch and deepspeed. Prints a JSON object: for each folder the tensors that DeepSpeed finds.
"""

import contextlib
import json
import os
import sys

import make

if __name__ == "__main__":
    os.environ["DS_ACCELERATOR"] = "cpu"
    with contextlib.redirect_stdout(sys.stderr):
        from deepspeed.utils.zero_to_fp32 import get_fp32_state_dict_from_zero_checkpoint
        found = {folder: {name: make.show(t) for name, t in get_fp32_state_dict_from_zero_checkpoint(folder).items()} for folder in sys.argv[1:]}
    print(json.dumps(found))
