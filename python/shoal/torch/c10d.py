"""The Backend that a new torch wants in a ProcessGroup, for the CPU and for CUDA devices."""

from __future__ import annotations

import types
import weakref
from typing import Any, Callable, Dict

import torch
from torch._C import _distributed_c10d as c10d

from . import cuda


def attach_backend(group: Any) -> Any:
    """Give `group` a Backend that passes every call on to the group, and return it for the group to
    keep, since torch's C++ side keeps the C++ half only. None before torch 2.14, which has no such
    class (1.13) or lets Python make none: it takes a group as it is.
    """
    base = getattr(c10d, "Backend", None)
    if base is None or isinstance(base.__init__, types.WrapperDescriptorType):
        return None
    calls = [
        name
        for name in vars(type(group))
        if name == "getBackendName" or name[:2] != "__" and hasattr(base, name)
    ]
    body: Dict[str, Any] = {name: _forwarding_method(name) for name in calls}
    # torch 2.15 asks a Python backend for these without end unless it says something itself.
    body.update(
        {
            name: False
            for name in dir(base)
            if "supports_" in name and isinstance(getattr(base, name), property)
        }
    )
    backend = type("Backend", (base,), body)(group.rank(), group.size())
    backend.group = weakref.ref(group)
    custom = type(group).BackendType.CUSTOM
    group._set_default_backend(custom)
    for device in cuda.device_types():
        group._register_backend(torch.device(device), custom, backend)
    return backend


def _forwarding_method(name: str) -> Callable[..., Any]:
    """A method of a Backend that calls the group's method of that name."""

    def call(self: Any, *args: Any) -> Any:
        """Call the method of the group, which is alive as long as torch calls it."""
        return getattr(self.group(), name)(*args)

    return call
