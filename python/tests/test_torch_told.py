"""What the agent takes for gradients: of buckets of gradients all that is in them, and of others
nothing.
"""

import pytest

torch = pytest.importorskip("torch")

from shoal import job as jobs
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
    """The calls of a bucket of other tensors say so, and those of gradients do not."""
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
