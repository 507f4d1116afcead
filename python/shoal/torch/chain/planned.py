"""The mesh that a chain trains on: the text of one, or a deployment that shoal plan has written."""

from __future__ import annotations

import json
import os
from typing import Any, Mapping

from shoal._runtime.arguments import wrong_type
from shoal._runtime.axes import parse_axes

_MOST_BYTES = 1 << 20  # of a deployment


def read_mesh(mesh: str, layers: int) -> str:
    """The text of the mesh that `mesh` is, or that the deployment has whose file it names, for a
    model of so many layers. Raises TypeError for what is no text, and ValueError where it is
    neither, or for another model.
    """
    if not isinstance(mesh, str):
        raise wrong_type("mesh", mesh, "a text such as 'dp=2,pp=2', or the name of a deployment")
    source = f"mesh={mesh!r}"
    if os.path.exists(mesh) or mesh.endswith(".json"):
        deployment, source = _read_deployment(mesh), mesh
        planned = _layers_of(deployment)
        mesh = deployment["mesh"]
        if planned not in (None, layers):
            raise ValueError(
                f"{source} is a plan for a model of {planned} layers, and this one has {layers}:"
                " profile this model, and plan it"
            )
    for axis in parse_axes(mesh):
        if axis.name not in ("dp", "pp") and axis.size > 1:
            raise ValueError(
                f"{source} has the axis {axis.name}, and a chain is cut over pp and dp alone: a"
                " program that cuts tensors is examples/gpt/mesh_gpt.py"
            )
        if axis.chunks and axis.chunks > 1:
            raise ValueError(
                f"{source} deals the layers in chunks, and a chain has the layers of a stage in a"
                " row: leave chunks out"
            )
        if axis.name == "pp" and axis.shares and sum(axis.shares) != layers:
            raise ValueError(
                f"{source} gives the stages {'/'.join(map(str, axis.shares))} layers,"
                f" {sum(axis.shares)} in all, and the model has {layers}: give shares of {layers}"
            )
    return mesh


def _read_deployment(path: str) -> Mapping[str, Any]:
    """The content of a deployment file, which has a mesh that is a text. Raises ValueError for any
    other file.
    """
    try:
        with open(path, "rb") as file:
            text = file.read(_MOST_BYTES + 1)
    except OSError as e:
        raise ValueError(f"mesh={path!r}: no deployment can be read there: {e.strerror}") from None
    try:
        found = json.loads(text) if len(text) <= _MOST_BYTES else None
    except (ValueError, RecursionError) as e:
        raise ValueError(f"{path} is no deployment: {e}") from None
    if not isinstance(found, dict) or found.get("shoal") != "deployment/1":
        raise ValueError(
            f"{path} is no deployment, or one of another version: shoal plan -o writes one"
        )
    if not isinstance(found.get("mesh"), str) or not found["mesh"].strip():
        runs = found.get("runs")
        why = runs.get("why_not") if isinstance(runs, dict) else None
        raise ValueError(
            f"{path} is a plan that no job trains by{f', because {why}' if why else ''}: make one"
            " by shoal plan -o without --space"
        )
    return found


def _layers_of(deployment: Mapping[str, Any]) -> Any:
    """How many layers a deployment places; None where it does not say."""
    stages = deployment.get("stages")
    try:
        return sum(stage["layers"] for stage in stages) if stages else None
    except (TypeError, KeyError):
        return None
