"""What the agent takes for gradients: of buckets of gradients all that is in them, and of others
nothing. And what it learns of the time of a step with a loader and an optimizer.
"""

import struct
import sys

import pytest

torch = pytest.importorskip("torch")

import shoal.torch
from shoal import job as jobs
from shoal._runtime import step_timer
from shoal._runtime.protocol import NO_GRADIENT
from shoal._runtime.solo import Solo
from shoal.job import Job
from shoal.torch.bucket import make_buckets
from shoal.torch.exchange import Exchange


def test_a_bucket_is_hardly_more_than_its_gradients(monkeypatch):
    """The marks of a hundred parameters change the squared norm of small gradients by less than a
    thousandth, and tell still which were there, in a mean over a thousand workers too.
    """
    monkeypatch.setattr(jobs, "_current", Job(Solo()))
    for dtype in (torch.float16, torch.bfloat16, torch.float32, torch.float64):
        parameters = [torch.zeros(50, dtype=dtype) for _ in range(100)]
        (bucket,) = make_buckets(parameters)
        bucket.pack([None, *(torch.full((50,), 0.01, dtype=dtype) for _ in range(99))])
        squares = bucket.buffer.double().square().sum()
        gradients = sum(part.double().square().sum() for part in bucket.parts)
        assert 0.999 < squares / gradients < 1.001, dtype
        bucket.buffer.copy_(bucket.buffer.double() / 1000)
        assert [part is None for part in bucket.unpack()] == [True] + [False] * 99, dtype


def test_statistics_are_no_gradients(monkeypatch):
    """The calls of a bucket of other tensors say so, and those of gradients do not. For buckets
    that the agent has as they are no sample is chosen.
    """
    monkeypatch.setattr(sys.modules["shoal.torch.exchange"], "sample_of_step", None)
    job = Job(Solo())
    monkeypatch.setattr(jobs, "_current", job)
    tags = []
    allreduce_async = job.allreduce_async

    def allreduce(*arguments, **options):
        """Note the tag, and make the call."""
        tags.append(options.get("tag", 0))
        return allreduce_async(*arguments, **options)

    monkeypatch.setattr(job, "allreduce_async", allreduce)
    buckets = [make_buckets([torch.ones(3)])[0] for _ in range(2)]
    buckets[0].gradient = False
    exchange = Exchange(job, buckets)
    for _ in job.steps(4, 4, epochs=1):
        exchange.begin_step()
        exchange.submit_full(2, end=True)
        assert len(list(exchange.averaged_buckets())) == 2
    assert tags == [NO_GRADIENT, 0]


def test_where_the_time_of_a_loop_goes(monkeypatch):
    """The agent learns how long a loop has waited for samples, computed, and updated after the
    average, by a clock that goes on with each of these alone.
    """
    now = [10**9]
    for module in (step_timer, sys.modules["shoal.torch.loader"]):
        monkeypatch.setattr(module, "perf_counter_ns", lambda: now[0])

    class Samples(torch.utils.data.Dataset):
        """Four samples, each of which takes 2 ms to load."""

        def __len__(self):
            """Their number."""
            return 4

        def __getitem__(self, i):
            """One of them."""
            now[0] += 2_000_000
            return torch.ones(1)

    job = Job(Solo())
    monkeypatch.setattr(jobs, "_current", job)
    loader = shoal.torch.loader(Samples(), 2, epochs=1)
    parameter = torch.nn.Parameter(torch.zeros(1))
    opt = shoal.torch.optimizer(torch.optim.SGD([parameter], lr=1.0))
    seen = []
    for x in loader:
        now[0] += 7_000_000
        seen.append(struct.unpack("<IIIf", job._backend.step_timer.pack())[:3])
        parameter.grad = x.mean(0)
        opt.step()
        now[0] += 3_000_000
    assert seen == [(4000, 7000, 0), (4000, 7000, 3000)]
