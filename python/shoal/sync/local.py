"""Local SGD: replicas are averaged once a round.

Stich, Local SGD Converges Fast and Communicates Little, ICLR 2019, algorithm 1; Lin et al., Don't
Use Large Mini-Batches, Use Local SGD, ICLR 2020, section 3.
"""

from __future__ import annotations

from typing import Any, Dict, List

from .contract import Arrays, Strategy, add, assign


class Local(Strategy):
    """All replicas become their mean at a commit."""

    name = "local"
    rule = "replicas become their mean once a round"
    costs = "its part of one round, which is dealt again"

    def commit(
        self, w: Arrays, z: Arrays, kept: Dict[str, List[Any]], mean: Arrays, workers: int
    ) -> None:
        """z += D, w := z."""
        add(z, mean)
        assign(w, z)
