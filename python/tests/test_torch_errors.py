"""What torch's own C++ code makes of an error of the agent: an exception that says what is wrong,
never the end of the process. `_train` runs on each rank of a job, in its own process.
"""

import sys
import threading
import types

import pytest

torch = pytest.importorskip("torch")
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from torch_world import Failed, main, world

import shoal


class _Unmade:
    """A stand-in for the Backend of torch 2.13, which has no constructor."""


class _Group:
    """A stand-in for a ProcessGroup of torch 2, which knows backends."""

    rank = size = staticmethod(lambda: 1)
    _register_backend = None


def test_a_torch_of_whose_backends_python_can_make_none(monkeypatch):
    """A group stays as it is where torch has backends and no constructor for them."""
    from shoal.torch import c10d

    monkeypatch.setattr(c10d.c10d, "Backend", _Unmade, raising=False)
    assert c10d.attach_backend(_Group()) is None


def test_a_torch_that_skips_code_alone(monkeypatch):
    """torch.compile leaves shoal's own functions as they are also with an older torch (2.1)."""
    from shoal.torch import ddp, untraced

    skipped = set()
    older = types.SimpleNamespace(skip_code=skipped.add)
    monkeypatch.setattr(untraced, "eval_frame", older)
    untraced.skip_package("shoal.torch")
    assert ddp.__code__ in skipped
    hook = sys.modules["shoal.torch.ddp"]._UnaveragedParameters.__call__
    assert hook.__code__ in skipped


def _train(ending, wrap):
    """Train so that rank 1 makes fewer steps than rank 0, which waits for it in its backward pass;
    then rank 1 makes "another call", or "none". `wrap` is what wraps the model, "plain" for
    torch's own.
    """
    import shoal.torch

    if wrap == "plain":
        dist.init_process_group("shoal")
    model = torch.nn.Linear(4, 1)
    model = DistributedDataParallel(model) if wrap == "plain" else shoal.torch.ddp(model)
    for _ in range(3 if shoal.join().rank == 0 else 2):
        model(torch.ones(2, 4)).mean().backward()
    if ending == "another call":
        dist.all_reduce(torch.ones(7))


@pytest.mark.parametrize("wrap", ["plain", "shoal.torch.ddp"])
@pytest.mark.parametrize(
    "ending, wants",
    [
        ("another call", r"the ranks disagree .* rank 1 called all_reduce\(f32\[7\]"),
        ("none", "rank 1 exited with code 0, while rank 0 waits"),
    ],
)
def test_a_rank_with_fewer_steps_is_named(ending, wants, wrap):
    """The job fails, and the error says which rank made another call, or none any more; no process
    is ended by a signal.
    """
    with pytest.raises(Failed, match=wants) as failed:
        world(2, _train, ending, wrap)
    assert "SIG" not in str(failed.value)


def test_a_failed_future_raises_its_error():
    """The error of a future is raised to who waits, and to who reads the value in a callback."""
    from shoal.torch.future import set_error

    future = torch.futures.Future()
    set_error(future, ValueError("what was wrong"))
    with pytest.raises(ValueError, match="what was wrong"):
        future.wait()
    with pytest.raises(Exception, match="what was wrong"):
        future.then(lambda f: f.value()).wait()


def test_several_threads_make_works():
    """Works for which nobody has waited are held, up to a number, whichever threads make them."""
    from shoal.torch import executor

    holder, failed, before = executor.Executor(), [], sys.getswitchinterval()

    def make():
        """Hold many works, and release some of them."""
        try:
            works = [object() for _ in range(30000)]
            for work in works:
                holder.hold(work)
            for work in works[::3]:
                holder.release(work)
        except RuntimeError as error:
            failed.append(error)

    sys.setswitchinterval(1e-6)
    try:
        threads = [threading.Thread(target=make) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    finally:
        sys.setswitchinterval(before)
    assert not failed and len(holder._held) <= executor._HELD


if __name__ == "__main__":
    main(globals())
