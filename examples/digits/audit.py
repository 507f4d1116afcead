"""Looks on while an example trains, and checks what a job promises: every sample counts once an
epoch, and all workers hold the same state at every step. `shoal demo` runs the examples with it.

    python3 audit.py numpy|torch STEPS

In the step of the gradient it moves a sheet on which each worker writes what it contributes; so it
sees what has become part of the mean, whoever was lost meanwhile. What it has seen is part of the
state, so a worker that joins has it too.
"""

import collections
import importlib
import statistics
import sys
import time

import numpy as np
import shoal

LOST, REPEATED, HANDED_ON, UNEQUAL, STEPS_LOST = range(5)  # indices of `found`


class Audit:
    """The audit of one worker, for the thread of its training loop."""

    def __init__(self, job):
        """An audit of a job that has not trained yet, registered as a part of its state."""
        self.job = job
        self.times = np.zeros(0, "int64")  # how often each sample has counted in the epoch
        self.found = np.zeros(5, "int64")  # what was found so far
        self.paces = collections.deque(maxlen=64)  # seconds of the newest steps
        # the place in the data, the generation and the end (time.time) of the newest step
        self.after, self.generation, self.last = None, 0, None
        job.register("audit", lambda: [self.times, self.found], self._set_state)

    def _set_state(self, state):
        """Takes over the state of the audit from another worker."""
        self.times, self.found = [np.array(part) for part in state]

    def watch(self, loop):
        """Yields what the loop over steps or over a loader yields, and audits each step: after the
        yield it waits until the step is committed.
        """
        for item in loop:
            step, size, rank = self.job.step, self.job.size, self.job.rank
            most = step.count  # a rank may have all samples, by its share of the work
            sheet, digest = np.zeros(size * (1 + most), "int64"), self.job.digest() + 1
            sheet[rank] = digest
            own = sheet[size + rank * most :][: step.weight]
            own[:] = np.asarray(step.indices)[: step.weight] + 1
            moving = step.share(sheet, last=False, op="sum")
            yield item
            moving.wait()
            self._count_step(step, digest, sheet[:size], sheet[size:])

    def _count_step(self, step, digest, digests, samples):
        """Counts what the sheet of a committed step shows: the digest of each worker, and the
        samples that are in the sum.
        """
        self.after = after = step.after
        if not len(self.times):
            self.times = np.zeros(after.samples, "int64")
        taken = samples[samples > 0] - 1
        np.add.at(self.times, taken, 1)
        self.found[UNEQUAL] += bool(((digests != digest) & (digests != 0)).any())
        self.found[HANDED_ON] += step.count - len(taken)
        self.found[STEPS_LOST] += abs(after.step - step.number - 1)
        if step.last:
            self._count_errors(after.samples)
            self.times[:] = 0
        self._add_step(after.step)

    def _count_errors(self, should):
        """Adds to `found` how many of the `should` samples that are due in the epoch have not
        counted, and how often samples counted again.
        """
        self.found[LOST] += max(should - np.count_nonzero(self.times), 0)
        self.found[REPEATED] += np.maximum(self.times - 1, 0).sum()

    def _add_step(self, committed):
        """Records the time of a step, the committed-th, and reports a change of the members, with
        the pace until then.
        """
        now, job = time.time(), self.job
        pace = statistics.median(self.paces) if self.paces else 0
        if self.last is not None:
            self.paces.append(now - self.last)
        self.last = now
        if job.generation != self.generation:
            self.generation = job.generation
            job.report(
                step=committed,
                workers=job.size,
                generation=job.generation,
                at_us=now * 1e6,
                pace_us=pace * 1e6,
            )

    def report(self):
        """Counts the epoch that is not complete and reports what was found; a worker that has made
        no step has nothing to report.
        """
        if self.after is None:
            return
        self._count_errors(self.after.committed() - self.after.epoch * self.after.samples)
        lost, repeated, handed_on, unequal, steps_lost = (int(n) for n in self.found)
        self.job.report(
            step=self.after.step,
            samples_lost=lost,
            samples_repeated=repeated,
            samples_handed_on=handed_on,
            steps_lost=steps_lost,
            steps_unequal=unequal,
            digest=self.job.digest(),
        )


if __name__ == "__main__":
    name, steps = sys.argv[1:]
    job = shoal.join()
    audit = Audit(job)
    importlib.import_module(f"{name}_digits").train(job, int(steps), watch=audit.watch)
    audit.report()
