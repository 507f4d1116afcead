"""A paced worker: its compute is a sleep of a + b · samples, off the processor as on a GPU.

usage: paced.py OPTIONS, a JSON object: defaults are those of jobs.py, and what is beyond them is
in the function of a kind.

Kind "noise" has gradients of a known noise scale and learns nothing, "still" and "parts" have some
that stay, "marks" writes down which samples were taken, and "digits" trains the network of
examples/digits and reports the accuracy on its test images with the seconds since the first step.
Kind "computed" is not paced: PyTorch computes.
"""

from __future__ import annotations

import json
import os
import pathlib
import sys
import time

import numpy as np

import shoal
from shoal._runtime.protocol import MORE

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "examples/digits"))


def pace(options, samples):
    """Sleep as long as so many samples take on a worker."""
    time.sleep(options["a"] + options["b"] * samples)


def noisy(job, options):
    """Steps whose gradients have the noise scale of the options: |G|² is 1 for each element, and a
    sample's gradient has the variance `noise` of it.
    """
    gradient = shoal.empty(options["elements"], np.float32)
    draws = np.random.default_rng(options["seed"] + 1000 * job.rank)
    state = np.zeros(1)
    job.register("state", lambda: state, lambda others: np.copyto(state, others))
    for step in steps_of(job, 1 << 40, options):
        samples = len(step.indices)
        pace(options, samples)
        spread = np.sqrt(options["noise"] / max(samples, 1))
        gradient[:] = 1 + spread * draws.standard_normal(len(gradient), dtype=np.float32)
        step.allreduce(gradient)


def still(job, options):
    """Steps whose gradients never change, each reported with when it ended and its seconds: they
    take little more than the sleep and the all-reduce.
    """
    gradient = shoal.empty(options["elements"], np.float32)
    gradient[:] = 1
    state = np.zeros(1)
    job.register("state", lambda: state, lambda others: np.copyto(state, others))
    before = time.time()
    for step in steps_of(job, 1 << 40, options):
        pace(options, len(step.indices))
        step.allreduce(gradient)
        now = time.time()
        if job.rank == 0:
            job.report(ended=now, seconds=now - before)
        before = now


def parts(job, options):
    """Steps with a forward pass, which is a third of the work, and a backward pass that averages
    the gradient in four parts while it goes on. Rank `slow_rank` takes `slow` times as long for
    both, or for the backward pass alone, from step `slow_from` on. Each step is reported as in
    `still`.
    """
    gradient = shoal.empty(options["elements"], np.float32)
    gradient[:] = 1
    pieces = np.split(gradient, 4)
    state = np.zeros(1)
    job.register("state", lambda: state, lambda others: np.copyto(state, others))
    before = time.time()
    for step in steps_of(job, 1 << 40, options):
        work = options["a"] + options["b"] * len(step.indices)
        is_slow = step.number >= options["slow_from"] and job.rank == options["slow_rank"]
        factor = options["slow"] if is_slow else 1
        time.sleep(work / 3 * (1 if options["only_backward"] else factor))
        begun = []
        for piece in pieces:
            time.sleep(work / 6 * factor)
            if piece is not pieces[-1]:
                begun.append(
                    job.allreduce_async(piece, "mean", weight=len(step.indices), flags=MORE)
                )
        step.allreduce(pieces[-1])
        for handle in begun:
            handle.wait()
        now = time.time()
        if job.rank == 0:
            job.report(step=step.number, ended=now, seconds=now - before)
        before = now


def marks(job, options):
    """Steps of noise, of which each worker writes down which samples all workers have taken: a mark
    for each travels with the gradient. The job ends when there is a file `end`.
    """
    count = options["samples"]
    gradient = shoal.zeros(options["elements"] + count + 1, np.float32)
    draws = np.random.default_rng(options["seed"] + 1000 * job.rank)
    state = np.zeros(1)
    job.register("state", lambda: state, lambda others: np.copyto(state, others))
    with open(f"{options['folder']}/marks-{job.rank}-{os.getpid()}", "w") as out:
        for step in steps_of(job, count, options):
            samples = len(step.indices)
            pace(options, samples)
            noise = draws.standard_normal(options["elements"], dtype=np.float32)
            gradient[: options["elements"]] = 1 + noise * np.sqrt(
                options["noise"] / max(samples, 1)
            )
            taken = gradient[options["elements"] : -1]
            taken[:] = 0
            taken[step.indices] = 1
            gradient[-1] = os.path.exists(f"{options['folder']}/end")
            step.allreduce(gradient)
            line = dict(step=step.number, epoch=step.epoch, taken=np.flatnonzero(taken).tolist())
            print(json.dumps(line), file=out, flush=True)
            if gradient[-1] > 0:
                break


def steps_of(job, samples, options):
    """The steps of a job over so many samples, with the batch and its range from the options."""
    opened = {}
    if options["least"] < options["most"]:
        opened["batch_range"] = (options["least"], options["most"])
    return job.steps(
        samples,
        options["batch"],
        seed=options["seed"],
        statistical_epochs=options["epochs"],
        **opened,
    )


def digits(job, options):
    """Train the digits for some statistical epochs by SGD, whose rate follows the batch as
    AdaScale's does where the job says so, and report the accuracy twice an epoch, and at the end.
    """
    import numpy_digits as net

    images, labels, test_images, test_labels = net.load(np.float32)
    draws = np.random.default_rng(options["seed"])
    start = [
        draws.normal(0, np.sqrt(2 / s[0]), s).astype(np.float32)
        if len(s) > 1
        else np.zeros(s, np.float32)
        for s in net.SHAPES
    ]
    flat = np.concatenate([w.ravel() for w in start])
    moved = job.empty(len(flat), np.float32)
    weights, grad = net.views(flat), net.views(moved)
    job.register("weights", lambda: flat, lambda others: np.copyto(flat, others))
    began, shown = None, 0

    def report(samples):
        """Report the accuracy after so many samples."""
        right = net.accuracy(weights, test_images, test_labels)
        job.report(accuracy=right, seconds=time.monotonic() - began, samples=samples)

    for step in steps_of(job, len(labels), options):
        began = began or time.monotonic()
        mine = step.indices
        pace(options, len(mine))
        net.gradient(weights, grad, images[mine], labels[mine])
        step.allreduce(moved)
        # The gain of AdaScale, which the job's setting has; shoal.torch.optimizer does this for
        # PyTorch.
        factor = job._progress.rate or 1
        rest = max(1 - job.statistical_epochs / options["epochs"], 0)
        flat -= options["rate"] * factor * rest * moved
        samples = step.after.committed()
        if job.rank == 0 and samples * 2 // len(labels) > shown:
            shown = samples * 2 // len(labels)
            report(samples)
    if job.rank == 0:
        report(samples)


def computed(job, options):
    """Steps that are computed, by PyTorch, which only these import."""
    import real

    real.train(job, options)


if __name__ == "__main__":
    chosen = json.loads(sys.argv[1])
    kinds = {"noise": noisy, "digits": digits, "still": still, "parts": parts, "marks": marks}
    kinds["computed"] = computed
    kinds[chosen["kind"]](shoal.join(), chosen)
