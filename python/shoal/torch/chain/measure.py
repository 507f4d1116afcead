"""Measures what each layer of a chain takes for a micro-batch, and what it keeps for its backward
pass.
"""

from __future__ import annotations

import statistics
import time
from typing import Any, Callable, List, NamedTuple, Optional, Set, Tuple

import torch
from torch import nn

from shoal.errors import ShoalError

from .layers import Layers
from .model import Chain
from .stage import as_tensors, mean_loss, split_sample

_WARM_UP = 2  # rounds before those that count


class Measured(NamedTuple):
    """What a layer took: seconds of a micro-batch, of the optimizer's step, and bytes."""

    forward: float
    backward: float
    by_weights: float  # the part of `backward` that is for the parameters alone
    update: float
    kept: int  # from the forward to the backward pass
    out: int  # of what it gave for a micro-batch
    spread: float  # between the quartiles of forward and backward, as a part of the median


class _Layer(NamedTuple):
    """A layer with memory, and its optimizer; None = it has nothing to train."""

    name: str
    module: nn.Module
    optimizer: Optional[torch.optim.Optimizer]
    last: bool


class Bench:
    """The layers of a chain with memory, on one device. One thread uses it, with torch's threads as
    they are when it measures.
    """

    def __init__(self, chain: Chain, layers: Layers, device: torch.device) -> None:
        """Give all layers memory: parameters, gradients, and what the optimizer keeps."""
        self._chain, self._device = chain, device
        self._layers: List[_Layer] = []
        for number, module in layers.initial():
            module.to(device)
            trained = [p for p in module.parameters() if p.requires_grad]
            for p in trained:
                p.grad = torch.zeros_like(p)
            optimizer = chain.optimizer(trained) if trained else None
            last = number == len(layers) - 1
            self._layers.append(_Layer(layers.describe(number), module, optimizer, last))

    def measure(self, sample: Any, rounds: int) -> List[Measured]:
        """What each layer takes for a micro-batch: the inputs of the first layer, and what the loss
        is compared with. In each round every layer is measured once, so what disturbs the machine
        for a while disturbs few of the rounds. Raises ShoalError where a layer fails, with its
        name.
        """
        given, targets = split_sample(sample)
        targets = _moved(targets, self._device)
        inputs = [t.to(self._device) for t in as_tensors(given, "the sample")]
        recorded = [inputs]
        bytes_kept, bytes_out = [], []
        for layer in self._layers:
            with _Named(layer.name):
                kept = KeptBytes(layer.module)
                with torch.autograd.graph.saved_tensors_hooks(kept.pack, kept.unpack):
                    outputs = self._forward(layer, recorded[-1], targets)
                given_out = outputs if not layer.last else []
                bytes_kept.append(kept.nbytes)
                bytes_out.append(sum(t.numel() * t.element_size() for t in given_out))
                recorded.append([t.detach().requires_grad_(t.requires_grad) for t in outputs])
        took: List[List[Tuple[float, float, float, float]]] = [[] for _ in self._layers]
        for number in range(_WARM_UP + rounds):
            for i, layer in enumerate(self._layers):
                with _Named(layer.name):
                    figures = self._once(layer, recorded[i], targets)
                if number >= _WARM_UP:
                    took[i].append(figures)
        return [
            _summary(rows, kept, out) for rows, kept, out in zip(took, bytes_kept, bytes_out)
        ]

    def _once(
        self, layer: _Layer, inputs: List[torch.Tensor], targets: Any
    ) -> Tuple[float, float, float, float]:
        """Seconds of one forward and one backward pass, of the part of the latter that is for the
        parameters, and of a step of the optimizer.
        """
        wanted = [t for t in inputs if t.requires_grad]
        for t in wanted:
            t.grad = None
        forward, outputs = self._timed(lambda: self._forward(layer, inputs, targets))
        roots = [t for t in outputs if t.requires_grad]
        seeds = [torch.ones_like(t) for t in roots]
        backward = by_inputs = 0.0
        if roots:
            backward, _ = self._timed(lambda: torch.autograd.backward(roots, seeds))
        if roots and wanted:
            again = [t for t in self._forward(layer, inputs, targets) if t.requires_grad]
            by_inputs, _ = self._timed(
                lambda: torch.autograd.grad(again, wanted, seeds, allow_unused=True)
            )
        trained = layer.optimizer is not None
        update = self._timed(lambda: _step(layer.optimizer))[0] if trained else 0.0
        return forward, backward, max(0.0, backward - by_inputs) if trained else 0.0, update

    def _forward(
        self, layer: _Layer, inputs: List[torch.Tensor], targets: Any
    ) -> List[torch.Tensor]:
        """What a layer gives; of the last one the loss."""
        outputs = as_tensors(layer.module(*inputs), layer.name)
        return [mean_loss(self._chain.loss, outputs, targets)] if layer.last else outputs

    def _timed(self, work: Callable[[], Any]) -> Tuple[float, Any]:
        """How many seconds some work takes, and what it returns: on a GPU by events of its
        stream.
        """
        if self._device.type != "cuda":
            began = time.perf_counter()
            done = work()
            return time.perf_counter() - began, done
        first, last = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        first.record()
        done = work()
        last.record()
        last.synchronize()
        return first.elapsed_time(last) / 1e3, done


class _Named:
    """A block in which errors of a layer name it; memory that a GPU lacks is no error of it."""

    def __init__(self, name: str) -> None:
        """Of the layer with this name."""
        self._name = name

    def __enter__(self) -> None:
        """Begin."""

    def __exit__(self, kind: Any, error: Any, trace: Any) -> None:
        """Raise a ShoalError in place of another error."""
        memory = getattr(torch.cuda, "OutOfMemoryError", ())
        if isinstance(error, Exception) and not isinstance(error, (ShoalError, memory)):
            raise ShoalError(f"{self._name}: {type(error).__name__}: {error}") from error


class KeptBytes:
    """Counts what autograd saves in the forward pass of a layer: each memory once, and not that of
    parameters and buffers.
    """

    def __init__(self, module: nn.Module) -> None:
        """Of a layer that has made no pass yet."""
        self.nbytes = 0
        own = [*module.parameters(), *module.buffers()]
        self._seen: Set[int] = {_storage(t)[0] for t in own}
        self._held: List[torch.Tensor] = []  # so that no memory is used again meanwhile

    def pack(self, tensor: torch.Tensor) -> torch.Tensor:
        """Count a tensor that is saved."""
        at, nbytes = _storage(tensor)
        if at not in self._seen:
            self._seen.add(at)
            self._held.append(tensor)
            self.nbytes += nbytes
        return tensor

    def unpack(self, tensor: torch.Tensor) -> torch.Tensor:
        """The tensor as it was saved."""
        return tensor


def _storage(tensor: torch.Tensor) -> Tuple[int, int]:
    """The address and the bytes of the memory of a tensor."""
    memory = tensor.untyped_storage() if hasattr(tensor, "untyped_storage") else tensor.storage()
    return memory.data_ptr(), memory.nbytes()


def _step(optimizer: Any) -> None:
    """A step of an optimizer, and gradients of zero for the next."""
    optimizer.step()
    for group in optimizer.param_groups:
        for p in group["params"]:
            p.grad.zero_()


def _moved(value: Any, device: torch.device) -> Any:
    """A nested value whose tensors are on a device."""
    if isinstance(value, torch.Tensor):
        return value.to(device)
    if isinstance(value, (list, tuple)):
        return type(value)(_moved(v, device) for v in value)
    return {k: _moved(v, device) for k, v in value.items()} if isinstance(value, dict) else value


def _summary(rows: List[Tuple[float, float, float, float]], kept: int, out: int) -> Measured:
    """What rounds come to: medians, and how far the quartiles are from each other."""
    forward, backward, by_weights, update = (statistics.median(column) for column in zip(*rows))
    low, middle, high = statistics.quantiles([row[0] + row[1] for row in rows], n=4)
    spread = (high - low) / middle if middle else 0.0
    return Measured(forward, backward, min(by_weights, backward), update, kept, out, spread)
