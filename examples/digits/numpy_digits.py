"""Handwritten digits in NumPy: an ordinary loop with one all-reduce a step, whose workers may come
and go.

    $ shoal run -n 4 -- python3 examples/digits/numpy_digits.py
    [0] step  102  loss 1.0518  accuracy 90.5 %
    [0] step  204  loss 0.3588  accuracy 97.5 %
    ...
    [0] 4 workers trained 2000 steps: accuracy 98.6 %

Without the launcher it is a job of one, which prints the same losses.
"""

import os
import sys

import numpy as np
import shoal

BATCH, RATE, MOMENTUM, HIDDEN, SEED = 128, 0.1, 0.9, 256, 2
SHAPES = [(64, HIDDEN), (HIDDEN,), (HIDDEN, 10), (10,)]


def load(dtype):
    """Training images (12942, 64) and labels, test images (359, 64) and labels; pixels from 0 to 1.
    Every fifth image is a test image; the others are there nine times, moved by up to one pixel.
    """
    path = os.path.join(os.path.dirname(os.path.abspath(__file__)), "data", "digits.csv.gz")
    table = np.loadtxt(path, delimiter=",")
    pixels, labels = (table[:, :64] / 16).astype(dtype), table[:, 64].astype(int)
    test = np.arange(len(labels)) % 5 == 4
    framed = np.pad(pixels[~test].reshape(-1, 8, 8), ((0, 0), (1, 1), (1, 1)))
    moved = [framed[:, y : y + 8, x : x + 8].reshape(-1, 64) for y in range(3) for x in range(3)]
    return np.concatenate(moved), np.tile(labels[~test], 9), pixels[test], labels[test]


def views(flat):
    """The arrays W1, b1, W2, b2 inside one flat array, in its memory."""
    ends = np.cumsum([np.prod(shape) for shape in SHAPES])
    return [part.reshape(shape) for part, shape in zip(np.split(flat, ends[:-1]), SHAPES)]


def gradient(weights, grad, x, labels):
    """Writes the mean gradient of the cross-entropy into grad (views) and returns the mean loss."""
    (w1, b1, w2, b2), (g1, d1, g2, d2) = weights, grad
    hidden = np.maximum(x @ w1 + b1, 0)
    scores = hidden @ w2 + b2
    scores -= scores.max(axis=1, keepdims=True)
    logs = scores - np.log(np.exp(scores).sum(axis=1, keepdims=True))
    rows = np.arange(len(labels))
    errors = np.exp(logs)
    errors[rows, labels] -= 1
    errors /= len(labels)
    deltas = (errors @ w2.T) * (hidden > 0)
    g1[:], d1[:] = x.T @ deltas, deltas.sum(axis=0)
    g2[:], d2[:] = hidden.T @ errors, errors.sum(axis=0)
    return -logs[rows, labels].mean()


def accuracy(weights, x, labels):
    """The share of images whose digit the model gets right."""
    w1, b1, w2, b2 = weights
    return float(((np.maximum(x @ w1 + b1, 0) @ w2 + b2).argmax(axis=1) == labels).mean())


def train(job, steps, dtype=np.float32, watch=iter):
    """Trains and returns the loss of every global batch. `watch` wraps the loop over the steps."""
    images, labels, test_images, test_labels = load(dtype)
    rng = np.random.default_rng(SEED)  # every rank starts from the same weights
    start = [
        rng.normal(0, np.sqrt(2 / s[0]), s).astype(dtype) if len(s) > 1 else np.zeros(s, dtype)
        for s in SHAPES
    ]
    flat = np.concatenate([w.ravel() for w in start])
    moved = job.empty(len(flat) + 1, dtype)  # the gradient and, in the same all-reduce, the loss
    weights, grad, velocity = views(flat), views(moved[:-1]), np.zeros_like(flat)
    losses, epoch = [], 0
    # A worker that joins later gets these from the others.
    job.register("weights", lambda: flat, lambda others: np.copyto(flat, others))
    job.register("velocity", lambda: velocity, lambda others: np.copyto(velocity, others))
    for step in watch(job.steps(len(labels), BATCH, seed=SEED, steps=steps)):
        moved[-1] = gradient(weights, grad, images[step.indices], labels[step.indices])
        step.allreduce(moved)
        velocity *= MOMENTUM
        velocity += moved[:-1]
        flat -= RATE * (1 - step.number / steps) * velocity
        losses.append(float(moved[-1]))
        done = step.number + 1
        if job.rank == 0 and (step.last or done == steps):
            loss, right = np.mean(losses[epoch:]), accuracy(weights, test_images, test_labels)
            job.report(step=done, loss=loss, accuracy=right, samples=step.after.committed())
            print(f"step {done:4d}  loss {loss:.4f}  accuracy {100 * right:.1f} %", flush=True)
            if done == steps:
                print(f"{job.size} workers trained {done} steps: accuracy {100 * right:.1f} %")
        epoch = len(losses) if step.last else epoch
    return losses


if __name__ == "__main__":
    train(shoal.join(), steps=int(sys.argv[1]) if len(sys.argv) > 1 else 2000)
