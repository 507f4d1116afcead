"""Synchronous model averaging: replicas go their own ways, and are drawn to a central model.

Koliousis et al., Crossbow: Scaling Deep Learning with Small Batch Sizes on Multi-GPU Servers, VLDB
2019, section 4.1, algorithm 1. With momentum 0 it is the elastic averaging of Zhang et al., Deep
Learning with Elastic Averaging SGD, NIPS 2015, section 3.
"""

from __future__ import annotations

from typing import Any, Dict, List

from .contract import Arrays, Option, Strategy


class Sma(Strategy):
    """Each replica gives a part alpha of its distance to the anchor, which takes all of them."""

    name = "sma"
    every = 1
    options = {
        "alpha": Option(0.1, lambda x: 0 < x <= 1, "a number above 0, up to 1"),
        "momentum": Option(0.0, lambda x: 0 <= x < 1, "a number from 0 up to, not including, 1"),
    }
    keeps_replicas = True
    rule = "replicas are drawn to a central model once a round"
    costs = "what its replica had not given to the central model; its part of one round comes again"

    def keep(self, z: Arrays) -> Dict[str, List[Any]]:
        """The anchor of the commit before, where there is a momentum."""
        return {"before": [anchor * 1 for anchor in z]} if self.values["momentum"] else {}

    def commit(
        self, w: Arrays, z: Arrays, kept: Dict[str, List[Any]], mean: Arrays, workers: int
    ) -> None:
        """w -= alpha (w - z), z += n alpha D + momentum (z - z_before), for n workers. alpha is
        1/(n + 1) at most, with which the anchor and the mean of the replicas meet: with more they
        would pass each other, and with twice as much go apart.
        """
        alpha, momentum = min(self.values["alpha"], 1 / (workers + 1)), self.values["momentum"]
        for i, (replica, anchor, moved) in enumerate(zip(w, z, mean)):
            given = replica - anchor
            given *= alpha
            replica -= given
            moved *= workers * alpha
            if momentum:
                before = kept["before"][i]
                moved += momentum * (anchor - before)
                before[...] = anchor
            anchor += moved
