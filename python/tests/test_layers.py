"""The import lattice of the package: layers.txt says who may import whom, and nothing else does."""

import ast
import pathlib

ROOT = pathlib.Path(__file__).resolve().parents[1]
TEXT = pathlib.Path(__file__).with_name("layers.txt")
# The rooms' own __init__ files import nothing.
ROOMS = {"_runtime", "_checkpoint", "_live", "_trainers"}


def name_of(path):
    """The name, below `shoal`, of the module in this file; that of the package itself is `shoal`.
    """
    parts = path.relative_to(ROOT / "shoal").with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts) or "shoal"


def modules():
    """The files of all modules of the package, by name."""
    return {name_of(path): path for path in sorted((ROOT / "shoal").rglob("*.py"))}


def imports(name, text, known):
    """Yield the names of the modules of the package that the module `name` imports, wherever in its
    text. `known` has the files of all modules by name.
    """
    package = ["shoal", *([] if name == "shoal" else name.split("."))]
    if name in known and known[name].name != "__init__.py":
        package.pop()
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Import):
            candidates = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            above = package[: len(package) - node.level + 1] if node.level else []
            base = ".".join([*above, *([node.module] if node.module else [])])
            candidates = [f"{base}.{alias.name}" for alias in node.names]
        else:
            continue
        for full in candidates:
            parts = full.split(".")
            if parts[0] == "shoal":
                below = ".".join(parts[1:])
                found = below if below in known else ".".join(parts[1:-1])
                yield found or "shoal"


def allowed(text):
    """For each module of the lattice, the set of all that it may import. `text` is that of
    layers.txt; fails where that places a module twice, or too early.
    """
    reach = {}
    for line in text.splitlines():
        line = line.partition("#")[0].strip()
        if not line:
            continue
        below, _, above = line.partition(" < ")
        lower = [] if below == "NONE" else [name.strip() for name in below.split(",")]
        missing = [name for name in lower if name not in reach]
        assert not missing, f"{line}: {missing[0]} is placed on no line above"
        for name in above.split(","):
            assert name.strip() not in reach, f"{line}: {name.strip()} is placed twice"
            reach[name.strip()] = set(lower).union(*(reach[x] for x in lower))
    return reach


def test_every_import_points_down():
    """Every module is on a line of layers.txt, and imports only what that allows."""
    known, reach = modules(), allowed(TEXT.read_text(encoding="utf-8"))
    wrong = []
    for name, path in known.items():
        found = set(imports(name, path.read_text(encoding="utf-8"), known)) - {name} - ROOMS
        if name not in reach and name not in ROOMS:
            wrong.append(f"{name} is on no line of layers.txt")
        wrong += [f"{name} may not import {x}" for x in sorted(found - reach.get(name, set()))]
    assert not wrong, "\n".join(wrong)
    assert reach.keys() <= known.keys(), f"no modules: {sorted(reach.keys() - known.keys())}"


def test_all_forms_of_imports_are_seen():
    """Imports of every form count, in functions too."""
    known = modules()
    text = "import shoal.torch\nfrom . import fork\nfrom ..errors import LostError\n"
    text += "def f():\n    from .._live import packing\n"
    found = set(imports("_runtime.worker", text, known))
    assert found == {"torch", "_runtime.fork", "errors", "_live.packing"}
