"""Where a DTensor lies, in the language of layouts."""

from __future__ import annotations

import sys
from typing import Any, List, NamedTuple, Optional


class Placed(NamedTuple):
    """The mesh of a DTensor, and its placement on it; docs/formats/layout.md has the language of
    both.
    """

    mesh: str
    place: str


def dtensor_placement(x: Any) -> Optional[Placed]:
    """Where a DTensor lies; None when x is none. Raises ValueError for what a layout cannot say."""
    torch = sys.modules.get("torch")
    if (
        torch is None
        or not isinstance(x, torch.Tensor)
        or not hasattr(x, "placements")
        or not hasattr(x, "device_mesh")
    ):
        return None
    mesh = x.device_mesh
    ranks = mesh.mesh.flatten().tolist()
    if ranks != list(range(len(ranks))):
        raise ValueError(
            f"a DTensor on the ranks {ranks}: only a mesh of all ranks, in their order, can be"
            " saved"
        )
    axes = [
        name.lower() for name in mesh.mesh_dim_names or [f"d{i}" for i in range(mesh.mesh.ndim)]
    ]
    cuts: List[str] = []
    late: List[str] = []
    for axis, placement in zip(axes, x.placements):
        if placement.is_partial():
            raise ValueError(
                "a DTensor whose value is the sum of its parts: redistribute it to Replicate() or"
                " Shard(dim) first"
            )
        if placement.is_shard():
            # FSDP cuts what tensor parallelism has cut already, although its axis comes first:
            # torch calls this a strided shard.
            strided = type(placement).__name__ == "_StridedShard"
            # torch cuts as torch.chunk does.
            (late if strided else cuts).append(f"{axis}=shard({placement.dim % x.ndim},ceil)")
    return Placed(
        ",".join(f"{axis}={size}" for axis, size in zip(axes, mesh.mesh.shape)),
        ", ".join(cuts + late),
    )


def local_part(x: Any) -> Any:
    """The part of a DTensor that is here, sharing its memory; any other array as it is."""
    return x.to_local() if dtensor_placement(x) is not None else x
