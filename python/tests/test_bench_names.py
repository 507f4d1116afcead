"""What one module of bench takes from another one is there, though no test runs the benchmarks."""

import ast
import pathlib

BENCH = pathlib.Path(__file__).resolve().parents[2] / "bench"


def names_in(path):
    """The names that a module gives to others."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, (ast.FunctionDef, ast.ClassDef)):
            found.add(node.name)
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            found.add(node.id)
        elif isinstance(node, (ast.Import, ast.ImportFrom)):
            found |= {(alias.asname or alias.name).partition(".")[0] for alias in node.names}
    return found


def missing_in(path, known):
    """Yield what a module takes from its neighbours and is not there. `known` has the names of each
    neighbour, by its own name.
    """
    modules = {}  # by the name in this module, that of the neighbour
    tree = ast.parse(path.read_text(encoding="utf-8"))
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.module in known and not node.level:
            for alias in node.names:
                if alias.name not in known[node.module]:
                    yield f"{node.module}.{alias.name}"
        elif isinstance(node, ast.Import):
            for alias in node.names:
                if alias.name in known:
                    modules[alias.asname or alias.name] = alias.name
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
            module = modules.get(node.value.id)
            if module and node.attr not in known[module] and not node.attr.startswith("__"):
                yield f"{module}.{node.attr}"


def test_benchmarks_take_from_each_other_what_is_there():
    """No function that a benchmark takes from another module of bench was renamed or removed."""
    files = sorted(BENCH.rglob("*.py"))
    assert len(files) > 50
    names = {path: names_in(path) for path in files}
    everywhere = {path.stem: found for path, found in names.items()}
    wrong = []
    for path in files:
        here = {p.stem: found for p, found in names.items() if p.parent == path.parent}
        for name in missing_in(path, {**everywhere, **here}):
            wrong.append(f"{path.relative_to(BENCH)} takes {name}, which is not there")
    assert not wrong, "\n".join(wrong)


def test_a_missing_name_is_seen(tmp_path):
    """Names that are imported, and those that are taken from an imported module, are looked up."""
    (tmp_path / "lower.py").write_text("def there(): pass\n")
    upper = tmp_path / "upper.py"
    upper.write_text("import lower\nfrom lower import gone, there\nlower.lost()\nlower.there()\n")
    known = {"lower": names_in(tmp_path / "lower.py")}
    assert list(missing_in(upper, known)) == ["lower.gone", "lower.lost"]
