"""Where a DTensor lies, in the language of layouts. The functions only read what they get."""

from __future__ import annotations

import itertools
import math
import sys
from typing import Any, Dict, List, NamedTuple, Optional, Tuple


class LayoutPlacement(NamedTuple):
    """The mesh of a DTensor, and its placement on it; docs/formats/layout.md has the language of
    both.
    """

    mesh: str
    place: str


def dtensor_placement(x: Any) -> Optional[LayoutPlacement]:
    """Where a DTensor lies, on the mesh from which its own was cut; None when x is none. Raises
    ValueError for what a layout cannot say, with words that follow the name of the tensor.
    """
    if not _is_dtensor(x):
        return None
    root = _root_mesh(x.device_mesh)
    ranks = root.mesh.flatten().tolist()
    if ranks != list(range(len(ranks))):
        raise ValueError(
            f"lies on the ranks {ranks}: shoal.state takes DTensors on a mesh of all ranks, in"
            " their order, or on axes of one"
        )
    names = [
        name.lower() for name in root.mesh_dim_names or [f"d{i}" for i in range(root.mesh.ndim)]
    ]
    axes = [
        "*".join(names[i] for i in _axes_in_root(x.device_mesh.mesh, i, root.mesh))
        for i in range(x.device_mesh.mesh.ndim)
    ]
    cuts = [
        # torch cuts as torch.chunk does.
        f"{axes[i]}=shard({dim},ceil)"
        for dim, order in _cut_order(x, axes).items()
        for i in order
        if axes[i]  # an axis of one position cuts nothing
    ]
    return LayoutPlacement(
        ",".join(f"{name}={size}" for name, size in zip(names, root.mesh.shape)), ", ".join(cuts)
    )


def local_part(x: Any) -> Any:
    """The part of a DTensor that is here, sharing its memory; any other array as it is."""
    return x.to_local() if _is_dtensor(x) else x


def _is_dtensor(x: Any) -> bool:
    """Whether x is a DTensor; without an import of torch."""
    torch = sys.modules.get("torch")
    return (
        torch is not None
        and isinstance(x, torch.Tensor)
        and hasattr(x, "placements")
        and hasattr(x, "device_mesh")
    )


def _root_mesh(mesh: Any) -> Any:
    """The mesh from which a mesh was cut; itself where it was not."""
    if hasattr(mesh, "_get_root_mesh"):
        return mesh._get_root_mesh()
    # older versions of PyTorch
    resources = getattr(sys.modules[type(mesh).__module__], "_mesh_resources", None)
    return mesh if resources is None else resources.get_root_mesh(mesh)


def _axes_in_root(mesh: Any, axis: int, root: Any) -> Tuple[int, ...]:
    """The axes of the root that an axis of a mesh runs over, both tensors of ranks: one, several
    that were made one, or none where it has one position. Raises ValueError for any other axis.
    """
    along = mesh.movedim(axis, 0).flatten(1)[:, 0] if mesh.ndim > 1 else mesh
    steps = (along - along[0]).tolist()
    for count in range(root.ndim + 1):
        for chosen in itertools.combinations(range(root.ndim), count):
            line = root[tuple(slice(None) if i in chosen else 0 for i in range(root.ndim))]
            if line.flatten().tolist() == steps:
                return chosen
    raise ValueError(
        f"lies on the ranks {along.tolist()}, which are no axis of the mesh {root.tolist()}"
    )


def _cut_order(x: Any, axes: List[str]) -> Dict[int, List[int]]:
    """By dimension of a DTensor, the axes of its mesh that cut it, in the order in which they do.
    Raises ValueError for placements that are not known.
    """
    orders: Dict[int, List[int]] = {}
    sizes = list(x.device_mesh.mesh.shape)
    # An axis cuts what those before it have left, but for strided shards: FSDP cuts what tensor
    # parallelism has cut already, although its axis comes first. The split factor is the number of
    # parts that the axes after this one have made before.
    for i, placement in reversed(list(enumerate(x.placements))):
        kind, on = type(placement).__name__.lstrip("_"), f"on the axis {axes[i] or i}"
        if kind == "Replicate":
            continue
        if placement.is_partial():
            raise ValueError(
                f"has no value of its own on a rank, but is put together from all of them: it is"
                f" {placement!r} {on}; redistribute it to Replicate() or Shard(dim) first"
            )
        if kind not in ("Shard", "StridedShard"):
            raise ValueError(
                f"is placed as {placement!r} {on}, and shoal.state does not know"
                f" {type(placement).__name__}: redistribute it to Replicate() or Shard(dim) first"
            )
        order = orders.setdefault(placement.dim % x.ndim, [])
        parts = placement.split_factor if kind == "StridedShard" else 1
        made = [math.prod(sizes[j] for j in order[:n]) for n in range(len(order) + 1)]
        if parts not in made:
            raise ValueError(
                f"is placed as {placement!r} {on}, and the axes after it cut that dimension into"
                f" {made[-1]}, not into {parts}: redistribute it to Shard(dim) first"
            )
        order.insert(made.index(parts), i)
    return orders
