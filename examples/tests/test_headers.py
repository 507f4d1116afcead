"""Each example starts with a command and what it prints; here the command is run and has to print
that.

Any number stands for any other, a line of three dots for any lines, three dots in a line for any
text.
"""

import ast
import difflib
import io
import os
import pathlib
import re
import subprocess
import tokenize

import pytest
from torch_world import TRAINERS, interpreter

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
EXAMPLES = [
    "examples/digits/worker/main.go",
    "examples/digits/numpy_digits.py",
    "examples/digits/torch_digits.py",
    "examples/elastic/train.py",
    "examples/local/train.py",
    "examples/gpt/char_gpt.py",
    "examples/gpt/mesh_gpt.py",
    "examples/chain/gpt.py",
    "examples/transformers/finetune.py",
    "examples/accelerate/train.py",
    "examples/lightning/train.py",
    "examples/auto/train.py",
]
# by trainers of others
TRAINED = (
    "examples/transformers/finetune.py",
    "examples/accelerate/train.py",
    "examples/lightning/train.py",
)
# three kinds of parallelism written out; trainers of others do the work; the rest have up to 100
LINES = {
    "examples/gpt/mesh_gpt.py": 300,
    "examples/auto/train.py": 60,
    **dict.fromkeys(TRAINED, 60),
}


def header(path):
    """Returns the commands of an example and the lines that the last one prints: the indented lines
    of its first comment.
    """
    text = (ROOT / path).read_text()
    if path.endswith(".go"):
        comment = text[: text.index("\npackage ")]
        shown = re.findall(r"^//\t(.*)$", comment, re.MULTILINE)
    else:
        comment = text.split('"""')[1]
        shown = re.findall(r"^ {4}(.*)$", comment, re.MULTILINE)
    commands = [line[2:] for line in shown if line.startswith("$ ")]
    return commands, shown[len(commands) :]


def pattern(lines):
    """Returns a regular expression for what a header shows, in a list of lines. A line `...` stands
    for any number of lines, `...` within one for any text. A number stands for any other that has a
    decimal point too, or has none too, unless it is part of a word or follows a bracket, as a rank
    does. Spaces stand for any number of spaces, and everything else for itself.
    """
    expression = ""
    for line in lines:
        if line == "...":
            expression += r"(?:.*\n)*"
            continue
        words = re.escape(line).replace(r"\.\.\.", ".*")
        words = re.sub(
            r"(?<![\w\[])\d[\d,]*(\\\.\d+)?", lambda m: r"[\d,]*\.\d+" if m[1] else r"[\d,]+", words
        )
        expression += re.sub(r"(\\ )+", r" +", words) + "\n"
    return expression


def test_pattern():
    """What a header shows may differ in numbers and in what is left out, and in nothing else."""
    lines = pattern(["[0] step   50  loss 2.5312", "...", "[0] 4 workers: ... %"])
    assert re.fullmatch(lines, "[0] step    1  loss 10.2\n[0] what\nnot\n[0] 16 workers: 97.0 %\n")
    assert not re.fullmatch(lines, "[1] step    1  loss 10.2\n[0] 16 workers: 97.0 %\n")
    assert not re.fullmatch(lines, "[0] step    1  loss nan\n[0] 16 workers: 97.0 %\n")
    assert not re.fullmatch(lines, "[0] step    1  loss 10.2\n[0] 16 workers: 97.0\n")


def length(path):
    """Returns how many lines a program has. Of the one that writes out three kinds of parallelism,
    these are its lines of code: without empty lines, comments and docstrings. `path` is relative to
    the root of the repository.
    """
    text = (ROOT / path).read_text()
    if path != "examples/gpt/mesh_gpt.py":
        return len(text.splitlines())
    documented = (ast.Module, ast.ClassDef, ast.FunctionDef)
    nodes = [n for n in ast.walk(ast.parse(text)) if isinstance(n, documented)]
    strings = [n.body[0] for n in nodes if ast.get_docstring(n) is not None]
    docs = {n for string in strings for n in range(string.lineno, string.end_lineno + 1)}
    empty = (tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT)
    tokens = tokenize.generate_tokens(io.StringIO(text).readline)
    code = {n for t in tokens if t.type not in empty for n in range(t.start[0], t.end[0] + 1)}
    return len(code - docs)


@pytest.mark.parametrize("path", EXAMPLES)
def test_header(path, tmp_path):
    """The commands in the header of an example print what it shows, and the example is short."""
    commands, lines = header(path)
    assert commands and lines, f"{path} does not start with a command and what it prints"
    assert length(path) <= LINES.get(path, 100)
    folder = interpreter(TRAINERS if path in TRAINED else "torch").parent  # has python3
    env = {
        **os.environ,
        "PATH": f"{folder}:{ROOT / 'bin'}:{os.environ['PATH']}",
        "PYTHONPATH": str(ROOT / "python"),
        "XDG_STATE_HOME": str(tmp_path),
    }
    script = " && ".join(commands)
    done = subprocess.run(
        ["bash", "-c", script],
        cwd=ROOT,
        env=env,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert re.fullmatch(pattern(lines), done.stdout), (
        f"expected\n{pattern(lines)}\ngot\n{done.stdout}"
    )
    losses = [float(loss) for loss in re.findall(r"loss (\S+)", done.stdout)]
    assert losses[-1] < 0.9 * losses[0]
    if "digits" in path:
        assert float(re.search(r"workers trained .* accuracy (\S+) %", done.stdout)[1]) >= 96


def test_few_lines_make_a_loop_elastic():
    """examples/elastic/train.py differs from plain.py in twelve lines at most, besides what it says
    of itself and indentation.
    """
    plain, elastic = (
        [line.strip() for line in (ROOT / path).read_text().split('"""', 2)[2].splitlines()]
        for path in ("examples/elastic/plain.py", "examples/elastic/train.py")
    )
    changes = [line for line in difflib.ndiff(plain, elastic) if line[0] in "+-" and line[2:]]
    assert sum(line[0] == "+" for line in changes) <= 12, changes
    assert sum(line[0] == "-" for line in changes) <= 12, changes
