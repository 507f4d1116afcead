"""What tests may leave behind, and must not: changes of the work tree, and processes."""

import pathlib
import subprocess
import time

from stage import MARK, ROOT


def work_tree_state():
    """What git sees of the work tree, as a text to compare: the changes, and the content of changed
    files.
    """
    shown = [["git", "status", "--porcelain"], ["git", "diff"]]
    return "".join(
        subprocess.run(
            c, cwd=ROOT, stdout=subprocess.PIPE, text=True, errors="replace", check=True
        ).stdout
        for c in shown
    )


def surviving_processes():
    """The ids, as words, of the processes that tests started and that outlived them. Waits up to
    two seconds for them to end.
    """
    for _ in range(20):
        found = [p.name for p in pathlib.Path("/proc").glob("[0-9]*") if is_from_test(p)]
        if not found:
            break
        time.sleep(0.1)
    return found


def is_from_test(process):
    """Whether a test started the process, a folder of /proc: it bears our mark, or is a guard (no
    environment) that nobody waits for.
    """
    try:
        if "=".join(MARK).encode() in (process / "environ").read_bytes().split(b"\0"):
            return True
        status = (process / "status").read_text()
        return command_line(process).startswith("shoal-guard ") and "\nPPid:\t1\n" in status
    except OSError:  # ended meanwhile, or somebody else's
        return False


def command_line(process):
    """The words of a process, a folder of /proc, joined by spaces. Raises OSError where it has
    ended.
    """
    return (process / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
