"""The pages for people: the commands in docs/guide/ work and print what the page shows, and every
command and flag that a page mentions exists.

A block ```python that begins with "# NAME.py" is written to that file, and what is in a folder with
the name of the page lies beside it. A block ```console is run: a line "$ COMMAND" and what it
prints. There a number stands for any number, three dots in a line for any text, and a line of three
dots for any lines.
"""

import functools
import os
import pathlib
import re
import shutil
import subprocess
import sys

import pytest
from running_job import HANG

ROOT = pathlib.Path(__file__).resolve().parents[2]
GUIDE = sorted((ROOT / "docs" / "guide").glob("*.md"))
IN_CLUSTER = {"kubernetes"}  # whose commands deploy/kube runs: make kube-test
PAGES = [ROOT / "README.md", ROOT / "SECURITY.md", *sorted((ROOT / "docs").glob("**/*.md"))]
BLOCK = re.compile(r"^ *```(\w*)\n(.*?)^ *```$", re.MULTILINE | re.DOTALL)
NUMBER = re.compile(r"\d[\d,]*(?:\.\d+)?(?:e[+-]?\d+)?")


def blocks(page, kind):
    """The texts of all fenced blocks of a kind, such as "console", on a page, a path."""
    return [text for found, text in BLOCK.findall(page.read_text()) if found == kind]


def commands(block):
    """The commands of a console block, each with the list of the lines that it prints. A line
    "> TEXT" continues the command before it.
    """
    found = []
    for line in block.splitlines():
        if line.startswith("$ "):
            found.append((line[2:], []))
        elif line.startswith("> "):
            found[-1] = (f"{found[-1][0]}\n{line[2:]}", [])
        else:
            found[-1][1].append(line)
    return found


def pattern(lines):
    """A regular expression for all of an output, from the lines that a page shows for it."""
    expression = ""
    for line in lines:
        if line == "...":
            expression += r"(?:.*\n)*?"
            continue
        texts = [NUMBER.split(part) for part in line.split("...")]
        numbers = NUMBER.pattern.join
        shown = ".*".join(numbers(re.escape(text) for text in part) for part in texts)
        expression += re.sub(r"(?:\\ )+", " +", shown) + "\n"
    return expression


def test_pattern():
    """Numbers and dots stand for what they may, and for nothing else."""
    shown = pattern(["job ..., 2 workers", "...", "[0] loss 1.5e-03"])
    assert re.fullmatch(shown, "job a, 10 workers\nwhat\nnot\n[3] loss 0.25\n")
    assert re.fullmatch(shown, "job a, 10 workers\n[3] loss 7\n")
    assert not re.fullmatch(shown, "job a, many workers\n[3] loss 7\n")
    assert not re.fullmatch(shown, "job a, 10 workers\n[3] loss nan\n")
    assert not re.fullmatch(shown, "job a, 10 workers\n[3] loss 7\nmore\n")


def test_commands_over_several_lines():
    """Commands over several lines are one command."""
    block = "$ cat <<END\n> a\n> END\na\n$ true\n"
    assert commands(block) == [("cat <<END\na\nEND", ["a"]), ("true", [])]


@pytest.mark.parametrize(
    "page",
    [p for p in GUIDE if blocks(p, "console") and p.stem not in IN_CLUSTER],
    ids=lambda page: page.stem,
)
def test_commands(page, binary, tmp_path):
    """The commands of a page, one after the other in one new folder, print what the page shows."""
    env = {
        **os.environ,
        "PATH": f"{tmp_path / 'bin'}:{binary.parent}:{os.environ['PATH']}",
        "PYTHONPATH": str(ROOT / "python"),
        "XDG_STATE_HOME": str(tmp_path / "state"),
        "OMP_NUM_THREADS": "1",
    }
    (tmp_path / "bin").mkdir()
    python = tmp_path / "bin" / "python3"  # no link: that of a virtual environment lacks packages
    python.write_text(f'#!/bin/sh\nexec {sys.executable} "$@"\n')
    python.chmod(0o755)
    work = tmp_path / "work"
    files = page.with_suffix("")
    if files.is_dir():
        shutil.copytree(files, work)
    else:
        work.mkdir()
    for program in blocks(page, "python"):
        named = re.match(r"# (\w+\.py)\n", program)
        if named:
            (work / named[1]).write_text(program)
    shown_commands = [pair for block in blocks(page, "console") for pair in commands(block)]
    for command, lines in shown_commands:
        done = subprocess.run(
            ["bash", "-c", command],
            cwd=work,
            env=env,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=HANG,
        )
        shown = "\n".join(lines)
        assert done.returncode == 0, f"$ {command}\n{done.stdout}exit code {done.returncode}"
        assert re.fullmatch(pattern(lines), done.stdout), (
            f"$ {command}\n{done.stdout}--- {page.name} shows\n{shown}"
        )


@functools.lru_cache(maxsize=None)
def help_text(binary, *command):
    """The help of a command of shoal, such as ("state", "ls"); of what is no command, that of the
    one above it. The binary is run once for each.
    """
    return subprocess.run(
        [binary, *command, "--help"], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    ).stdout


def mentioned_commands(page):
    """Yield every command line of shoal on a page: the list of the words after "shoal", up to what
    ends the command.
    """
    text = page.read_text().replace("\\\n", " ")
    code = [body for kind, body in BLOCK.findall(text) if kind != "python"]
    code += [" ".join(span.split()) for span in re.findall(r"`([^`]+)`", BLOCK.sub("", text))]
    for part in code:
        for found in re.finditer(
            r"(?:^|[\s(])shoal +([a-z]+(?: [^\n#;&|)]*)?)(?![^\s#;&|)])", part
        ):
            yield found[1].split(" -- ")[0].replace('"', "").split()


# The commands below shoal plan, which is one itself.
PLAN_COMMANDS = (["plan", "check"], ["plan", "import"])


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_flags(page, binary):
    """Every command and flag that a page mentions is in the help of shoal."""
    for words in mentioned_commands(page):
        below = words[0] in ("state", "bench", "pool") and words[1:] or words[:2] in PLAN_COMMANDS
        depth = 2 if below else 1
        usage = re.search(r"^Usage:\n  shoal (.*)", help_text(binary, *words[:depth]), re.MULTILINE)
        assert usage and usage[1].split()[:depth] == words[:depth], f"shoal {' '.join(words)}"
        help = help_text(binary, *words[:depth])
        for flag in (word.split("=")[0] for word in words[depth:] if re.match(r"--?[a-z]", word)):
            listed = rf"^ +(?:-\w, )?{flag}[ ,]|^ +{flag}, "
            assert re.search(listed, help, re.MULTILINE), f"shoal {' '.join(words)}: no {flag}"
