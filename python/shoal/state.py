"""Training state in files: saved by all workers of a job together, loaded for any layout from any
format that `shoal state` reads.

    # DTensors say where they lie; a layout says it of other arrays.
    shoal.state.save(model.state_dict(), "checkpoints/step-1000")
    shoal.state.save(tensors, folder, mesh="dp=2,tp=2", layout=spec, catalogue=whole)
    # On other workers, with another layout:
    shoal.state.load(model.state_dict(), "checkpoints/step-1000")

What is saved is a file for each rank with its layout and a seal (docs/formats/ranks.md), so `shoal
state verify`, `reshard` and `convert` take it. What lies where is computed by the `shoal` binary,
the same that starts the workers. Needs NumPy. All functions run on the thread that calls `save` or
`load`, as a rule that of the training loop, and block for the other workers, the binary and files.
"""

from __future__ import annotations

import functools
import json
import math
import os
import reprlib
import shutil
import sys
from typing import (
    Any,
    Callable,
    Dict,
    Iterable,
    List,
    Mapping,
    NamedTuple,
    Optional,
    Sequence,
    TypeVar,
    Union,
)

from ._checkpoint import values
from ._checkpoint.commit import MANIFEST, sync_folder
from ._checkpoint.parts import Part, TensorReader, parts_of_rank, run_shoal, write_rank_file
from ._checkpoint.placements import dtensor_placement, local_part
from ._checkpoint.shards import TensorInfo
from ._checkpoint.shards import catalogue as tensor_infos
from ._runtime.arguments import as_catalogue, wrong_type
from ._runtime.axes import parse_axes
from ._runtime.tensor import is_torch
from ._runtime.tree import Item, flatten
from .errors import ShoalError
from .job import Job, join
from .mesh import Mesh

__all__ = ["load", "save"]

T = TypeVar("T")
Path = Union[str, "os.PathLike[str]"]
Layout = Union[str, Mapping[str, Any]]
Catalogue = Sequence[Mapping[str, Any]]

_LAYOUT = "shoal-layout.json"
_OWN = ("rank-", "shoal-", "values.")  # how the names of files begin that a save writes


def save(
    state: Mapping[str, Any],
    folder: Path,
    mesh: "Union[Mesh, str, None]" = None,
    layout: Optional[Layout] = None,
    catalogue: Optional[Catalogue] = None,
) -> None:
    """Write the state of all workers as one checkpoint. Every worker of the job calls it; it
    returns when the folder is there.

    `state` maps names to arrays (NumPy, torch, DTensor), or to mappings of these, whose names are
    joined by dots. It may also have numbers, texts, and lists, tuples and dicts of these, such as
    the groups of an optimizer; these are alike on all workers that have them.

    A DTensor says which part of it is here. Its mesh has all ranks of the job, or is cut from one
    that has; on the other axes of that it has replicas, of which one is written. Every other array
    is whole and alike on all workers, unless `layout` says where it lies: a spec of
    docs/formats/layout.md, as JSON or a mapping. The spec holds for `mesh`, where axes that only
    the spec has are of degree 1, or for the mesh in the spec. Then `catalogue` lists the whole
    tensors with name, dtype and shape, as shoal-layout.json does.

    The folder appears at once, sealed, when everything is on the disk. Raises ShoalError on every
    worker when any of them fails, and then there is no folder. All hosts need the same file system.
    """
    job, target = join(), _local_path(folder)
    staging = target + ".partial"
    all_succeed = functools.partial(_all_succeed, job, "save")
    local = _describe_state(job, all_succeed, state, mesh, layout, catalogue)
    all_succeed(lambda: None if job.rank else _make_staging(target, staging))
    try:
        folders = _gather_json(job, target)
        all_succeed(lambda: _check_folder(folders[0], target, staging))
        all_succeed(lambda: _write_part(job, local, staging))
        all_succeed(lambda: None if job.rank else _publish(staging, target))
    except BaseException:
        if not job.rank:
            shutil.rmtree(staging, ignore_errors=True)
        raise


def load(
    state: Mapping[str, Any],
    path: Path,
    mesh: "Union[Mesh, str, None]" = None,
    layout: Optional[Layout] = None,
    catalogue: Optional[Catalogue] = None,
) -> None:
    """Fill the arrays of `state` from a checkpoint, and replace its other values. Every worker of
    the job calls it; the arguments are those of save.

    The path is a folder or a file of any format that `shoal state ls` takes, saved from any layout.
    Tensors that the state does not name are ignored. Where the checkpoint has a seal, one worker
    verifies it first. Raises ShoalError on every worker when any of them fails, such as for a
    missing tensor or value, or a tensor of another shape or type; the arrays then hold anything.
    """
    job, source = join(), _local_path(path)
    all_succeed = functools.partial(_all_succeed, job, "load")
    local = _describe_state(job, all_succeed, state, mesh, layout, catalogue)
    all_succeed(lambda: None if job.rank else _verify(source))
    all_succeed(lambda: _fill_state(local, source))


class _Tensor(NamedTuple):
    """A tensor of this worker, whose array stays the user's."""

    leaf: values.Leaf  # of the user's array, which may be a DTensor or a scalar of NumPy
    item: Item  # the bytes of the part on this worker
    info: TensorInfo  # how a safetensors file describes the part


class _LocalState(NamedTuple):
    """The state of the job, and the part of it on this worker."""

    text: bytes  # the content of shoal-layout.json
    parts: List[Part]  # by the layout, the parts of tensors on this worker
    tensors: Dict[str, _Tensor]  # by name, the tensors that the user gave
    values: Dict[str, Any]  # the values of all workers
    wanted: List[values.Leaf]  # the values of this worker


def _local_path(path: Path) -> str:
    """The absolute path of a file or folder. Raises ShoalError for a URL."""
    text = os.fsdecode(path)
    if "://" in text or text.startswith("s3:/"):  # a Path makes one slash of two
        raise ShoalError(
            f"{text}: shoal.state has folders and files; `shoal state convert` brings a checkpoint"
            " from a bucket or to one, and job.checkpoint writes into one"
        )
    return os.path.abspath(text)


def _describe_state(
    job: Job,
    all_succeed: Callable[[Callable[[], Any]], Any],
    state: Mapping[str, Any],
    mesh: "Union[Mesh, str, None]",
    layout: Optional[Layout],
    catalogue: Optional[Catalogue],
) -> _LocalState:
    """The state that the workers have together. All of them call this, wait for each other, and
    compare theirs. `all_succeed` is `_all_succeed` for this job and operation. Changes no array.
    """
    if not isinstance(state, Mapping):
        raise wrong_type("state", state, "a mapping of names to arrays")
    leaves = list(values.leaves("", state))
    all_succeed(lambda: _check_names(leaves))
    wanted = [leaf for leaf in leaves if not values.is_array(leaf.value)]
    tensors = all_succeed(
        lambda: {
            leaf.name: _describe_tensor(leaf)
            for leaf in leaves
            if values.is_array(leaf.value)
        }
    )
    said = all_succeed(
        lambda: {
            **_known_layout(job, tensors, mesh, layout),
            "values": {leaf.name: values.plan_value(leaf) for leaf in wanted},
        }
    )
    everyone = _gather_json(job, said)

    def merge() -> _LocalState:
        """Put together what all workers have said. Raises ValueError where they contradict each
        other.
        """
        if any((one["mesh"], one["layout"]) != (said["mesh"], said["layout"]) for one in everyone):
            raise ValueError(
                "the workers gave different meshes or layouts: give the same on all of them"
            )
        given = said["layout"]
        rules = [
            *_unique(rule for one in everyone for rule in one["rules"]),
            *given.get("rules", [{"match": "**"}]),
        ]
        if catalogue is not None:
            whole = as_catalogue(catalogue)
        else:
            whole = _unique(tensor for one in everyone for tensor in one["tensors"])
            _check_alike(whole)
        spec = {"shoal": "layout/1", **given, "mesh": said["mesh"], "rules": rules}
        merged = values.merge_plans(one["values"] for one in everyone)
        text = json.dumps(
            {"shoal": "ranks/1", "spec": spec, "tensors": whole, "values": bool(merged)},
            indent=1,
        ).encode()
        local = _LocalState(text, parts_of_rank(text, job.rank), tensors, merged, wanted)
        _check_layout(local)
        return local

    return all_succeed(merge)  # type: ignore[no-any-return]


def _check_names(leaves: Sequence[values.Leaf]) -> None:
    """Raise ValueError where two leaves have one name, of which only one would be kept."""
    names = set()
    for leaf in leaves:
        if leaf.name in names:
            raise ValueError(
                f"the state has {leaf.name} twice, since keys are joined by dots: rename one"
            )
        names.add(leaf.name)


def _check_alike(whole: Sequence[Mapping[str, Any]]) -> None:
    """Raise ValueError where workers have another shape or type of one array."""
    known: Dict[str, Mapping[str, Any]] = {}
    for tensor in whole:
        other = known.setdefault(tensor["name"], tensor)
        if other is not tensor:
            raise ValueError(
                f"tensor {tensor['name']} is {other['dtype']} {other['shape']} on one worker and"
                f" {tensor['dtype']} {tensor['shape']} on another: an array is whole and alike on"
                " all workers, unless layout says where it lies and catalogue lists it"
            )


def _parse_layout(layout: Optional[Layout]) -> Dict[str, Any]:
    """The spec in an argument layout; {} for None. Raises TypeError and ValueError for what is
    none.
    """
    what = "a spec of docs/formats/layout.md, as JSON or a mapping"
    try:
        spec = json.loads(layout) if isinstance(layout, str) else layout
    except ValueError as e:
        raise ValueError(f"layout={reprlib.repr(layout)}: {what}: {e}") from None
    if spec is not None and not isinstance(spec, Mapping):
        raise wrong_type("layout", layout, what)
    return dict(spec or {})


def _known_layout(
    job: Job, tensors: Dict[str, _Tensor], mesh: "Union[Mesh, str, None]", layout: Optional[Layout]
) -> Dict[str, Any]:
    """The layout as far as this worker knows it: the mesh, the rules of its DTensors, and the whole
    tensors of its arrays.
    """
    spec = _parse_layout(layout)
    axes = str(mesh) if mesh is not None else str(spec.get("mesh", ""))
    rules, whole = [], []
    for name, tensor in tensors.items():
        try:
            where = dtensor_placement(tensor.leaf.value)
        except ValueError as err:
            raise ValueError(f"tensor {name} {err}") from None
        if where is not None:
            if axes and where.mesh != axes:
                raise ValueError(
                    f"tensor {name} lies on a mesh {where.mesh}, not on {axes}: give tensors that"
                    " lie on one mesh, or on axes of it"
                )
            if "#" in name or "*" in name:
                raise ValueError(
                    f"tensor {name}: a DTensor whose name has # or *, which mean others in a"
                    " layout, must be renamed"
                )
            axes = where.mesh
            rules.append({"match": name, "place": where.place})
        whole.append(
            {
                "name": name,
                "dtype": tensor.info.dtype.lower(),
                "shape": [int(n) for n in tensor.leaf.value.shape],
            }
        )
    axes = axes or f"dp={job.size}"
    named = {axis.name: axis.size for axis in parse_axes(axes)}
    ones = [
        f"{axis.name}=1"
        for axis in parse_axes(str(spec.get("mesh", "")))
        if axis.name not in named
    ]
    axes = ",".join([*ones, axes])
    if math.prod(named.values()) != job.size:
        raise ValueError(
            f"a mesh {axes} for a job of {job.size} workers: give the one on which the state lies"
        )
    return {"mesh": axes, "layout": spec, "rules": rules, "tensors": whole}


def _describe_tensor(leaf: values.Leaf) -> _Tensor:
    """A tensor with its bytes on this worker, which are not copied where they are dense on the CPU.
    Raises TypeError for elements that a file cannot hold.
    """
    items: List[Item] = []
    part = local_part(leaf.value)
    flatten(leaf.name, part, items)
    info = tensor_infos(items)[0]._replace(name=leaf.name)  # with all of its letters
    if info.shape != [int(n) for n in part.shape]:
        raise TypeError(
            f"{leaf.name} has elements of {part.dtype}, which a safetensors file cannot hold:"
            " convert it"
        )
    return _Tensor(leaf, items[0], info)


def _check_layout(local: _LocalState) -> None:
    """Raise ValueError where the layout and the arrays of this worker are not the same."""
    listed = {part.name: part for part in local.parts}
    for name, tensor in local.tensors.items():
        part = listed.pop(name, None)
        if part is None and not tensor.item.nbytes:
            continue
        if part is None:
            raise ValueError(f"tensor {name} is on this worker, and by the layout it is not")
        if (part.dtype, part.shape) != (tensor.info.dtype.lower(), tensor.info.shape):
            raise ValueError(
                f"tensor {name} is {tensor.info.dtype.lower()} {tensor.info.shape} on this worker,"
                f" by the layout {part.dtype} {part.shape}"
            )
    missing = [name for name, part in listed.items() if min(part.shape, default=1)]
    if missing:
        raise ValueError(
            f"tensor {missing[0]} is by the layout on this worker, and the state does not have it:"
            " without a rule for it all workers have it"
        )


def _make_staging(target: str, staging: str) -> None:
    """Make the folder in which the checkpoint is written until it is whole, on rank 0, and remove
    an earlier one of the name. Raises ShoalError where the target is there, or in the place of the
    folder what no save has made.
    """
    if os.path.lexists(target):
        raise ShoalError(
            f"{target} is there already; shoal overwrites nothing: remove it, or choose another"
            " name"
        )
    if os.path.lexists(staging):  # a save that was killed leaves it
        strangers = [name for name in os.listdir(staging) if not name.startswith(_OWN)]
        if strangers:
            raise ShoalError(
                f"{os.path.join(staging, min(strangers))} is there, and no earlier save has made"
                f" it; {staging} would be removed, and shoal overwrites nothing: move it away, or"
                " choose another name"
            )
        shutil.rmtree(staging)
    os.makedirs(staging)


def _check_folder(first: str, target: str, staging: str) -> None:
    """Raise ValueError where this worker saves to another folder than rank 0, which saves to
    `first`. Hosts may know one folder by several paths: then `staging` is there.
    """
    if target != first and not os.path.isdir(staging):
        raise ValueError(
            f"this worker saves to {target}, and rank 0 to {first}: give the same folder on all of"
            " them"
        )


def _write_part(job: Job, local: _LocalState, staging: str) -> None:
    """Write this worker's file into the folder `staging`, durably, and on rank 0 also the layout
    and the values.
    """
    name = f"rank-{job.rank:05d}.safetensors"
    own = [local.tensors[part.name] for part in local.parts if part.file == name]
    if own:
        write_rank_file(
            os.path.join(staging, name),
            [(tensor.info, tensor.item) for tensor in own],
            job.rank,
            job.size,
        )
    if not job.rank:
        with open(os.path.join(staging, _LAYOUT), "wb") as file:
            file.write(local.text)
            file.flush()
            os.fsync(file.fileno())
        if local.values:
            values.write_values(staging, local.values)


def _publish(staging: str, target: str) -> None:
    """Seal the checkpoint, on rank 0 when all have written their files, and give its folder the
    name that the user wants.
    """
    run_shoal("state", "seal", staging)
    sync_folder(staging)
    os.rename(staging, target)
    sync_folder(os.path.dirname(target))


def _verify(path: str) -> None:
    """Have the `shoal` binary verify a checkpoint with a seal, or check one without, on rank 0, and
    wait for it. Raises ShoalError for a damaged one.
    """
    if os.path.exists(os.path.join(path, MANIFEST)) or os.path.exists(f"{path}.{MANIFEST}"):
        run_shoal("state", "verify", path)
    else:
        run_shoal("state", "check", path)


def _fill_state(local: _LocalState, path: str) -> None:
    """Set the arrays and values of this worker, which stay the user's, from the checkpoint at
    `path`, whose files it reads. Raises ShoalError for one that lacks some, or has others.
    """
    import numpy

    source = TensorReader(path)
    whole = {
        str(t["name"]): (str(t["dtype"]), list(t["shape"]))
        for t in json.loads(local.text)["tensors"]
    }
    for part in local.parts:
        tensor = local.tensors.get(part.name)
        if tensor is None or not tensor.item.nbytes:
            continue
        memory = numpy.empty(tensor.item.nbytes, numpy.uint8)
        source.read_part(part, whole, memory)
        _assign(tensor.leaf, memory)
    values.replace_values(local.wanted, path)


def _assign(leaf: values.Leaf, memory: Any) -> None:
    """Set the elements of an array from its bytes, a uint8 array of the same size; replace a scalar
    of NumPy, which has no elements. Raises ShoalError where that cannot be replaced.
    """
    array = local_part(leaf.value)
    if is_torch(array):
        torch = sys.modules["torch"]
        array.detach().copy_(torch.from_numpy(memory).view(array.dtype).view(array.shape))
    elif hasattr(array, "__setitem__"):
        array[...] = memory.view(array.dtype).reshape(array.shape)
    else:
        values.check_replaceable(leaf)
        leaf.holder[leaf.key] = memory.view(array.dtype)[0]


def _unique(listed: Iterable[Dict[str, Any]]) -> List[Dict[str, Any]]:
    """The different items, in the order of their first occurrence."""
    return list({json.dumps(x, sort_keys=True): x for x in listed}.values())


def _gather_json(job: Job, value: Any) -> List[Any]:
    """The values of all workers, by rank; each consists of JSON types. All workers call this, and
    wait for each other.
    """
    import numpy

    text = json.dumps(value).encode() + b"\n"
    everyone = job.allgatherv(numpy.frombuffer(bytearray(text), numpy.uint8))
    return [json.loads(line) for line in bytes(everyone).splitlines()]


def _all_succeed(job: Job, operation: str, what: Callable[[], T]) -> T:
    """Call `what` on every worker, and return its result on this one when it has succeeded on all,
    for which it waits. When it fails on any worker, all of them raise ShoalError, so that none
    waits for another. `operation` is what the user has called, for the message.
    """
    result: Optional[T] = None
    error = ""
    try:
        result = what()
    except Exception as err:
        error = f"shoal.state.{operation}: rank {job.rank}: {err}"
        own = err
    failed = [e for e in _gather_json(job, error) if e]
    if error:
        raise ShoalError(failed[0]) from own
    if failed:
        raise ShoalError(failed[0])
    return result  # type: ignore[return-value]
