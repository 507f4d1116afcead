"""Averaging in pairs: after each local step a replica is averaged with that of a partner.

Lian et al., Asynchronous Decentralized Parallel Stochastic Gradient Descent, ICML 2018 (AD-PSGD),
section 3, algorithm 1, with the partners of a random matching in each step and without its
asynchrony; KungFu's PairAveraging (Mai et al., OSDI 2020, section 5.1) takes a random peer.
"""

from __future__ import annotations

from typing import Any, Dict, List

from .contract import Arrays, Strategy, add


class Pair(Strategy):
    """The anchor is the mean of all replicas at a commit, which the replicas do not follow."""

    name = "pair"
    pairs = True
    keeps_replicas = True
    rule = "each step is averaged with a partner, and the anchor is the mean once a round"
    costs = "what its replica had not given to partners; its part of one round comes again"

    def commit(
        self, w: Arrays, z: Arrays, kept: Dict[str, List[Any]], mean: Arrays, workers: int
    ) -> None:
        """z += D; w stays."""
        add(z, mean)
