"""The perceptron of live_numpy.py with its parameters and Adam's moments flat over dp, as ZeRO 3
has them: test_live.py trains it on meshes that change.
"""

import sys

import live_numpy
import numpy as np

LAYOUT = """
shoal: layout/1
mesh: dp=1,tp=1
rules:
- {match: "**up", place: "tp=shard(0,balanced), dp=flat"}
- {match: "**down", place: "tp=shard(1,balanced), dp=flat"}
- {match: "**bias", place: "dp=flat"}
- {match: "**"}
"""


class FlatPerceptron(live_numpy.Perceptron):
    """A perceptron that has its part over dp of what its rank of tp has (`mine`), and all of that
    (`whole`) only while it computes gradients.
    """

    def __init__(self, mesh):
        """Keep this rank's part over dp, with a state of that size."""
        super().__init__(mesh)
        self.whole = self.mine
        self.mine = {name: self.own(w) for name, w in self.whole.items()}
        self.state = {
            kind + name: np.zeros_like(w)
            for kind in live_numpy.KINDS[1:]
            for name, w in self.mine.items()
        }

    def own(self, x):
        """A copy of this rank's part over dp of the elements of x, in one dimension; the last
        ranks' parts are filled up with zeros.
        """
        n = -(-x.size // self.dp.size)
        return np.pad(x.ravel(), (0, n * self.dp.size - x.size))[n * self.dp.rank :][:n].copy()

    def gradients(self, indices):
        """Gather what this rank of tp has, compute with it, and keep this rank's part of the
        gradients in `grad`; return this rank's share of the loss. Waits for the ranks of dp and tp.
        """
        parts = self.mine
        for name, w in self.whole.items():
            w.flat[:] = self.dp.allgather(parts[name])[: w.size]
        self.mine = self.whole
        try:
            loss = super().gradients(indices)
        finally:
            self.mine = parts
        self.grad = {name: self.own(g) for name, g in self.grad.items()}
        return loss


if __name__ == "__main__":
    live_numpy.main(sys.argv[1], int(sys.argv[2]), model=FlatPerceptron, layout=LAYOUT)
