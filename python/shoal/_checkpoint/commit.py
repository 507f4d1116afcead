"""The commit of checkpoints: how a folder that is being written becomes a sealed checkpoint.
docs/formats/job-checkpoints.md, section 3.

A job of one seals its checkpoints here, and every job seals here what it finds when it begins; the
agent does the same in Go (checkpoint/snapshot). No worker waits for another: each writes its part
and then a receipt for it, and the process that finds all receipts seals the checkpoint.

Any thread may call the functions, of several processes at once: they hold no lock, and rely on
renames in the folder, for which they block. They raise OSError where the folder does.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import io
import json
import os
import re
import secrets
import shutil
import tempfile
from typing import Any, BinaryIO, Dict, Iterator, List, NamedTuple, Optional, Sequence

from .._runtime.log import log_line
from ..errors import ShoalError
from .fingerprint import PRIME, Key, format_fingerprint
from .shards import HASHED, Damaged, TensorInfo, write_hashed

VERSION = "job/1"
_MANIFEST_VERSION = "manifest/1"
STATE = "shoal-checkpoint.json"
MANIFEST = "shoal-manifest.json"
LATEST = "latest"
_STAGING = re.compile(r"\.staging-(\d+)-([0-9a-f]{16})$")
_SEALED = re.compile(r"step-(\d+)$")
_REMOVED = re.compile(r"\.old-(step|\.?staging)-\d")  # in Python, or by an agent
_RECEIPT = re.compile(r"\.part-\d+-of-(\d+)\.json$")


class AlreadySealed(OSError):
    """Another job has sealed a checkpoint of the same step in the same folder."""

    def __str__(self) -> str:
        """What is wrong, and what to do."""
        return (
            "another checkpoint of this step was sealed there meanwhile, so another job writes into"
            " the folder: give each job a folder of its own"
        )


class Unsealed(NamedTuple):
    """A checkpoint that is being written. It is a value, for any thread; all methods but `path`
    read or write its folder, and block for that.
    """

    root: str  # the folder of all checkpoints of the job
    step: int  # number of steps that were committed before it
    seed: int  # random, drawn for this checkpoint: names its folder, and seeds the fingerprints

    @property
    def path(self) -> str:
        """The folder into which it is written."""
        return os.path.join(self.root, f".staging-{self.step:012d}-{self.seed:016x}")

    def make_folder(self) -> None:
        """Make the folder, unless it is there."""
        os.makedirs(self.path, exist_ok=True)

    def write_file(self, name: str, head: bytes, body: memoryview) -> Dict[str, Any]:
        """Write a file durably into the folder; returns its line for the receipt."""
        return {
            "name": name,
            "size": len(head) + body.nbytes,
            "sha256": write_hashed(os.path.join(self.path, name), head, body),
        }

    def write_receipt(
        self, rank: int, size: int, files: List[Dict[str, Any]], sums: Dict[int, int]
    ) -> None:
        """Write the receipt that says that the part of a rank is complete. `files` are the lines of
        `write_file`, and `sums` the fingerprints of the part, by the index of the tensor.
        """
        _write_json(
            self.path, f".part-{rank:05d}-of-{size:05d}.json", {"files": files, "sums": sums}
        )

    def abandon(self) -> None:
        """Remove the folder with all that is in it, as far as that can be. Whoever still writes a
        part of it finds it gone, and cannot seal what is half removed.
        """
        with contextlib.suppress(OSError):
            _remove(self.root, self.path)

    def seal(self, keep: int) -> bool:
        """Seal and publish the checkpoint if all its parts are there, and remove those older than
        the last `keep`. Returns whether this call has published it.

        Several processes may call it at once, and one may call it again after another was killed in
        the middle. When another checkpoint of this step is sealed, it removes this one and raises
        AlreadySealed.
        """
        try:
            names = os.listdir(self.path)
            receipts = [n for n in names if _RECEIPT.match(n)]
            if MANIFEST not in names:
                parts = [int(m[1]) for m in map(_RECEIPT.match, names) if m]
                if not parts or len(parts) < parts[0]:
                    return False
                try:
                    manifest = self._manifest([_read_json(self.path, n) for n in receipts])
                except (ValueError, KeyError, TypeError, AttributeError):
                    return False  # what cannot be read is no part that is there
                _write_json(self.path, MANIFEST, manifest)
            for name in receipts:
                with contextlib.suppress(FileNotFoundError):
                    os.unlink(os.path.join(self.path, name))
            sync_folder(self.path)
            os.rename(self.path, os.path.join(self.root, f"step-{self.step:012d}"))
        except FileNotFoundError:  # another has published it
            return False
        except OSError as err:
            if err.errno in (errno.ENOTEMPTY, errno.EEXIST):
                self.abandon()
                raise AlreadySealed from None
            raise
        sync_folder(self.root)
        update_latest(self.root)
        prune(self.root, keep)
        return True

    def _manifest(self, receipts: List[Dict[str, Any]]) -> Dict[str, Any]:
        """The manifest of the checkpoint, made of the receipts of all its parts and of STATE, which
        it reads.
        """
        tensors, key = listed_tensors(_read_json(self.path, STATE)), Key(self.seed)
        totals = [
            sum(int(r["sums"].get(str(i), 0)) for r in receipts) % PRIME
            for i in range(len(tensors))
        ]
        state, nbytes, lines = 0, 0, []
        for k, total in sorted(zip(tensors, totals)):
            dtype = k.dtype.lower()
            state = (state + key.state_term(k.name, dtype, k.shape, total)) % PRIME
            nbytes += k.nbytes
            lines.append(
                {
                    "name": k.name,
                    "dtype": dtype,
                    "shape": k.shape,
                    "sum": format_fingerprint(total, k.nbytes),
                }
            )
        files = sorted((f for r in receipts for f in r["files"]), key=lambda f: str(f["name"]))
        return {
            "shoal": _MANIFEST_VERSION,
            "seed": f"{self.seed:016x}",
            "state": format_fingerprint(state, nbytes),
            "tensors": lines,
            "files": files,
        }


def listed_tensors(state: Dict[str, Any]) -> List[TensorInfo]:
    """The tensors that a state lists, which is the content of STATE."""
    return [
        TensorInfo(str(t["name"]), str(t["dtype"]), [int(n) for n in t["shape"]], int(t["bytes"]))
        for t in state["tensors"]
    ]


class Sealed(NamedTuple):
    """A checkpoint that is whole. It is a value, for any thread; all methods but `path` read or
    rename its folder, and block for that.
    """

    root: str  # the folder of all checkpoints of the job
    step: int  # number of steps that were committed before it

    @property
    def path(self) -> str:
        """The folder in which it lies."""
        return os.path.join(self.root, f"step-{self.step:012d}")

    def read_state(self) -> Dict[str, Any]:
        """Read STATE, and compare it with its hashes. Raises ShoalError for another version of the
        format, else as `read_small_file`.
        """
        found = dict(json.loads(self.read_small_file(STATE)))
        _refuse_other_version(os.path.join(self.path, STATE), found.get("shoal"), VERSION)
        return found

    def file_hashes(self) -> List[Dict[str, Any]]:
        """Read the list of files from the manifest: for each its "name", "size" in bytes, and
        "sha256", the hashes of its blocks. Raises Damaged for what is no manifest, ShoalError for
        another version of it, OSError where it is out of reach, also where it is not there: whoever
        has listed the checkpoint has seen it.
        """
        path = os.path.join(self.path, MANIFEST)
        with open(path, "rb") as file:
            text = file.read()
        try:
            found = dict(json.loads(text))
        except (ValueError, TypeError):
            raise Damaged(f"{path} is no JSON") from None
        if found.get("shoal"):
            _refuse_other_version(path, found["shoal"], _MANIFEST_VERSION)
        try:
            return [
                {
                    "name": str(f["name"]),
                    "size": int(f["size"]),
                    "sha256": [str(h) for h in f["sha256"]],
                }
                for f in found["files"]
            ]
        except (ValueError, KeyError, TypeError) as err:
            raise Damaged(f"{path} lists no files ({err!r})") from None

    def read_small_file(self, name: str) -> bytes:
        """Read a file that fits into memory. Raises Damaged when it does not have its hashes, or
        the manifest does not list it, else as `file_hashes`.
        """
        hashes = next((f["sha256"] for f in self.file_hashes() if f["name"] == name), None)
        with self._open(name) as file:
            text = file.read()
        if _hashes_of(io.BytesIO(text)) != hashes:
            raise Damaged(f"{self.path}/{name}: not as it was sealed")
        return text

    def compare(self) -> None:
        """Compare all files with their hashes. Raises Damaged where the bytes are wrong, OSError or
        ShoalError where they cannot be compared.
        """
        for sealed in self.file_hashes():
            with self._open(sealed["name"]) as file:
                if _hashes_of(file) != sealed["sha256"]:
                    raise Damaged(f"{file.name}: not as it was sealed")

    def _open(self, name: str) -> BinaryIO:
        """Open a file that the manifest lists. Raises Damaged where it is missing, else OSError."""
        try:
            return open(os.path.join(self.path, name), "rb")
        except FileNotFoundError as err:
            raise Damaged(str(err)) from None

    def quarantine(self) -> None:
        """Rename a damaged checkpoint, so that it is not chosen again; nothing where that fails. A
        step that is made again can be damaged again, so the new name is one that nothing has.
        """
        with contextlib.suppress(OSError):
            name = f"damaged-{os.path.basename(self.path)}-{secrets.token_hex(8)}"
            os.rename(self.path, os.path.join(self.root, name))


def sealed_checkpoints(root: str) -> List[Sealed]:
    """The sealed checkpoints in a folder, the newest first."""
    found = filter(None, map(_SEALED.match, _list_names(root)))
    listed = {Sealed(root, int(m[1])) for m in found}  # a copy can have the step in fewer digits
    return sorted((s for s in listed if _has_manifest(s)), reverse=True)


def _has_manifest(found: Sealed) -> bool:
    """Whether a checkpoint is sealed. One that cannot be looked at counts: it is no reason to go on
    from an older one.
    """
    try:
        os.stat(os.path.join(found.path, MANIFEST))
    except (FileNotFoundError, NotADirectoryError):
        return False
    except OSError:
        return True
    return True


def _hashes_of(file: BinaryIO) -> List[str]:
    """The SHA-256 of each block of a file, which is read to its end."""
    return [hashlib.sha256(b).hexdigest() for b in iter(lambda: file.read(HASHED), b"")]


def _refuse_other_version(path: str, version: Any, ours: str) -> None:
    """Raise ShoalError unless a file is of the version of the format that this program reads."""
    if version != ours:
        raise ShoalError(
            f"{path} is of version {version!r}, and this shoal reads {ours!r}: start the job with"
            " the version of shoal that wrote it, or a newer one"
        )


def recover(root: str, keep: int, besides: Optional[Unsealed] = None) -> None:
    """Finish what earlier workers left in a folder: seal the checkpoints that have all their parts,
    and remove the others but `besides`. One of which that fails stays, which the log says.
    """
    for left in _unsealed_checkpoints(root):
        if left == besides:
            continue
        try:
            whole = left.seal(keep)
            if not whole:
                _remove(root, left.path)
        except (AlreadySealed, FileNotFoundError):  # another may have sealed or removed it
            continue
        except OSError as err:
            log_line(f"what is left in {root} of earlier checkpoints stays there: {err}")
            continue
        if whole:
            log_line(
                f"checkpoint of step {left.step} in {root}: all its parts were there, and it is"
                " sealed now"
            )
        else:
            log_line(
                f"checkpoint of step {left.step} in {root} is abandoned: a worker was lost while it"
                " was written; the ones before it stay"
            )
    for name in _list_names(root):
        if _REMOVED.match(name):
            shutil.rmtree(os.path.join(root, name), ignore_errors=True)


def try_write(root: str) -> None:
    """Check, before the first step of a job, that checkpoints can be written into a folder: make
    it, unless it is there, and write a file into it that is removed again. Raises OSError where
    that fails.
    """
    os.makedirs(root, exist_ok=True)
    fd, path = tempfile.mkstemp(prefix=".try-", dir=root)
    try:
        os.write(fd, b"can this be written?\n")
        os.fsync(fd)
    finally:
        os.close(fd)
        os.unlink(path)


def update_latest(root: str) -> None:
    """Make the link `latest` lead to the newest checkpoint, or remove it where there is none. A
    file or folder of that name stays, and without a checkpoint so does a link to something else.
    """
    newest, at = sealed_checkpoints(root), os.path.join(root, LATEST)
    if not newest and os.path.islink(at) and not os.path.exists(at):
        with contextlib.suppress(OSError):
            os.unlink(at)
    elif newest and (os.path.islink(at) or not os.path.lexists(at)):
        # Where the file system has no links, the numbers in the names say which is the newest.
        link = os.path.join(root, f".{LATEST}-{os.getpid()}")
        with contextlib.suppress(OSError):
            with contextlib.suppress(FileNotFoundError):
                os.unlink(link)
            os.symlink(os.path.basename(newest[0].path), link)
            os.replace(link, at)
            sync_folder(root)
        with contextlib.suppress(OSError):  # where it could not be renamed
            os.unlink(link)


def prune(root: str, keep: int) -> None:
    """Remove all but the `keep` newest checkpoints, each of which disappears at once."""
    for old in sealed_checkpoints(root)[keep:]:
        with contextlib.suppress(OSError):  # the next one tries again
            _remove(root, old.path)


def _remove(root: str, path: str) -> None:
    """Remove a folder of a checkpoint: it is renamed first, so that it is gone for everybody at
    once. What of it cannot be removed then stays for `recover`. Raises OSError where it cannot be
    renamed.
    """
    gone = os.path.join(root, f".old-{os.path.basename(path)}-{os.getpid()}")
    os.rename(path, gone)
    shutil.rmtree(gone, ignore_errors=True)


def _unsealed_checkpoints(root: str) -> Iterator[Unsealed]:
    """The checkpoints in a folder that are being written, or were left so."""
    for name in _list_names(root):
        found = _STAGING.match(name)
        if found:
            yield Unsealed(root, int(found[1]), int(found[2], 16))


def _list_names(root: str) -> Sequence[str]:
    """The names in a folder, sorted; none where there is no folder."""
    try:
        return sorted(os.listdir(root))
    except FileNotFoundError:
        return []


def _read_json(folder: str, name: str) -> Dict[str, Any]:
    """The content of a file of JSON. Raises ValueError for what is none."""
    with open(os.path.join(folder, name), "rb") as file:
        return dict(json.loads(file.read()))


def _write_json(folder: str, name: str, value: Any) -> None:
    """Write a file of JSON, durably and atomically."""
    path = os.path.join(folder, name)
    write_hashed(
        f"{path}.{os.getpid()}", json.dumps(value, separators=(",", ":")).encode(), memoryview(b"")
    )
    os.replace(f"{path}.{os.getpid()}", path)


def sync_folder(folder: str) -> None:
    """Make the names in a folder durable, by an fsync of the folder."""
    fd = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
