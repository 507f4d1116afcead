"""Has DeepSpeed's own converter put the parts of tensor parallel ranks together, and prints what comes of it.

    PYTHON format/deepspeed/testdata/join.py FOLDER…

FOLDER is that of a tag. PYTHON has torch and deepspeed. Prints a JSON object: for each folder the state of all parameters, but for numbers of steps.
"""

import contextlib
import json
import os
import pathlib
import sys
import tempfile

import make

def join(folder):
    """Has the converter join a folder in this process, without processes beside it, which take longer to start than to work."""
    import torch
    from deepspeed.checkpoint import ds_to_universal
    with tempfile.TemporaryDirectory() as to:
        sys.argv[1:] = ["--input_folder", folder, "--output_folder", f"{to}/out", "--num_extract_workers", "1", "--num_merge_workers", "1"]
        ds_to_universal.main(ds_to_universal.parse_arguments())
        parts = [p for p in sorted(pathlib.Path(to).glob("out/zero/*/*.pt")) if p.stem != "step"]
        return {f"optimizer.{p.stem}.{p.parent.name}": make.show(torch.load(p, weights_only=False)["param"]) for p in parts}


if __name__ == "__main__":
    os.environ["DS_ACCELERATOR"] = "cpu"
    with contextlib.redirect_stdout(sys.stderr):
        found = {folder: join(folder) for folder in sys.argv[1:]}
    print(json.dumps(found))
