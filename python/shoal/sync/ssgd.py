"""Synchronous SGD: gradients are averaged in every step.

Dean et al., Large Scale Distributed Deep Networks, NIPS 2012, has it as the baseline; Chen et al.,
Revisiting Distributed Synchronous SGD, 2016, section 2, is how it is done today.
"""

from __future__ import annotations

from typing import Any, Dict, List

from .contract import Arrays, Strategy, add, assign


class Ssgd(Strategy):
    """w is z, so `commit` is what local steps of plain SGD from z come to: the reference that the
    others are compared with. A training averages gradients before its optimizer instead.
    """

    name = "ssgd"
    every = 1
    averages_gradients = True
    rule = "gradients are averaged in every step"
    costs = "nothing but its part of one batch, which is dealt again"

    def commit(
        self, w: Arrays, z: Arrays, kept: Dict[str, List[Any]], mean: Arrays, workers: int
    ) -> None:
        """z += D, w := z."""
        add(z, mean)
        assign(w, z)
