"""Averaging in pairs within a round, and of all at its end.

Wang, Niu, Li, Distributed Machine Learning with a Serverless Architecture (Siren), INFOCOM 2019,
which calls it hybrid synchronous parallel: workers go on without a barrier within an epoch, and
meet at its end, where their number may change. Here a round takes the place of the epoch.
"""

from __future__ import annotations

from typing import Any, Dict, List

from .contract import Arrays, Strategy, add, assign


class Hybrid(Strategy):
    """In a round as `pair`, at a commit as `local`."""

    name = "hybrid"
    pairs = True
    rule = "each step is averaged with a partner, and replicas become their mean once a round"
    costs = "its part of one round, which is dealt again"

    def commit(
        self, w: Arrays, z: Arrays, kept: Dict[str, List[Any]], mean: Arrays, workers: int
    ) -> None:
        """z += D, w := z."""
        add(z, mean)
        assign(w, z)
