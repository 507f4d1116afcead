"""A worker that trains without end and tells what changes of the members cost it, for ``go run
./bench/recovery --client``.
"""

from __future__ import annotations

import statistics
import sys
import time
from collections import deque
from typing import Any, Deque, Dict, Optional

import shoal

SAMPLES, BATCH = 1 << 40, 256  # of the job's data, and of a step over all workers


class Clock:
    """Times the steps, and reports a change of the members once the step after it is done: a worker
    that joins receives the state between the two. The thread of the training loop uses it, and
    waits for nobody.
    """

    def __init__(self, job: "shoal.Job") -> None:
        """A clock that starts now."""
        self._job = job
        self._last = time.perf_counter()  # the end of the last step
        self._paces: Deque[float] = deque(maxlen=64)  # seconds of the newest steps
        self._generation = 0  # of the last step; 0 = there was none
        # The time.time() at which this worker began its first step; None = it has not.
        self._first: Optional[float] = None
        # What is reported of a change of the members after the next step; None = nothing is.
        self._pending: Optional[Dict[str, float]] = None

    def begin_step(self) -> None:
        """Note that a step begins, which counts for the first one only."""
        self._first = self._first or time.time()

    def end_step(self) -> None:
        """Note that a step has ended, and report a change of the members that happened before
        it.
        """
        now, generation = time.perf_counter(), self._job.generation
        took, self._last = now - self._last, now
        if self._pending is not None:
            self._job.report(self._pending, next_us=took * 1e6)
            self._pending = None
        if generation == self._generation:
            self._paces.append(took)
            return
        pace = statistics.median(self._paces) if self._paces else 0.0
        self._pending = {
            "generation": generation,
            "at_us": time.time() * 1e6,
            "took_us": took * 1e6,
            "pace_us": pace * 1e6,
        }
        if not self._generation and self._first:  # what was before is no step
            self._pending.update(took_us=0.0, began_us=self._first * 1e6)
        self._generation = generation


def train_numpy(gradient: int, state: int) -> None:
    """Train with a gradient of so many float32 and so many bytes of other state, until the process
    is killed.
    """
    import numpy as np

    job = shoal.join()
    average = job.empty(gradient)
    memory = np.ones(state, "uint8")
    job.register("state", lambda: memory, lambda value: np.copyto(memory, value))
    clock = Clock(job)
    for step in job.steps(SAMPLES, BATCH, epochs=1):
        clock.begin_step()
        average[:] = step.indices[0] % 1000
        step.allreduce(average)
        clock.end_step()


def train_torch(_: int, state: int) -> None:
    """Train a model that is so many bytes with its gradient averages in Adam, until the process is
    killed. The first argument is for train_numpy.
    """
    import torch

    import shoal.torch

    torch.set_num_threads(1)
    width, layers = 1024, max(state // (12 * 1024 * 1024), 1)
    samples: Any = range(SAMPLES)
    batches = shoal.torch.loader(samples, BATCH, collate_fn=torch.tensor)
    linear = [torch.nn.Linear(width, width, bias=False) for _ in range(layers)]
    with torch.no_grad():
        for layer in linear:
            # An activation stays as large through all layers. Else activations become denormal
            # numbers, with which processors compute slowly.
            layer.weight.mul_(3**0.5)
    model = shoal.torch.ddp(torch.nn.Sequential(*linear))
    optimizer = shoal.torch.optimizer(torch.optim.Adam(model.parameters(), lr=1e-6))
    clock = Clock(shoal.join())
    for x in batches:
        clock.begin_step()
        optimizer.zero_grad()
        (model((x[:1] % 1000 + 1.0).expand(1, width) / 1000) - 1).square().mean().backward()
        optimizer.step()
        clock.end_step()


def main() -> None:
    """Train as the command line says: bench_recovery numpy|torch ELEMENTS STATE."""
    train = {"numpy": train_numpy, "torch": train_torch}[sys.argv[1]]
    train(int(sys.argv[2]), int(sys.argv[3]))


if __name__ == "__main__":
    main()
