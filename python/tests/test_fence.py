"""The fence of processors other than x86-64, with this one's number of the system call."""

import platform

import pytest

from shoal import _fence

NUMBERS = {"x86_64": 324, **_fence._MEMBARRIER_SYSCALL}


def test_the_kernel_has_the_barrier(monkeypatch):
    monkeypatch.setattr(_fence, "_MEMBARRIER_SYSCALL", NUMBERS)
    _fence._membarrier(platform.machine())()


def test_a_machine_without_one_is_named():
    with pytest.raises(OSError, match="no memory fence for pdp11"):
        _fence._membarrier("pdp11")
