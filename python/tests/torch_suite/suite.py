"""Makes torch's in-package distributed suite importable and points it at a backend.

The suite ships inside every torch package as
`torch.testing._internal.distributed.distributed_test`. Its decorators read BACKEND once, at import,
and many tests are open to the literal name "gloo" only. So it is imported as gloo's suite, and the
backend is changed afterwards: another backend then faces exactly the tests that gloo faces.

The environment must hold BACKEND, WORLD_SIZE, TEMP_DIR and INIT_METHOD (run.py sets them). All of
this changes modules of torch's for the rest of the process, on its main thread: rank.py and run.py
do it in processes of their own.
"""

import os
import sys
import types
import unittest


def load(backend: str):
    """Import the suite, once in a process; return (module, test case class) of it, its tests aimed
    at `backend`.
    """
    _stand_in_for_expecttest()
    os.environ["BACKEND"] = "gloo"
    from torch.testing._internal import common_distributed

    # enough for the sub-groups, though torch 2 asks for eight
    if int(os.environ["WORLD_SIZE"]) > 2:
        common_distributed.skip_if_small_worldsize = lambda test: test
    from torch.testing._internal.distributed import distributed_test

    os.environ["BACKEND"] = distributed_test.BACKEND = backend

    _open_monitored_barrier(distributed_test.dist)

    class Suite(distributed_test.TestDistBackend, distributed_test.DistributedTest._DistTestBase):
        """The suite, aimed at a backend."""

        pass

    if backend != "gloo":
        _open_all_to_all(Suite)
    return distributed_test, Suite


def set_backend_name(module, name: str, backend: str) -> None:
    """Set BACKEND of the suite's module for the test `name`, which must run next: to `backend`, or
    where a test knows only some names, to one of these.
    """
    # set their model up for "gloo" and "mpi" alone
    by_name = ("test_accumulate_gradients_no_sync",)
    module.BACKEND = "mpi" if name.startswith(by_name) else backend


def names(case) -> list:
    """The names of all tests of a test case class, in a fixed order: those that run into a time-out
    on purpose last.

    A call that timed out keeps its slot for as long as its process lives, and there are 256 of
    them.
    """
    found = [name for name in dir(case) if name.startswith("test_")]
    return sorted(found, key=lambda name: ("timeout" in name or "monitored" in name, name))


def _open_monitored_barrier(dist) -> None:
    """Let other backends than gloo call monitored_barrier."""
    # torch 1.13 refuses it to every backend not called gloo; torch 2 asks the backend. This asks
    # the backend.
    refusing = dist.monitored_barrier

    def monitored_barrier(group=None, timeout=None, wait_all_ranks=False):
        """torch's, without its check of the backend's name; it blocks for at most the timeout."""
        group = group or dist.group.WORLD
        if dist.get_rank(group) < 0 or dist.get_backend(group) == "gloo":
            return refusing(group, timeout, wait_all_ranks)
        return group.monitored_barrier(timeout, wait_all_ranks)

    dist.monitored_barrier = monitored_barrier


def _open_all_to_all(case) -> None:
    """Let the backend run the tests of all-to-all in a test case class that torch opens to MPI
    only.
    """
    # On the CPU torch runs these for MPI alone, as gloo had no all-to-all when they were written.
    for name in names(case):
        test = getattr(case, name)
        if getattr(test, "__unittest_skip_why__", "").startswith("Only MPI supports"):
            test.__unittest_skip__ = False


def _stand_in_for_expecttest() -> None:
    """Make `expecttest` importable, which the suite imports and does not need."""
    # torch's test base imports expecttest for expected-output tests, which this suite has none of.
    try:
        import expecttest  # noqa: F401
    except ImportError:
        module = types.ModuleType("expecttest")
        module.ACCEPT = False
        module.TestCase = unittest.TestCase
        sys.modules["expecttest"] = module
