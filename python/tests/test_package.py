"""The wheel, the sdist and the editable install: what is in them, and that they work where there is
no network.
"""

import base64
import csv
import hashlib
import importlib.util
import io
import os
import pathlib
import shutil
import subprocess
import tarfile
import zipfile

import pytest

import shoal
from conftest import ROOT

SOLO = """
import sys, shoal
from array import array
with shoal.join() as job:
    assert job.size == 1 and list(job.allreduce(array("f", [1, 2]))) == [1, 2]
assert "numpy" not in sys.modules
print(shoal.__file__)
"""


def interpreters():
    """The paths of the oldest and of the newest Python that this machine has and the package
    supports, which can make environments; fails where there is none.
    """
    pyenv = pathlib.Path(os.environ.get("PYENV_ROOT", pathlib.Path.home() / ".pyenv"))
    found = []
    for minor in range(9, 20):
        paths = [
            *pyenv.glob(f"versions/3.{minor}.*/bin/python3.{minor}"),
            pathlib.Path(f"/usr/bin/python3.{minor}"),
        ]
        found += [
            p
            for p in paths
            if p.exists()
            and subprocess.run([p, "-c", "import ensurepip"], stderr=subprocess.DEVNULL).returncode
            == 0
        ][:1]
    return [found[0], found[-1]]


@pytest.fixture
def backend(tmp_path):
    """The module of the build backend, for a copy of the tree in the folder of the test, with a
    stand-in for the binary.
    """
    shutil.copytree(
        ROOT / "python",
        tmp_path / "tree/python",
        ignore=shutil.ignore_patterns("__pycache__", "tests"),
    )
    shutil.copy(ROOT / "LICENSE", tmp_path / "tree/LICENSE")
    (tmp_path / "tree/bin").mkdir()
    (tmp_path / "tree/bin/shoal").write_bytes(
        b"\x7fELF\x02\x01\x01" + bytes(11) + b"\x3e\x00 a binary"
    )
    spec = importlib.util.spec_from_file_location(
        "shoal_build", tmp_path / "tree/python/_build/shoal_build.py"
    )
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_a_wheel_carries_the_binary_and_says_for_which_platform(backend, tmp_path):
    """A wheel has the package, the binary and a true RECORD; its name follows from the binary, and
    without one it is for any platform.
    """
    name = backend.build_wheel(str(tmp_path))
    assert name == f"shoal-{shoal.__version__}-py3-none-manylinux_2_17_x86_64.whl"
    with zipfile.ZipFile(tmp_path / name) as wheel:
        info = f"shoal-{shoal.__version__}.dist-info"
        names = set(wheel.namelist())
        assert {
            "shoal/__init__.py",
            "shoal/py.typed",
            "shoal/_bin/shoal",
            f"{info}/METADATA",
            f"{info}/LICENSE",
        } <= names
        assert not any("test" in n or "pycache" in n or "_build" in n for n in names)
        assert wheel.getinfo("shoal/_bin/shoal").external_attr >> 16 == 0o100755
        record = {
            row[0]: row[1:]
            for row in csv.reader(io.StringIO(wheel.read(f"{info}/RECORD").decode()))
        }
        assert set(record) == names
        for n in names - {f"{info}/RECORD"}:
            digest = (
                base64.urlsafe_b64encode(hashlib.sha256(wheel.read(n)).digest())
                .rstrip(b"=")
                .decode()
            )
            assert record[n] == [f"sha256={digest}", str(len(wheel.read(n)))]
    backend.BINARY.write_bytes(b"\x7fELF\x02\x01\x01" + bytes(11) + b"\xb7\x00")
    assert backend.build_wheel(str(tmp_path)).endswith("-py3-none-manylinux_2_17_aarch64.whl")
    backend.BINARY.write_bytes(b"\xcf\xfa\xed\xfe" + bytes(20))  # a build for macOS runs no jobs
    assert backend.build_wheel(str(tmp_path)).endswith("-py3-none-any.whl")
    backend.BINARY.unlink()
    assert backend.build_wheel(str(tmp_path)).endswith("-py3-none-any.whl")


@pytest.mark.parametrize("build", ["build_wheel", "build_sdist", "build_editable"])
def test_the_same_files_give_the_same_bytes(backend, tmp_path, build):
    """What is built does not depend on the folder, the time of files or the moment."""
    made = []
    for folder in ("a", "b"):
        (tmp_path / folder).mkdir()
        os.utime(backend.PACKAGE / "__init__.py", (len(made), len(made)))
        made.append(
            (tmp_path / folder / getattr(backend, build)(str(tmp_path / folder))).read_bytes()
        )
    assert made[0] == made[1]


def test_an_sdist_builds_a_wheel(backend, tmp_path):
    """pip installs from the sdist without a network; `shoal` says there what to do for a binary."""
    name = backend.build_sdist(str(tmp_path))
    with tarfile.open(tmp_path / name) as tar:
        names = tar.getnames()
    stem = f"shoal-{shoal.__version__}"
    assert {
        f"{stem}/{n}"
        for n in ("PKG-INFO", "LICENSE", "pyproject.toml", "_build/shoal_build.py", "shoal/job.py")
    } <= set(names)
    python = new_environment(tmp_path / "venv", interpreters()[0])
    run(python, "-m", "pip", "install", "-q", "--no-index", tmp_path / name)
    assert "site-packages" in run(python, "-c", SOLO, cwd=tmp_path)
    missing = subprocess.run(
        [python.with_name("shoal"), "--version"], stderr=subprocess.PIPE, text=True
    )
    assert (
        missing.returncode == 1
        and "no `shoal` binary" in missing.stderr
        and "make build" in missing.stderr
    )


def new_environment(path, python):
    """Make an environment of an interpreter in the folder `path`, and return its python."""
    run(python, "-m", "venv", path)
    return path / "bin" / "python"


def run(*command, **options):
    """Run a command, with options for subprocess.run, and return what it prints; fails where the
    command does.
    """
    ran = subprocess.run(
        command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, **options
    )
    assert ran.returncode == 0, f"{command}: {ran.stdout}"
    return ran.stdout


@pytest.mark.parametrize("which", ["oldest", "newest"])
def test_install_without_a_network(binary, tmp_path, which):
    """The wheel, the sdist and the editable install work without a network."""
    python = new_environment(tmp_path / "venv", interpreters()[which == "newest"])
    run(python, "-m", "pip", "install", "-q", "--no-index", ROOT / "python")
    assert "site-packages" in run(python, "-W", "error", "-c", SOLO, cwd=tmp_path)
    version = f"shoal {shoal.__version__}\n"
    assert (
        run(python.with_name("shoal"), "--version")
        == run(python, "-m", "shoal", "--version", cwd=tmp_path)
        == version
    )
    run(python, "-m", "pip", "uninstall", "-q", "-y", "shoal")
    run(python, "-m", "pip", "install", "-q", "--no-index", "-e", ROOT / "python")
    assert str(ROOT) in run(python, "-c", SOLO, cwd=tmp_path)
    assert run(python.with_name("shoal"), "--version") == version
