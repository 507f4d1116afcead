"""A perceptron whose matrices are cut over tp and its batch over dp, with Adam: what test_live.py
trains, on a mesh and alone.
"""

import os
import sys

import numpy as np
import shoal
from shoal.cursor import Cursor

SAMPLES, BATCH, IN, HIDDEN, OUT, RATE, SEED = 600, 12, 7, 60, 3, 1e-2, 3
NAMES = ("up", "down", "bias")
SHAPES = {"up": [HIDDEN, IN], "down": [OUT, HIDDEN], "bias": [OUT]}
LAYOUT = """
shoal: layout/1
mesh: dp=1,tp=1
rules:
- {match: "**up", place: "tp=shard(0,balanced)"}
- {match: "**down", place: "tp=shard(1,balanced)"}
- {match: "**"}
"""
KINDS = ("", "optimizer.exp_avg.", "optimizer.exp_avg_sq.")
TENSORS = [
    {"name": kind + name, "dtype": "f64", "shape": shape}
    for kind in KINDS
    for name, shape in SHAPES.items()
]
TENSORS.append({"name": "optimizer.step", "dtype": "i64", "shape": []})


def make_data():
    """The inputs and the outputs that the perceptron learns."""
    source = np.random.default_rng(1)
    x = source.normal(size=(SAMPLES, IN))
    return x, np.tanh(x @ source.normal(size=(IN, OUT)))


def rows_of_rank(n, group):
    """The slice of n rows that this rank of a group has, cut as evenly as can be."""
    each, more = divmod(n, group.size)
    begin = each * group.rank + min(group.rank, more)
    return slice(begin, begin + each + (group.rank < more))


class Perceptron:
    """A model for shoal.train, cut over tp, and its batch over dp. shoal.train calls the methods on
    the thread of the loop, on all ranks of the mesh alike: in each step `gradients`, which waits
    for other ranks and leaves the gradients in `grad`, then `update`.
    """

    def __init__(self, mesh):
        """Cut this rank's part out of the whole parameters, which are the same on all ranks."""
        self.dp, self.tp = mesh["dp"], mesh["tp"]
        source = np.random.default_rng(2)
        whole = {name: source.normal(size=SHAPES[name]) / 4 for name in NAMES}
        rows = rows_of_rank(HIDDEN, self.tp)
        self.mine = {
            "up": whole["up"][rows].copy(),
            "down": whole["down"][:, rows].copy(),
            "bias": whole["bias"],
        }
        self.state = {
            kind + name: np.zeros_like(w) for kind in KINDS[1:] for name, w in self.mine.items()
        }
        self.count = np.zeros((), np.int64)
        self.x, self.y = make_data()

    def tensors(self):
        """This rank's part of the state, by name: the arrays themselves."""
        return {**self.mine, **self.state, "optimizer.step": self.count}

    def gradients(self, indices):
        """Compute the gradients of the batch that has these samples, and return this rank's share
        of the loss, which is the sum over all ranks.
        """
        here = indices[rows_of_rank(len(indices), self.dp)]
        x, y = self.x[here], self.y[here]
        hidden = np.tanh(x @ self.mine["up"].T)
        wrong = self.tp.allreduce(hidden @ self.mine["down"].T) + self.mine["bias"] - y
        back = 2 * wrong / len(indices)
        self.grad = {
            "down": back.T @ hidden,
            "bias": back.sum(0),
            "up": ((back @ self.mine["down"]) * (1 - hidden**2)).T @ x,
        }
        for name in NAMES:
            self.dp.allreduce(self.grad[name])
        return np.array([(wrong**2).sum() / len(indices)]) * (self.tp.rank == 0)

    def update(self):
        """Make a step of Adam with the gradients in `grad`."""
        self.count += 1
        for name, w in self.mine.items():
            mean, square = (self.state[kind + name] for kind in KINDS[1:])
            mean += 0.1 * (self.grad[name] - mean)
            square += 0.001 * (self.grad[name] ** 2 - square)
            n = int(self.count)
            w -= RATE * (mean / (1 - 0.9**n)) / (np.sqrt(square / (1 - 0.999**n)) + 1e-8)


class AdoptingPerceptron(Perceptron):
    """A perceptron that keeps its state in memory of the job."""

    def adopt(self, tensors):
        """Take these arrays, which lie in the job's memory and hold the same values, for the state
        from now on. shoal.train calls it for each model that it has built.
        """
        for lent, own in ((tensors[name], x) for name, x in self.tensors().items()):
            assert (
                lent.shape == own.shape
                and lent.dtype == own.dtype
                and not np.may_share_memory(lent, own)
            )
        self.mine = {name: tensors[name] for name in NAMES}
        self.state = {name: tensors[name] for name in self.state}
        self.count = tensors["optimizer.step"]


def build_either(mesh):
    """A perceptron for a mesh: the ranks differ in which of the two kinds they build, and a rank
    may differ after a change of the mesh.
    """
    return (AdoptingPerceptron if mesh.job.rank % 2 else Perceptron)(mesh)


class SingleRankGroup:
    """A group of one, for a training without a job."""

    rank, size = 0, 1

    def allreduce(self, x):
        """Return x as it is: the sum over one rank."""
        return x


def reference_losses():
    """Yield the losses of the undisturbed training, step by step without end, computed in the
    calling process.
    """
    model = Perceptron({"dp": SingleRankGroup(), "tp": SingleRankGroup()})
    place = Cursor.start(SAMPLES, BATCH, SEED)
    while True:
        yield model.gradients(place.order().take(place.part(0, 1))).item()
        model.update()
        place = place.commit(1, [True])


def main(mesh, steps, folder=None, every=0, model=build_either, layout=LAYOUT):
    """Train on a mesh that may change, for `steps` steps, and print every step. With a folder,
    checkpoints are made there every `every` steps, and state that is not the model's is printed.
    What a worker's process runs.
    """
    job = shoal.join()
    if folder:
        source = np.random.default_rng(job.rank)
        job.register(
            "noise",
            lambda: source.bit_generator.state,
            lambda state: setattr(source.bit_generator, "state", state),
            alike=False,
        )
        table = np.arange(5.0)
        job.register("table", lambda: table, lambda x: table.__setitem__(slice(None), x))
        job.checkpoint(folder, every=int(every))
        print(f"PID {os.getpid()}", flush=True)
    trained = shoal.train(
        model,
        layout=layout,
        catalogue=TENSORS,
        mesh=mesh,
        samples=SAMPLES,
        batch=BATCH,
        seed=SEED,
        steps=steps,
    )
    for step in trained:
        if folder:
            print(
                f"NOISE {step.number} of {job.rank} {source.integers(1 << 30)} table {table.sum()}",
                flush=True,
            )
            table += 1
        if job.rank == 0:
            print(f"STEP {step.number} on {step.mesh} loss {step.loss!r}", flush=True)
    print("RELEASED" if job.released else "END", flush=True)


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), *sys.argv[3:5] if len(sys.argv) > 4 else ())
