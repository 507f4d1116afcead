#!/usr/bin/env python3
"""Solves partitions of layers into pipeline stages as integer programmes, for make plan-oracles.

Reads an instance a line: JSON with the seconds of each layer for a micro-batch, the seconds that
its output takes to one device, the seconds that averaging its parameters takes between two, and
the numbers of devices, of stages and of micro-batches. Writes for each the least
(micro + 4 * stages - 4) * C + A in its line, or null where there is no plan: C is the largest of
the seconds of a stage, divided by its devices, and of a transfer, divided by the fewer devices of
its two stages; A the largest of the seconds of averaging, times (devices - 1) / devices.

It knows nothing of paths: it assigns layers to stages, and numbers of devices to stages.
"""

import json
import os
import sys

import numpy
from scipy.optimize import Bounds, LinearConstraint, milp


class Programme:
    """A mixed integer programme that is being written."""

    def __init__(self, variables: int) -> None:
        """Begin one of so many variables."""
        self.variables = variables
        self.rows: "list[numpy.ndarray]" = []
        self.low: "list[float]" = []
        self.high: "list[float]" = []

    def between(self, low: float, terms: "dict[int, float]", high: float) -> None:
        """Demand that a sum of variables times factors lies between two numbers."""
        row = numpy.zeros(self.variables)
        for variable, factor in terms.items():
            row[variable] += factor
        self.rows.append(row)
        self.low.append(low)
        self.high.append(high)


def solve(x: dict) -> "float | None":
    """Return the least objective of an instance; None = there is no plan."""
    seconds, out, params = x["seconds"], x["out"], x["params"]
    layers, devices, stages = len(seconds), x["devices"], x["stages"]

    def on(layer: int, stage: int) -> int:
        """The number of the variable that is 1 where a layer is on a stage, else 0."""
        return layer * stages + stage

    def has(stage: int, count: int) -> int:
        """The number of the one that is 1 where a stage has `count` devices, from 1, else 0."""
        return layers * stages + stage * devices + count - 1

    slowest = (layers + devices) * stages
    tail = slowest + 1
    p, all_of = Programme(tail + 1), numpy.inf
    for layer in range(layers):
        p.between(1, {on(layer, s): 1 for s in range(stages)}, 1)
    for s in range(stages):
        p.between(1, {on(layer, s): 1 for layer in range(layers)}, all_of)
        p.between(1, {has(s, k): 1 for k in range(1, devices + 1)}, 1)
    p.between(devices, {has(s, k): k for s in range(stages) for k in range(1, devices + 1)},
              devices)
    for layer in range(1, layers):
        # A layer is on the stage of the one before it, or on the next.
        for s in range(stages):
            terms = {on(layer, s): 1.0, on(layer - 1, s): -1.0}
            if s > 0:
                terms[on(layer - 1, s - 1)] = -1.0
            p.between(-all_of, terms, 0)
    p.between(1, {on(0, 0): 1}, 1)
    work, averaged = sum(seconds), sum(params)
    for s in range(stages):
        for k in range(1, devices + 1):
            # C >= the work of the stage / k, and A >= …, if the stage has k devices.
            terms = {on(layer, s): t / k for layer, t in enumerate(seconds)}
            terms.update({slowest: -1, has(s, k): work / k})
            p.between(-all_of, terms, work / k)
            part = (k - 1) / k
            terms = {on(layer, s): t * part for layer, t in enumerate(params)}
            terms.update({tail: -1, has(s, k): averaged * part})
            p.between(-all_of, terms, averaged * part)
    for s in range(stages - 1):
        for layer in range(layers - 1):
            # C >= what is sent after a layer, if the cut is there: a sum of four that are 1.
            for k in range(1, devices + 1):
                for n in range(1, devices + 1):
                    sent = out[layer] / min(k, n)
                    terms = {on(layer, s): sent, on(layer + 1, s + 1): sent, slowest: -1}
                    terms.update({has(s, k): sent, has(s + 1, n): sent})
                    p.between(-all_of, terms, 3 * sent)
    cost = numpy.zeros(p.variables)
    cost[slowest], cost[tail] = x["micro"] + 4 * stages - 4, 1
    whole = numpy.ones(p.variables)
    whole[slowest:] = 0
    most = numpy.ones(p.variables)
    most[slowest:] = numpy.inf
    got = milp(cost, integrality=whole, bounds=Bounds(0, most),
               constraints=LinearConstraint(numpy.array(p.rows), p.low, p.high),
               options={"mip_rel_gap": 0, "presolve": False})  # which loses optima in 1.17
    return float(got.fun) if got.success else None


def main() -> None:
    """Solve what comes, a line each. What the solver itself prints goes to standard error."""
    out = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    for line in sys.stdin:
        print(json.dumps(solve(json.loads(line))), file=out, flush=True)


if __name__ == "__main__":
    main()
