"""The model and the data that all trainings of this measurement have, and their notes."""

from __future__ import annotations

import dataclasses
import json
import os
import pathlib
import time

# How many rows of tokens, random ones: what is measured does not depend on what the model learns.
ROWS = 4096


@dataclasses.dataclass(frozen=True)
class Shape:
    """A GPT-2: the number of its tokens, of the dimensions of an embedding, of its layers and of
    its attention heads. `context` is the number of tokens in a row of the data.
    """

    vocabulary: int
    width: int
    layers: int
    heads: int
    context: int


SHAPES = {
    "tiny": Shape(vocabulary=256, width=64, layers=2, heads=4, context=64),
    "medium": Shape(vocabulary=8192, width=384, layers=6, heads=6, context=64),
    "gpt2-small": Shape(vocabulary=50257, width=768, layers=12, heads=12, context=64),
}


def model_of(name: str):
    """Returns the GPT-2 of this shape, the same in every process; gpt2-small has 124M parameters.
    """
    import torch
    from transformers import GPT2Config, GPT2LMHeadModel

    shape = SHAPES[name]
    torch.manual_seed(1)
    return GPT2LMHeadModel(
        GPT2Config(
            vocab_size=shape.vocabulary,
            n_positions=1024,
            n_embd=shape.width,
            n_layer=shape.layers,
            n_head=shape.heads,
            bos_token_id=0,
            eos_token_id=0,
        )
    )


def rows_of(name: str):
    """Returns the data, a tensor of ROWS rows of tokens."""
    import torch

    shape = SHAPES[name]
    generator = torch.Generator().manual_seed(2)
    return torch.randint(shape.vocabulary, (ROWS, shape.context), generator=generator)


class Notes:
    """Writes a line for each step that this process has ended into a file of its own in a folder:
    the step from 1 on, the second of the wall clock, the process and its rank. One thread uses it.
    The file stays open until the process ends.
    """

    def __init__(self, folder: str) -> None:
        """Notes in an existing folder, whose file lasts as long as the process."""
        self._file = open(pathlib.Path(folder) / f"steps-{os.getpid()}.jsonl", "a")

    def ended(self, step: int, rank: int) -> None:
        """Note the end of a step now, which was the step-th from 1 on, on this rank."""
        line = {"step": step, "at": time.time(), "pid": os.getpid(), "rank": rank}
        print(json.dumps(line), file=self._file, flush=True)


def read_notes(folder: pathlib.Path) -> list[dict]:
    """Returns the lines of all Notes in a folder, by time. A line that is being written is left
    out.
    """
    lines = []
    for path in folder.glob("steps-*.jsonl"):
        whole, _, _ = path.read_text().rpartition("\n")
        lines += map(json.loads, whole.splitlines())
    return sorted(lines, key=lambda line: line["at"])
