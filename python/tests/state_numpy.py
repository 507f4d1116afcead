"""A worker of test_state.py: saves or loads a state in NumPy arrays that lies on a mesh.

python3 state_numpy.py MESH FOLDER...: saves to the first FOLDER if it is not there, then loads from
each and compares.
"""

import os
import sys

import numpy

import shoal


def whole(name, shape, dtype):
    """An array of this shape whose elements differ, by its name too."""
    count = int(numpy.prod(shape))
    return (numpy.arange(count) * 7 + len(name)).astype(dtype).reshape(shape)


WHOLE = {
    name: whole(name, shape, dtype)
    for name, shape, dtype in [
        ("qkv", (36, 4), "float32"),
        ("columns", (5, 12), "float64"),
        ("rows", (7, 3), "int64"),
        ("count", (), "int32"),
        ("flags", (3, 3), "bool"),
        *((f"layers.{i}.w", (4, 2), "float16") for i in range(5)),
    ]
}
CATALOGUE = [
    {
        "name": n,
        "dtype": {"bool": "bool"}.get(x.dtype.name, f"{x.dtype.kind}{8 * x.itemsize}"),
        "shape": list(x.shape),
    }
    for n, x in WHOLE.items()
]


def bounds(count, parts):
    """Where the parts begin, and the last one ends, if a count is cut as equally as whole numbers
    allow: parts + 1 numbers.
    """
    return [count // parts * i + min(i, count % parts) for i in range(parts + 1)]


def state_on_mesh(mesh):
    """The layout for a mesh with the axes tp and pp or one of them, and what this rank has by it:
    arrays by name, cut here by hand.
    """
    rules, here = [], dict(WHOLE)
    if "tp" in mesh.axes:
        rules += [
            {"match": "qkv", "place": "tp=shard(0,blocks=3)"},
            {"match": "columns", "place": "tp=shard(1)"},
            {"match": "rows", "place": "tp=shard(0,balanced)"},
        ]
        i, n = mesh["tp"].rank, mesh["tp"].size
        here["qkv"] = numpy.concatenate(
            [block[12 // n * i : 12 // n * (i + 1)] for block in numpy.split(WHOLE["qkv"], 3)]
        )
        # a view: its elements are not side by side
        here["columns"] = WHOLE["columns"][:, 12 // n * i : 12 // n * (i + 1)]
        here["rows"] = numpy.array_split(WHOLE["rows"], n)[i]
    if "pp" in mesh.axes:
        stages = bounds(5, mesh["pp"].size)
        rules.append(
            {
                "match": "layers.#.w",
                "place": f"pp=spread(1,5,cuts={'/'.join(map(str, stages[1:-1]))})",
            }
        )
        for i in range(5):
            if not stages[mesh["pp"].rank] <= i < stages[mesh["pp"].rank + 1]:
                del here[f"layers.{i}.w"]
    return {"shoal": "layout/1", "rules": [*rules, {"match": "**"}]}, here


if __name__ == "__main__":
    axes, *folders = sys.argv[1:]
    job = shoal.join()
    mesh = job.mesh(axes)
    layout, here = state_on_mesh(mesh)
    there = os.path.exists(folders[0])
    job.barrier()
    if not there:
        shoal.state.save(here, folders[0], mesh, layout, CATALOGUE)
        assert os.path.exists(folders[0] + "/shoal-manifest.json")
    for folder in folders:
        nested = {"layers": {}}
        for name, x in here.items():
            if name.startswith("layers."):
                nested["layers"][name[len("layers.") :]] = numpy.zeros_like(x)
            else:
                nested[name] = numpy.zeros_like(x)
        try:
            shoal.state.load(nested, folder, axes, layout, CATALOGUE)
        except shoal.ShoalError as err:
            print("REFUSED", err)
            continue
        for name, x in here.items():
            got = (
                nested["layers"][name[len("layers.") :]]
                if name.startswith("layers.")
                else nested[name]
            )
            assert (got == x).all(), name
        print("EQUAL", len(here), "tensors")
