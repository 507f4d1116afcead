"""Averaging in pairs within a round, and of all at its end.

Wang, Niu, Li, Distributed Machine Learning with a Serverless Architecture (Siren), INFOCOM 2019,
which calls it hybrid synchronous parallel: workers go on without a barrier within an epoch, and
meet at its end, where their number may change. Here a round takes the place of the epoch. That
partners may average a part of the parameters in a step, and so send less, is not from there.
"""

from __future__ import annotations

from typing import Any, Dict, List

from .contract import Arrays, Option, Strategy, add, assign

MOST = 1024  # parts


class Hybrid(Strategy):
    """In a round as `pair`, at a commit as `local`. In a step partners average one of `parts` parts
    of each parameter, in turns.
    """

    name = "hybrid"
    pairs = True
    options = {
        "parts": Option(
            1.0, lambda x: x.is_integer() and 1 <= x <= MOST, f"an integer from 1 to {MOST}"
        )
    }
    rule = "each step is averaged with a partner, and replicas become their mean once a round"
    costs = "its part of one round, which is dealt again"

    def commit(
        self, w: Arrays, z: Arrays, kept: Dict[str, List[Any]], mean: Arrays, workers: int
    ) -> None:
        """z += D, w := z."""
        add(z, mean)
        assign(w, z)
