"""The build backend of the package (PEP 517, PEP 660), with the standard library alone, so that it
works off-line.

A wheel takes the static binary from ../bin/shoal along, when it is there, and is then for this
platform; without it the wheel is for any. The same files always give the same bytes.
"""

from __future__ import annotations

import base64
import gzip
import hashlib
import io
import re
import tarfile
import zipfile
from pathlib import Path
from typing import Dict, List, Optional, Tuple

ROOT = Path(__file__).resolve().parent.parent
PACKAGE = ROOT / "shoal"
BINARY = ROOT.parent / "bin" / "shoal"
SUMMARY = "A self-driving runtime for distributed machine learning: the Python package"
ENTRY_POINTS = (
    "[console_scripts]\nshoal = shoal.cli:main\n"
    "[torch.backends]\nshoal = shoal.torch_backend:autoload\n"
)
EPOCH = (1980, 1, 1, 0, 0, 0)  # the first moment that a zip file can name
# A static binary needs no C library; 2.17 is the oldest for which installers ask.
PLATFORMS = {"x86_64": "manylinux_2_17_x86_64", "aarch64": "manylinux_2_17_aarch64"}


def version() -> str:
    """The version that the package states in shoal/_version.py. Ends the build where it states
    none.
    """
    found = re.search(
        r'^__version__ = "(.+)"$', (PACKAGE / "_version.py").read_text(encoding="utf-8"), re.M
    )
    if found is None:
        raise SystemExit("shoal/_version.py states no __version__")
    return found.group(1)


def metadata() -> str:
    """The text of PKG-INFO in an sdist, which is also METADATA in a wheel."""
    return "\n".join(
        [
            "Metadata-Version: 2.1",
            "Name: shoal",
            f"Version: {version()}",
            f"Summary: {SUMMARY}",
            "License: Apache-2.0",
            "Requires-Python: >=3.9",
            "Provides-Extra: numpy",
            'Requires-Dist: numpy; extra == "numpy"',
            "Provides-Extra: torch",
            'Requires-Dist: torch>=1.13; extra == "torch"',
            "Classifier: License :: OSI Approved :: Apache Software License",
            "Classifier: Operating System :: POSIX :: Linux",
            "Classifier: Programming Language :: Python :: 3",
            "Classifier: Typing :: Typed",
            "",
        ]
    )


def package_files() -> Dict[str, Path]:
    """The package's own Python files and py.typed, by their names below the root, sorted."""
    files = (
        p for p in PACKAGE.rglob("*") if p.is_file() and (p.suffix == ".py" or p.name == "py.typed")
    )
    return {p.relative_to(ROOT).as_posix(): p for p in sorted(files)}


def binary() -> Optional[Tuple[Path, str]]:
    """The binary to take along and the tag of its platform, read from the file itself: it may be
    cross-built. None = there is none, or none for a platform that wheels are made for.
    """
    if not BINARY.is_file():
        return None
    with BINARY.open("rb") as f:
        head = f.read(20)
    machine = {b"\x3e\x00": "x86_64", b"\xb7\x00": "aarch64"}.get(head[18:20])
    if head[:4] != b"\x7fELF" or machine is None:
        return None
    return BINARY, PLATFORMS[machine]


class Wheel:
    """A wheel being written. One thread uses it; who makes it must `close` it."""

    def __init__(self, folder: str, tag: str) -> None:
        """Begin the file of a wheel for the platform `tag` in a folder, which exists."""
        self.name = f"shoal-{version()}-{tag}.whl"
        self._info = f"shoal-{version()}.dist-info"
        self._tag = tag
        self._records: List[str] = []  # the lines of RECORD so far
        self._zip = zipfile.ZipFile(Path(folder) / self.name, "w", zipfile.ZIP_DEFLATED)

    def add(self, name: str, data: bytes, mode: int = 0o644) -> None:
        """Add a file with these permissions, and its line in RECORD."""
        digest = base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()
        self._records.append(f"{name},sha256={digest},{len(data)}\n")
        self._write(name, data, mode)

    def _write(self, name: str, data: bytes, mode: int) -> None:
        """Write a file into the archive, dated EPOCH, without a line in RECORD."""
        info = zipfile.ZipInfo(name, EPOCH)
        info.create_system = 3  # Unix, so that the mode counts
        info.external_attr = (0o100000 | mode) << 16
        info.compress_type = zipfile.ZIP_DEFLATED
        self._zip.writestr(info, data)

    def close(self) -> str:
        """Write the dist-info, close the file, and return its name without the folder."""
        for name, data in info_files(self._tag).items():
            self.add(f"{self._info}/{name}", data)
        record = f"{self._info}/RECORD"
        self._write(record, ("".join(self._records) + f"{record},,\n").encode(), 0o644)
        self._zip.close()
        return self.name


def info_files(tag: str) -> Dict[str, bytes]:
    """The files of a dist-info folder besides RECORD, by name; those of a wheel with this tag."""
    pure = "true" if tag.endswith("-any") else "false"
    wheel = (
        f"Wheel-Version: 1.0\nGenerator: shoal_build ({version()})\nRoot-Is-Purelib: {pure}\nTag:"
        f" {tag}\n"
    )
    files = {
        "METADATA": metadata(),
        "WHEEL": wheel,
        "entry_points.txt": ENTRY_POINTS,
        "top_level.txt": "shoal\n",
    }
    out = {name: text.encode() for name, text in files.items()}
    licence = next((p for p in (ROOT / "LICENSE", ROOT.parent / "LICENSE") if p.is_file()), None)
    if licence is not None:
        out["LICENSE"] = licence.read_bytes()
    return out


def build_wheel(
    wheel_directory: str, config_settings: object = None, metadata_directory: Optional[str] = None
) -> str:
    """Write a wheel into a folder, and return its name: the hook of PEP 517, which pip calls. The
    other arguments are not used.
    """
    found = binary()
    wheel = Wheel(wheel_directory, f"py3-none-{found[1] if found else 'any'}")
    for name, path in package_files().items():
        wheel.add(name, path.read_bytes())
    if found:
        wheel.add("shoal/_bin/shoal", found[0].read_bytes(), 0o755)
    return wheel.close()


def build_editable(
    wheel_directory: str, config_settings: object = None, metadata_directory: Optional[str] = None
) -> str:
    """Write a wheel that points here into a folder, and return its name: the hook of PEP 660, for
    `pip install -e`. `shoal` then runs ../bin/shoal. The other arguments are not used.
    """
    wheel = Wheel(wheel_directory, "py3-none-any")
    wheel.add("shoal.pth", f"{ROOT}\n".encode())
    return wheel.close()


def build_sdist(sdist_directory: str, config_settings: object = None) -> str:
    """Write an archive of the sources into a folder, without the binary, and return its name: the
    hook of PEP 517. The settings are not used.
    """
    stem = f"shoal-{version()}"
    files = {name: path.read_bytes() for name, path in package_files().items()}
    for path in (ROOT / "pyproject.toml", Path(__file__).resolve()):
        files[path.relative_to(ROOT).as_posix()] = path.read_bytes()
    files["PKG-INFO"] = metadata().encode()
    files.update(
        {name: data for name, data in info_files("py3-none-any").items() if name == "LICENSE"}
    )
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w", format=tarfile.PAX_FORMAT) as tar:
        for name, data in sorted(files.items()):
            info = tarfile.TarInfo(f"{stem}/{name}")
            info.size, info.mode = len(data), 0o644
            tar.addfile(info, io.BytesIO(data))
    (Path(sdist_directory) / f"{stem}.tar.gz").write_bytes(
        gzip.compress(packed.getvalue(), mtime=0)
    )
    return f"{stem}.tar.gz"
