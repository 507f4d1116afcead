"""Layers in a row on pipeline stages, with replicas: what follows a plan in test_plan.py and in
bench/plan/kills.py. Its losses are the same to rounding on every mesh.
"""

import collections
import os
import sys

import numpy as np
import shoal
from shoal.cursor import Cursor

SAMPLES, BATCH, LAYERS, WIDTH, RATE, SEED = 960, 24, 5, 12, 0.01, 4
LAYOUT = f"""
shoal: layout/1
mesh: dp=1,pp=1
rules:
- {{match: "**layers.#.weight", place: "pp=spread(1,{LAYERS},balanced)"}}
"""
MEAN = "momentum."
TENSORS = [
    {"name": f"{kind}layers.{i}.weight", "dtype": "f64", "shape": [WIDTH, WIDTH]}
    for kind in ("", MEAN)
    for i in range(LAYERS)
]


class Stages:
    """A model for shoal.train: the layers of this stage, for the samples of this replica. It is
    called on the thread of the loop, on all ranks alike.
    """

    def __init__(self, mesh):
        """Draw each layer from a seed that is its number, so it is the same on every mesh."""
        self.mesh, self.dp, self.pp = mesh, mesh["dp"], mesh["pp"]
        self.layers = {
            f"layers.{i}.weight": np.random.default_rng(i).normal(size=(WIDTH, WIDTH)) / WIDTH**0.5
            for i in mesh.part("pp", LAYERS)
        }
        self.means = {name: np.zeros_like(w) for name, w in self.layers.items()}
        source = np.random.default_rng(99)
        self.x = source.normal(size=(SAMPLES, WIDTH))
        self.y = np.tanh(self.x @ source.normal(size=(WIDTH, WIDTH)))

    def tensors(self):
        """This rank's part of the state, by name: the arrays themselves."""
        return {**self.layers, **{MEAN + name: m for name, m in self.means.items()}}

    def gradients(self, indices):
        """Compute the gradients of a batch, as many micro-batches ahead as the mesh says, and
        return this rank's share of the loss, which is the sum over all ranks.
        """
        self.grad = {name: np.zeros_like(w) for name, w in self.layers.items()}
        self.flight, self.sends, self.loss = collections.deque(), [], np.zeros(1)
        self.scale = 1 / len(indices)
        part = self.mesh.part("dp", len(indices))
        here = np.asarray(indices)[part.start : part.stop]
        size = self.mesh.micro or 4
        micro = [here[i : i + size] for i in range(0, len(here), size)]
        held = self.mesh.ahead or self.pp.size - self.pp.rank
        for turn in range(len(micro) + held - 1):
            if turn < len(micro):
                self.forward(micro[turn])
            if turn >= held - 1:
                self.backward()
        for send in self.sends:
            send.wait()
        for gradient in self.grad.values():
            self.dp.allreduce(gradient)
        return self.loss

    def forward(self, samples):
        """Take a micro-batch from the stage before, or the data, to the next one, or the loss."""
        if self.pp.rank == 0:
            x = self.x[samples]
        else:
            x = self.pp.recv(np.empty((len(samples), WIDTH)), self.pp.rank - 1)
        passed = [x]
        for w in self.layers.values():
            passed.append(np.tanh(passed[-1] @ w))
        wrong = None
        if self.pp.rank == self.pp.size - 1:
            wrong = 2 * self.scale * (passed[-1] - self.y[samples])
            self.loss += (wrong**2).sum() / (4 * self.scale)
        else:
            self.sends.append(self.pp.send_async(passed[-1], self.pp.rank + 1))
        self.flight.append((passed, wrong))

    def backward(self):
        """Take the gradient of the oldest micro-batch from the next stage to the one before."""
        passed, back = self.flight.popleft()
        if back is None:
            back = self.pp.recv(np.empty_like(passed[-1]), self.pp.rank + 1)
        for i, (name, w) in reversed(list(enumerate(self.layers.items()))):
            back = back * (1 - passed[i + 1] ** 2)
            self.grad[name] += passed[i].T @ back
            back = back @ w.T
        if self.pp.rank > 0:
            self.sends.append(self.pp.send_async(back, self.pp.rank - 1))

    def update(self):
        """Make a step of gradient descent with momentum."""
        for name, w in self.layers.items():
            self.means[name] *= 0.9
            self.means[name] += self.grad[name]
            w -= RATE * self.means[name]


class SingleRankMesh:
    """A mesh of one rank, and each of its groups, for a training without a job."""

    rank, size, micro, ahead = 0, 1, None, None

    def __getitem__(self, axis):
        """The group along an axis."""
        return self

    def part(self, axis, count):
        """All of so many things."""
        return range(count)

    def allreduce(self, x):
        """Return x as it is: the sum over one rank."""
        return x


def reference_losses():
    """Yield the losses of the undisturbed training, step by step without end, computed in the
    calling process.
    """
    model, place = Stages(SingleRankMesh()), Cursor.start(SAMPLES, BATCH, SEED)
    while True:
        yield model.gradients(place.order().take(place.part(0, 1))).item()
        model.update()
        place = place.commit(1, [True])


def main(mesh, steps):
    """Train on a mesh that may change, for so many steps, and print each; where STEPS names a file,
    every worker adds its steps there, so that they are known whoever is lost. What a worker's
    process runs.
    """
    job = shoal.join()
    trained = shoal.train(
        Stages,
        layout=LAYOUT,
        catalogue=TENSORS,
        mesh=mesh,
        samples=SAMPLES,
        batch=BATCH,
        seed=SEED,
        steps=steps,
    )
    with open(os.environ.get("STEPS", os.devnull), "ab", buffering=0) as file:
        for step in trained:
            line = f"STEP {step.number} on {step.mesh} loss {step.loss!r}"
            file.write(f"{line}\n".encode())  # one write, so that lines of workers do not mix
            if job.rank == 0:
                print(line, flush=True)
    print("RELEASED" if job.released else "END", flush=True)


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
