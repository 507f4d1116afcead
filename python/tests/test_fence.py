"""The fence of processors other than x86-64, with this one's number of the system call."""

import platform

import pytest

from shoal._runtime import fence

NUMBERS = {"x86_64": 324, **fence._MEMBARRIER_SYSCALL}


def test_the_kernel_has_the_barrier(monkeypatch):
    """The kernel has the system call of the fence, and the fence can be called."""
    monkeypatch.setattr(fence, "_MEMBARRIER_SYSCALL", NUMBERS)
    fence._fence_by_membarrier(platform.machine())()


def test_a_machine_without_one_is_named():
    """A processor without a fence is refused by name."""
    with pytest.raises(OSError, match="no memory fence for pdp11"):
        fence._fence_by_membarrier("pdp11")
