"""A world of NumPy workers that train by the strategies of shoal.sync: rounds of local steps,
workers that are lost in the midst of one, workers that join, and strategies that change. No process
and no agent: what the agent does, dealing samples and taking the weighted mean, is done here.
"""

import dataclasses

import numpy as np

from shoal.cursor import Cursor
from shoal.sync import parse, partners
from shoal.sync.contract import differences
from shoal.sync.matching import average_pair, part_of_step

SAMPLES, RATE = 96, 0.05


def make_data(seed=1):
    """Inputs and outputs of a linear problem with noise, SAMPLES of them."""
    random = np.random.default_rng(seed)
    x = random.normal(size=(SAMPLES, 5)).astype("f4")
    noise = 0.1 * random.normal(size=(SAMPLES, 2))
    return x, (x @ random.normal(size=(5, 2)) + noise).astype("f4")


class Worker:
    """A worker: its replica, and its copies of the anchor and of what is kept beside it."""

    def __init__(self, z, kept):
        """A worker that joins with the anchor of the others, and copies all of it."""
        self.z = [a.copy() for a in z]
        self.w = [a.copy() for a in z]
        self.kept = {name: [a.copy() for a in arrays] for name, arrays in kept.items()}


class World:
    """A job of such workers. `step` makes a round; the other methods change the members or the
    strategy between two rounds.
    """

    def __init__(self, workers, sync, batch=12, seed=3):
        """A job that begins with so many workers, a strategy and a batch of a local step."""
        self.x, self.y = make_data()
        self.seed, self.sign = seed, 1.0
        self.cursor = Cursor.start(SAMPLES, batch, seed)
        self.taken = np.zeros(SAMPLES, int)  # how often each sample was committed
        self.steps = 0  # local steps of the job
        z = [np.zeros((5, 2), "f4"), np.zeros(2, "f4")]
        self.workers = [Worker(z, {}) for _ in range(workers)]
        self.switch(sync)

    def switch(self, sync):
        """Go on with another strategy, between two rounds."""
        self.sync = parse(sync)
        self.cursor = dataclasses.replace(self.cursor, round=self.sync.every)
        for worker in self.workers:
            worker.kept = self.sync.strategy.switch(worker.w, worker.z)

    def join(self):
        """Let a worker join, with the anchor and what is kept of the first one."""
        self.workers.append(Worker(self.workers[0].z, self.workers[0].kept))

    def gradients(self, worker, indices):
        """The gradients of the mean loss of some samples, at a worker's replica."""
        x, (w, b) = self.x[indices], worker.w
        error = (x @ w + b - self.y[indices]) * np.float32(2 / len(indices))
        return [x.T @ error, error.sum(0)]

    def loss(self):
        """The mean loss of all samples at the anchor."""
        w, b = self.workers[0].z
        return float(((self.x @ w + b - self.y) ** 2).sum(1).mean())

    def step(self, lost=()):
        """Make a round and commit it. Of each worker whose rank is in `lost`, that many local steps
        are made, and then it is gone.
        """
        lost, size, cursor = dict(lost), len(self.workers), self.cursor
        order, locals = cursor.order(), -(-cursor.count() // cursor.batch)
        parts = [np.asarray(order.take(cursor.part(rank, size)), int) for rank in range(size)]
        pieces = [np.array_split(part, locals) for part in parts]
        for local in range(locals):
            there = [r for r in range(size) if lost.get(r, locals) > local]
            for rank in there:
                if len(pieces[rank][local]):
                    worker = self.workers[rank]
                    for w, g in zip(worker.w, self.gradients(worker, pieces[rank][local])):
                        w -= np.float32(RATE) * g
            if self.sync.strategy.pairs:
                self._meet_partners(there, [len(part) for part in parts])
            self.steps += 1
        done = [rank not in lost for rank in range(size)]
        self._commit([r for r in range(size) if done[r]], [len(part) for part in parts])
        for rank, part in enumerate(parts):
            self.taken[part] += done[rank]
        self.cursor = cursor.commit(size, done)

    def _meet_partners(self, there, weights):
        """Average the replicas of those that are there with their partners'; who has none keeps
        what it has. `weights` has the samples of all ranks in the round.
        """
        found = partners(self.seed, self.steps, len(weights))
        parts = self.sync.strategy.parts
        cuts = {
            r: [w.reshape(-1)[part_of_step(w.size, self.steps, parts)] for w in self.workers[r].w]
            for r in there
        }
        before = {r: [cut.copy() for cut in own] for r, own in cuts.items()}
        for rank in there:
            if found[rank] != rank and found[rank] in before:
                both = (weights[rank], weights[found[rank]])
                if self.sync.strategy.keeps_replicas:
                    both = (1, 1)
                average_pair(cuts[rank], before[found[rank]], both)

    def _commit(self, ranks, weights):
        """End a round with the workers of these ranks; the others are gone. `weights` has the
        samples of all ranks.
        """
        there, whole = [self.workers[r] for r in ranks], sum(weights[r] for r in ranks)
        if not whole:
            self.workers = there
            return
        each = [differences(worker.w, worker.z) for worker in there]
        counted = sum(weights[r] > 0 for r in ranks)
        for rank, worker in zip(ranks, there):
            mean = [
                sum(np.float32(self.sign * weights[r] / whole) * d[i] for r, d in zip(ranks, each))
                for i in range(len(worker.z))
            ]
            w = worker.w
            if self.sync.strategy.keeps_replicas and not weights[rank]:
                w = [a.copy() for a in w]  # the mean has nothing of it
            self.sync.strategy.commit(w, worker.z, worker.kept, mean, counted)
        self.workers = there


def assert_alike(world):
    """Check that the anchor and what is kept beside it are the same bytes on all workers, and so
    are replicas where the strategy has them follow the anchor.
    """
    first = world.workers[0]
    for worker in world.workers:
        assert b"".join(map(bytes, worker.z)) == b"".join(map(bytes, first.z))
        assert worker.kept.keys() == first.kept.keys()
        for name in first.kept:
            assert list(map(bytes, worker.kept[name])) == list(map(bytes, first.kept[name]))
        if not world.sync.strategy.keeps_replicas:
            assert list(map(bytes, worker.w)) == list(map(bytes, worker.z))
