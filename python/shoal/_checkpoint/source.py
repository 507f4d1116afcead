"""Where a job looks for its checkpoints when it begins: in a folder by itself, or in a bucket by
its agent.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Dict, NamedTuple, Optional, Protocol

from .._runtime.link import Refused
from .._runtime.log import say
from ..errors import ShoalError
from .commit import Sealed, point, sealed, settle

if TYPE_CHECKING:
    from .._runtime.link import Link


def is_url(root: str) -> bool:
    """Whether checkpoints there are read and written by the agent alone."""
    return root.startswith("s3://")


class Attempt(NamedTuple):
    """A sealed checkpoint by its names."""

    step: int
    seed: int = 0  # in buckets


class Shelf(Protocol):
    """The sealed checkpoints of a place."""

    def newest(self, tried: int) -> Optional[Attempt]:
        """The newest but so many. With 0, what earlier workers have left is dealt with first."""

    def fetch(self, chosen: Attempt) -> Sealed:
        """Have it where it can be read, until `done`. Raises ValueError when it is damaged."""

    def done(self) -> None:
        """It is not read any more."""

    def set_aside(self, damaged: Attempt) -> None:
        """Keep a damaged one out of the way."""


class OwnShelf:
    """A folder that this worker reads itself."""

    def __init__(self, root: str, keep: int) -> None:
        self._root, self._keep = root, keep

    def newest(self, tried: int) -> Optional[Attempt]:
        """By the numbers in the names."""
        if not tried:
            try:
                settle(self._root, self._keep)
            except OSError as err:
                say(f"what is left in {self._root} of earlier checkpoints stays there: {err}")
        try:
            if not tried:
                point(self._root)
            listed = sealed(self._root)[tried:]
        except OSError as err:
            raise ShoalError(
                f"nobody can look for checkpoints in {self._root}: {err}; name a folder, which need"
                " not be there yet"
            ) from err
        return Attempt(listed[0].step) if listed else None

    def fetch(self, chosen: Attempt) -> Sealed:
        """It is there."""
        return Sealed(self._root, chosen.step)

    def done(self) -> None:
        """Nothing was fetched."""

    def set_aside(self, damaged: Attempt) -> None:
        """Under another name."""
        Sealed(self._root, damaged.step).set_aside()
        point(self._root)


class AgentShelf:
    """A bucket, which the agent reads; what it fetches is in a folder of this host for a while."""

    def __init__(self, link: "Link", root: str, keep: int) -> None:
        self._link, self._root, self._keep = link, root, keep

    def _ask(self, do: str, **more: int) -> Dict[str, Any]:
        asked = {"do": do, "folder": self._root, "keep": self._keep, **more}
        try:
            return self._link.request({"type": "resume", "resume": asked}, "resume")[0]
        except Refused as err:
            raise ShoalError(f"looking for checkpoints: {err}") from None

    def newest(self, tried: int) -> Optional[Attempt]:
        """As the agent lists them."""
        reply = self._ask("newest", tried=tried)
        return Attempt(reply.get("step", 0), reply.get("seed", 0)) if reply.get("done") else None

    def fetch(self, chosen: Attempt) -> Sealed:
        """Once for all workers of this host."""
        reply = self._ask("fetch", step=chosen.step, seed=chosen.seed)
        if not reply.get("done"):
            raise ValueError(str(reply.get("broken")))
        return Sealed(str(reply["folder"]), chosen.step)

    def done(self) -> None:
        """The agent removes it when no worker reads it any more."""
        self._ask("done")

    def set_aside(self, damaged: Attempt) -> None:
        """With a mark."""
        self._ask("damaged", step=damaged.step, seed=damaged.seed)
