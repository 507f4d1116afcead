"""Metrics of torchmetrics in an evaluation of which each worker has all batches."""

from __future__ import annotations

import contextlib
from typing import Any, Iterator

from torchmetrics import Metric


@contextlib.contextmanager
def metrics_alone(job: Any, module: Any) -> Iterator[None]:
    """A block in which the metrics in a module have what this worker of the job has seen: they
    would count each sample once for each worker. Without a job, None, they stay as they are.
    """
    metrics = [m for m in module.modules() if isinstance(m, Metric)] if job is not None else []
    before = [(m.sync_on_compute, m._to_sync) for m in metrics]
    for metric in metrics:
        metric.sync_on_compute = metric._to_sync = False
    try:
        yield
    finally:
        for metric, (own, now) in zip(metrics, before):
            metric.sync_on_compute, metric._to_sync = own, now
