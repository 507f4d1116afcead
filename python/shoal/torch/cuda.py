"""All that shoal asks of CUDA. Nothing else in the package calls torch.cuda; the tests put a double in the place of a `Card`."""

from __future__ import annotations

from typing import Any, ContextManager, Iterable, List, Optional

import torch
from torch import Tensor

_PORTABLE = 1  # cudaHostRegisterPortable: pinned for every context of the process


class Card:
    """A CUDA device. Streams and events are torch's."""

    def __init__(self, device: torch.device):
        self.device = device

    def __str__(self) -> str:
        return f"{self.device} ({torch.cuda.get_device_name(self.device)})"

    def pin(self, address: int, nbytes: int) -> None:
        """Lock host memory for copies that need no staging. Raises RuntimeError where the driver refuses."""
        _check(torch.cuda.cudart().cudaHostRegister(address, nbytes, _PORTABLE))

    def unpin(self, address: int) -> None:
        """Undo `pin`, before the memory is unmapped."""
        _check(torch.cuda.cudart().cudaHostUnregister(address))

    def stream(self) -> Any:
        """A new stream."""
        return torch.cuda.Stream(self.device)

    def current(self) -> Any:
        """The stream that this thread computes on."""
        return torch.cuda.current_stream(self.device)

    def on(self, stream: Any) -> ContextManager[Any]:
        """Have this thread compute on a stream."""
        return torch.cuda.stream(stream)

    def mark(self, stream: Any) -> Any:
        """An event behind all that the stream has to do so far. Whoever waits for it on the CPU sleeps."""
        event = torch.cuda.Event(blocking=True)
        event.record(stream)
        return event

    def copy(self, to: Tensor, source: Tensor) -> None:
        """Have the current stream copy a tensor, and keep the memory of both until that is done."""
        for tensor in (to, source):
            if tensor.is_cuda:
                tensor.record_stream(self.current())
        to.copy_(source, non_blocking=True)

    def home(self, tensor: Tensor) -> Tensor:
        """A copy on the CPU, once the current stream has come so far."""
        return tensor.cpu()

    def future(self) -> "torch.futures.Future[Any]":
        """A future whose waiters' streams wait for the stream on which it was completed."""
        return torch.futures.Future(devices=[self.device])


def card_of(tensors: Iterable[Tensor]) -> Optional[Card]:
    """The device on which all the tensors lie; None for the CPU. Raises RuntimeError where they lie on several."""
    devices = {t.device for t in tensors}
    if len(devices) > 1:
        places = ", ".join(sorted(map(str, devices)))
        raise RuntimeError(f"shoal: the model lies on {places}: a worker averages a model that lies on one device; start a worker for each GPU")
    device = next(iter(devices), torch.device("cpu"))
    return Card(device) if device.type == "cuda" else None


def kinds() -> List[str]:
    """The kinds of devices of this machine, as torch names them."""
    return ["cpu", "cuda"] if torch.cuda.is_available() else ["cpu"]


def _check(result: Any) -> None:
    if int(result):
        raise RuntimeError(f"cudaError {int(result)}")
