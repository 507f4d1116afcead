"""Has DeepSpeed's own converter put the parts of tensor parallel ranks together, and prints what comes of it.

    PYTHON state/format/deepspeed/testdata/join.py FOLDER

FOLDER is that of a tag. PYTHON has torch and deepspeed. Prints a JSON object with the state of all parameters, but for numbers of steps.
"""

import json
import os
import pathlib
import subprocess
import sys
import tempfile

import make

if __name__ == "__main__":
    os.environ["DS_ACCELERATOR"] = "cpu"
    import torch
    with tempfile.TemporaryDirectory() as to:
        subprocess.run([sys.executable, "-m", "deepspeed.checkpoint.ds_to_universal", "--input_folder", sys.argv[1], "--output_folder", f"{to}/out"], check=True, stdout=sys.stderr)
        found = {f"optimizer.{p.stem}.{p.parent.name}": make.show(torch.load(p, weights_only=False)["param"]) for p in sorted(pathlib.Path(to).glob("out/zero/*/*.pt")) if p.stem != "step"}
    print(json.dumps(found))
