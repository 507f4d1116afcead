"""All uses of CUDA. No other module calls torch.cuda for devices; the tests put a double in the
place of a `Device`.
"""

from __future__ import annotations

import os
from datetime import timedelta
from typing import Any, ContextManager, Iterable, List, Optional, Tuple

import torch
import torch.distributed as dist
from torch import Tensor

_FOREVER = timedelta(days=3650)
_DRIVERS = ("/dev/nvidiactl", "/dev/kfd", "/dev/dxg")  # of CUDA, of ROCm, and of CUDA in WSL
_PORTABLE = 1  # cudaHostRegisterPortable: pinned for every context of the process


def memory_use() -> Optional[Tuple[int, int]]:
    """How many bytes of its device this process has had at most, as torch counts them, and how many
    it can have: its own and those that nobody has. Of several devices it is the one of which it has
    had the most. None = it uses no device. It waits for the driver, and not for the device.
    """
    if not torch.cuda.is_initialized():
        return None
    # Not the current device: a program that names its device everywhere leaves that at 0.
    had = [torch.cuda.max_memory_reserved(i) for i in range(torch.cuda.device_count())]
    device = had.index(max(had))
    if not had[device]:
        return None
    free, _ = torch.cuda.mem_get_info(device)
    return had[device], free + torch.cuda.memory_reserved(device)


class Device:
    """A CUDA device. Streams and events are torch's. It is not changed after `__init__`: any thread
    may use it. Only `to_cpu` waits for the device.
    """

    def __init__(self, device: torch.device):
        """The device that torch has for `device`."""
        self.device = device

    def __str__(self) -> str:
        """The number and the name of the device."""
        return f"{self.device} ({torch.cuda.get_device_name(self.device)})"

    def pin(self, address: int, nbytes: int) -> None:
        """Lock host memory for copies that need no staging, until `unpin`. Raises RuntimeError
        where the driver refuses.
        """
        with torch.cuda.device(self.device):  # else the driver takes memory of another one too
            error = torch.cuda.cudart().cudaHostRegister(address, nbytes, _PORTABLE)
        _check_cuda_error(error)

    def unpin(self, address: int) -> None:
        """Undo `pin`, before the memory is unmapped."""
        with torch.cuda.device(self.device):
            error = torch.cuda.cudart().cudaHostUnregister(address)
        _check_cuda_error(error)

    def new_stream(self) -> Any:
        """A new stream of this device."""
        return torch.cuda.Stream(self.device)

    def current_stream(self) -> Any:
        """The stream that this thread computes on."""
        return torch.cuda.current_stream(self.device)

    def using_stream(self, stream: Any) -> ContextManager[Any]:
        """A block in which this thread computes on a stream."""
        return torch.cuda.stream(stream)

    def record_event(self, stream: Any) -> Any:
        """A new event after all that the stream has to do so far. Whoever waits for it on the CPU
        sleeps.
        """
        event = torch.cuda.Event(blocking=True)
        event.record(stream)
        return event

    def copy(self, to: Tensor, source: Tensor) -> None:
        """Have the current stream copy a tensor, and keep the memory of both until that is done;
        this does not wait for it.
        """
        for tensor in (to, source):
            if tensor.is_cuda:
                tensor.record_stream(self.current_stream())
        to.copy_(source, non_blocking=True)

    def to_cpu(self, tensor: Tensor) -> Tensor:
        """A copy on the CPU; waits until the current stream has come so far."""
        return tensor.cpu()

    def empty(self, count: int, dtype: torch.dtype) -> Tensor:
        """A new tensor on the device, with arbitrary elements."""
        return torch.empty(count, dtype=dtype, device=self.device)

    def identity(self) -> Tuple[str, int]:
        """The name that only this device has, and the version of NCCL here. Raises RuntimeError
        where NCCL cannot be used, or not be aborted.
        """
        name = getattr(torch.cuda.get_device_properties(self.device), "uuid", None)
        if name is None or not hasattr(getattr(dist, "ProcessGroupNCCL", None), "abort"):
            raise RuntimeError(f"torch {torch.__version__} has no NCCL that can be aborted")
        major, minor, patch = torch.cuda.nccl.version()[:3]
        return str(name), major << 32 | minor << 16 | patch

    def communicator(self, store: Any, rank: int, size: int) -> "Communicator":
        """A communicator of the devices of `size` processes, one each, that find each other by a
        store of torch's.
        """
        return Communicator(self, store, rank, size)

    def new_future(self) -> "torch.futures.Future[Any]":
        """A future whose waiters' streams wait for the stream on which it was completed."""
        return torch.futures.Future(devices=[self.device])


class Communicator:
    """A process group of NCCL's, which sums tensors over devices. After an error it cannot be used,
    and the tensors under way hold anything.

    Errors, aborts among them, are seen by `wait` only: to the device an operation that was aborted
    is one that is over. One thread uses it, the one that averages gradients, but for `abort`.
    """

    def __init__(self, device: Device, store: Any, rank: int, size: int):
        """Find the other processes by the store, and make the group of NCCL's. Sets environment
        variables of torch's if the user has not.
        """
        # torch otherwise ends the process when a partner is lost.
        os.environ.setdefault("TORCH_NCCL_ASYNC_ERROR_HANDLING", "2")
        # The thread that writes what was under way then sleeps for eight minutes, for which the end
        # of the process waits.
        os.environ.setdefault("TORCH_NCCL_DUMP_ON_TIMEOUT", "0")
        options = dist.ProcessGroupNCCL.Options()
        # Not blocking: a call that waits for partners can be aborted from the beginning.
        options.config.blocking = 0
        self._device, self._group = device, dist.ProcessGroupNCCL(store, rank, size, options)
        self._works: List[Any] = []  # of the sums that `wait` has not waited for
        self._aborted = False  # set by any thread, without a lock

    def all_reduce(self, tensor: Tensor) -> None:
        """Begin to replace a tensor by the sum of all processes', after what the current stream
        computes.
        """
        self._works.append(self._group.allreduce([tensor]))

    def wait(self) -> None:
        """Block until all sums are there, for the CPU and for the current stream. Raises
        RuntimeError when they never will be.
        """
        works, self._works = self._works, []
        for work in works:
            work.wait()
        self._device.record_event(self._device.current_stream()).synchronize()
        for work in works:
            work.wait(_FOREVER)  # the operation is over, and this wait raises its error
        if self._aborted:
            raise RuntimeError("aborted")

    def abort(self) -> None:
        """Have `all_reduce` and `wait`, on any thread, come to an end. Needs no other process, and
        any thread may call it.
        """
        self._aborted = True
        self._group.abort()


def device_of(tensors: Iterable[Tensor]) -> Optional[Device]:
    """The CUDA device on which all the tensors lie; None where they lie on one of another kind, as
    the CPU. Raises RuntimeError where they lie on several.
    """
    devices = {t.device for t in tensors}
    if len(devices) > 1:
        places = ", ".join(sorted(map(str, devices)))
        raise RuntimeError(
            f"shoal: the model lies on {places}: a worker averages a model that lies on one device;"
            " start a worker for each GPU"
        )
    device = next(iter(devices), torch.device("cpu"))
    return Device(device) if device.type == "cuda" else None


def device_types() -> List[str]:
    """The kinds of devices of this machine, as torch names them. Neither CUDA nor the library that
    manages devices is asked, since both start threads: `shoal run --prefork` could fork no worker
    any more. So a GPU counts that has a file among the devices and is not hidden.
    """
    hidden = os.environ.get("CUDA_VISIBLE_DEVICES") in ("", "-1", "NoDevFiles")
    there = any(os.path.exists(path) for path in _DRIVERS)
    return ["cpu", "cuda"] if there and not hidden else ["cpu"]


def _check_cuda_error(result: Any) -> None:
    """Raise RuntimeError for a result of the CUDA runtime that is an error."""
    if int(result):
        raise RuntimeError(f"cudaError {int(result)}")
