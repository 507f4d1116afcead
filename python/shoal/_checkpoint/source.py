"""Where a job finds its checkpoints when it begins: in a folder that it reads itself, or in a
bucket that its agent reads.
"""

from __future__ import annotations

from typing import Any, Dict, NamedTuple, Optional, Protocol

from .._runtime.link import Link, Refused
from .._runtime.log import log_line
from ..errors import ShoalError
from .commit import Sealed, recover, sealed_checkpoints, update_latest
from .shards import Damaged


def is_bucket(root: str) -> bool:
    """Whether a place for checkpoints is a bucket, which only the agent can read and write."""
    return root.startswith("s3://")


class Candidate(NamedTuple):
    """A sealed checkpoint, by its names."""

    step: int
    seed: int = 0  # in buckets; 0 in folders


class Source(Protocol):
    """The sealed checkpoints of a folder or a bucket. The thread of the training loop calls the
    methods, which block for the folder or the bucket.
    """

    def newest(self, tried: int) -> Optional[Candidate]:
        """The newest checkpoint after the `tried` newest ones; None = there is none. With 0, what
        earlier workers did not finish is sealed or removed first. Raises ShoalError where the place
        cannot be read.
        """

    def fetch(self, chosen: Candidate) -> Sealed:
        """Make a checkpoint readable until `release`, and wait for that. Raises Damaged when its
        bytes are wrong, ShoalError where the place cannot be read.
        """

    def release(self) -> None:
        """End the reading of what was fetched, so that it may be removed."""

    def quarantine(self, damaged: Candidate) -> None:
        """Rename or mark a damaged checkpoint, so that it is not chosen again."""


class FolderSource:
    """A folder that this worker reads itself. The thread of the training loop calls the methods,
    which block for the folder.
    """

    def __init__(self, root: str, keep: int) -> None:
        """The folder `root`, of whose checkpoints `keep` stay."""
        self._root, self._keep = root, keep

    def newest(self, tried: int) -> Optional[Candidate]:
        """The newest checkpoint after the `tried` newest ones, by the numbers in the names; None =
        there is none. With 0, what earlier workers left is sealed or removed first. Raises
        ShoalError where the folder cannot be read.
        """
        if not tried:
            try:
                recover(self._root, self._keep)
            except OSError as err:
                log_line(f"what is left in {self._root} of earlier checkpoints stays there: {err}")
        try:
            if not tried:
                update_latest(self._root)
            listed = sealed_checkpoints(self._root)[tried:]
        except OSError as err:
            raise ShoalError(
                f"nobody can look for checkpoints in {self._root}: {err}; name a folder, which need"
                " not be there yet"
            ) from err
        return Candidate(listed[0].step) if listed else None

    def fetch(self, chosen: Candidate) -> Sealed:
        """The checkpoint where it lies: nothing has to be fetched."""
        return Sealed(self._root, chosen.step)

    def release(self) -> None:
        """Do nothing: nothing was fetched."""

    def quarantine(self, damaged: Candidate) -> None:
        """Give the folder of a damaged checkpoint another name, so that it is not chosen again."""
        Sealed(self._root, damaged.step).quarantine()
        update_latest(self._root)


class BucketSource:
    """A bucket that the agent reads. What it fetches lies in a folder of this host until `release`.
    Each method waits for the agent's answer; any thread may call it.
    """

    def __init__(self, link: Link, root: str, keep: int) -> None:
        """The bucket `root`, of whose checkpoints `keep` stay."""
        self._link, self._root, self._keep = link, root, keep

    def _ask_agent(self, action: str, **more: int) -> Dict[str, Any]:
        """Ask the agent to do something with the checkpoints of this place, and wait for its
        answer. Raises ShoalError where it refuses.
        """
        asked = {"do": action, "folder": self._root, "keep": self._keep, **more}
        try:
            return self._link.request({"type": "resume", **asked}, "resume")[0]
        except Refused as err:
            raise ShoalError(f"looking for checkpoints: {err}") from None

    def newest(self, tried: int) -> Optional[Candidate]:
        """The newest checkpoint after the `tried` newest ones, as the agent lists them; None =
        there is none. With 0, the agent removes first what earlier workers left.
        """
        reply = self._ask_agent("newest", tried=tried)
        return Candidate(reply.get("step", 0), reply.get("seed", 0)) if reply.get("done") else None

    def fetch(self, chosen: Candidate) -> Sealed:
        """Have the agent fetch a checkpoint, once for all workers of this host. Raises Damaged
        where its bytes are wrong, ShoalError where the agent cannot fetch it.
        """
        reply = self._ask_agent("fetch", step=chosen.step, seed=chosen.seed)
        if not reply.get("done"):
            raise Damaged(str(reply.get("damaged")))
        return Sealed(str(reply["folder"]), chosen.step)

    def release(self) -> None:
        """Have the agent remove what it fetched, once no worker reads it any more."""
        self._ask_agent("done")

    def quarantine(self, damaged: Candidate) -> None:
        """Have the agent mark a damaged checkpoint, so that it is not chosen again."""
        self._ask_agent("damaged", step=damaged.step, seed=damaged.seed)
