"""DiLoCo: what replicas moved in a round is the gradient of an outer step with Nesterov's momentum.

Douillard et al., DiLoCo: Distributed Low-Communication Training of Language Models, 2023,
algorithm 1; the outer optimizer and its defaults are from section 3.1.
"""

from __future__ import annotations

from typing import Any, Dict, List

from .contract import Arrays, Option, Strategy, assign


class Diloco(Strategy):
    """The outer gradient is z - w, so z moves by plus lr times D: with lr 1 and momentum 0 this is
    local SGD, and with one plain SGD step a round synchronous SGD.
    """

    name = "diloco"
    options = {
        "lr": Option(0.7, lambda x: x > 0, "a number above 0"),
        "momentum": Option(0.9, lambda x: 0 <= x < 1, "a number from 0 up to, not including, 1"),
    }
    rule = "an outer step with Nesterov's momentum once a round"
    costs = "its part of one round, which is dealt again"

    def keep(self, z: Arrays) -> Dict[str, List[Any]]:
        """The velocity v = 0."""
        return {"velocity": [anchor * 0 for anchor in z]}

    def commit(
        self, w: Arrays, z: Arrays, kept: Dict[str, List[Any]], mean: Arrays, workers: int
    ) -> None:
        """v = momentum v + D, z += lr (D + momentum v), w := z."""
        rate, momentum = self.values["lr"], self.values["momentum"]
        for anchor, velocity, moved in zip(z, kept["velocity"], mean):
            velocity *= momentum
            velocity += moved
            moved += momentum * velocity
            moved *= rate
            anchor += moved
        assign(w, z)
