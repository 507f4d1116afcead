"""Makes torch's in-package distributed suite importable and points it at a backend.

The suite ships inside every torch package as `torch.testing._internal.distributed.distributed_test`. Its decorators read
BACKEND once, at import, and many tests are open to the literal name "gloo" only. So it is imported as gloo's suite, and
the backend is changed afterwards: another backend then faces exactly the tests that gloo faces.

The environment must hold BACKEND, WORLD_SIZE, TEMP_DIR and INIT_METHOD (run.py sets them).
"""

import os
import sys
import types
import unittest


def load(backend: str):
    """Return (module, test case class) of the suite, its tests aimed at `backend`."""
    _stand_in_for_expecttest()
    os.environ["BACKEND"] = "gloo"
    from torch.testing._internal.distributed import distributed_test

    os.environ["BACKEND"] = distributed_test.BACKEND = backend

    class Suite(distributed_test.TestDistBackend, distributed_test.DistributedTest._DistTestBase):
        pass

    return distributed_test, Suite


def names(case) -> list:
    """All test names of the suite, in a fixed order."""
    return sorted(name for name in dir(case) if name.startswith("test_"))


def _stand_in_for_expecttest() -> None:
    # torch's test base imports expecttest for expected-output tests, which this suite has none of.
    try:
        import expecttest  # noqa: F401
    except ImportError:
        module = types.ModuleType("expecttest")
        module.ACCEPT = False
        module.TestCase = unittest.TestCase
        sys.modules["expecttest"] = module
