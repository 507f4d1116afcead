"""Measures what each layer of a chain takes for a micro-batch, and what it keeps for its backward
pass.
"""

from __future__ import annotations

import contextlib
import statistics
import time
from typing import Any, Callable, ContextManager, List, NamedTuple, Optional, Set, Tuple

import torch
from torch import nn

from shoal.errors import ShoalError

from .layers import Layers
from .model import Chain
from .stage import as_tensors, mean_loss, split_sample

_WARM_UP = 2  # rounds before those that count
Seconds = Callable[[], float]  # that some work took, once it is done


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
        for number, module in layers.initial_layers():
            module.to(device)
            trained = [p for p in module.parameters() if p.requires_grad]
            for p in trained:
                p.grad = torch.zeros_like(p)
            optimizer = chain.optimizer(trained) if trained else None
            last = number == len(layers) - 1
            self._layers.append(_Layer(layers.describe(number), module, optimizer, last))

    def measure(self, sample: Any, rounds: int) -> List[Measured]:
        """What each layer takes for a micro-batch. `sample` is the inputs of the first layer, and
        what the loss is compared with. Each of the `rounds`, two or more, is a step of training
        with one micro-batch, in which each layer is timed by itself: so it finds in the caches what
        it finds there in training, and what disturbs the machine for a while disturbs few rounds.
        Raises ShoalError where a layer fails, with its name.
        """
        given, targets = split_sample(sample)
        targets = _move_to(targets, self._device)
        inputs = [t.to(self._device) for t in as_tensors(given, "the sample")]
        with self._current_device():
            sizes = self._byte_sizes(inputs, targets)
            took = [self._time_round(inputs, targets) for _ in range(_WARM_UP + rounds)][_WARM_UP:]
        return [
            _summarize([figures[i] for figures in took], *sizes[i])
            for i in range(len(self._layers))
        ]

    def _byte_sizes(self, inputs: List[torch.Tensor], targets: Any) -> List[Tuple[int, int]]:
        """Of each layer the bytes that it keeps for its backward pass, and that it gives."""
        sizes = []
        for layer in self._layers:
            kept, given = KeptBytes(layer.module), _copies(inputs)
            with _NamingErrors(layer.name), torch.autograd.graph.saved_tensors_hooks(
                kept.pack, kept.unpack
            ):
                outputs = self._forward(layer, given, targets)
            out = 0 if layer.last else sum(t.numel() * t.element_size() for t in outputs)
            sizes.append((kept.nbytes, out))
            inputs = _detached(outputs)
        return sizes

    def _time_round(
        self, inputs: List[torch.Tensor], targets: Any
    ) -> List[Tuple[float, float, float, float]]:
        """Of each layer the seconds of one forward and one backward pass, of the part of the latter
        that is for the parameters, and of a step of the optimizer.
        """
        forward, passes = self._all_forward(inputs, targets)
        backward = [_zero_seconds] * len(passes)
        for i, (layer, (given, gave)) in reversed(list(enumerate(zip(self._layers, passes)))):
            roots, seeds = _backward_roots(gave, passes[i + 1][0] if i + 1 < len(passes) else None)
            if roots:
                with _NamingErrors(layer.name):
                    backward[i], _ = self._time_work(lambda: torch.autograd.backward(roots, seeds))
        # The same again to the inputs alone, with the gradients that came of the first pass.
        by_inputs = [_zero_seconds] * len(passes)
        _, again = self._all_forward(inputs, targets)
        for i, (layer, (given, gave)) in reversed(list(enumerate(zip(self._layers, again)))):
            wanted = [t for t in given if t.requires_grad]
            roots, seeds = _backward_roots(gave, passes[i + 1][0] if i + 1 < len(passes) else None)
            if roots and wanted:
                with _NamingErrors(layer.name):
                    by_inputs[i], _ = self._time_work(
                        lambda: torch.autograd.grad(roots, wanted, seeds, allow_unused=True)
                    )
        update = [_zero_seconds] * len(passes)
        for i, layer in enumerate(self._layers):
            if layer.optimizer is not None:
                update[i], _ = self._time_work(lambda: _step_and_zero(layer.optimizer))
        if self._device.type == "cuda":
            torch.cuda.synchronize(self._device)
        rows = []
        for i, layer in enumerate(self._layers):
            back = backward[i]()
            by_weights = max(0.0, back - by_inputs[i]()) if layer.optimizer is not None else 0.0
            rows.append((forward[i](), back, by_weights, update[i]()))
        return rows

    def _all_forward(
        self, inputs: List[torch.Tensor], targets: Any
    ) -> Tuple[List[Seconds], List[Tuple[List[torch.Tensor], List[torch.Tensor]]]]:
        """Of each layer the seconds of a forward pass, what it got and what it gave."""
        took, passes = [], []
        for layer in self._layers:
            given = _copies(inputs)
            with _NamingErrors(layer.name):
                seconds, outputs = self._time_work(lambda: self._forward(layer, given, targets))
            took.append(seconds)
            passes.append((inputs, outputs))
            inputs = _detached(outputs)
        return took, passes

    def _forward(
        self, layer: _Layer, inputs: List[torch.Tensor], targets: Any
    ) -> List[torch.Tensor]:
        """What a layer gives; of the last one the loss."""
        outputs = as_tensors(layer.module(*inputs), layer.name)
        return [mean_loss(self._chain.loss, outputs, targets)] if layer.last else outputs

    def _time_work(self, work: Callable[[], Any]) -> Tuple[Seconds, Any]:
        """How many seconds some work takes, and what it returns. On a GPU that is the time between
        two events of its stream, which is known when the GPU has done the work. Nobody waits for
        that between layers, so the GPU does not stand still there, as it does not in training.
        """
        if self._device.type != "cuda":
            began = time.perf_counter()
            done = work()
            took = time.perf_counter() - began
            return (lambda: took), done
        first, last = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        first.record()
        done = work()
        last.record()
        return (lambda: first.elapsed_time(last) / 1e3), done

    def _current_device(self) -> ContextManager[Any]:
        """A block in which events belong to the stream of the device that is measured."""
        if self._device.type != "cuda":
            return contextlib.nullcontext()
        return torch.cuda.device(self._device)


def _zero_seconds() -> float:
    """The seconds of what is not done."""
    return 0.0


def _copies(inputs: List[torch.Tensor]) -> List[torch.Tensor]:
    """Copies of what a layer gets, of which the gradient goes to the originals: a layer may work in
    place, as it may in a stage.
    """
    return [t.clone() for t in inputs]


def _detached(outputs: List[torch.Tensor]) -> List[torch.Tensor]:
    """What a layer gave, as the next one gets it: without what it was computed from."""
    return [t.detach().requires_grad_(t.requires_grad) for t in outputs]


def _backward_roots(
    outputs: List[torch.Tensor], following: Optional[List[torch.Tensor]]
) -> Tuple[List[torch.Tensor], List[torch.Tensor]]:
    """The tensors of an output that have a gradient, and their gradients: those of the inputs of
    the following layer; None = there is none, and the output is the loss.
    """
    roots = [t for t in outputs if t.requires_grad]
    if following is None:
        return roots, [torch.ones_like(t) for t in roots]
    grads = [t.grad for t, of in zip(following, outputs) if of.requires_grad]
    return roots, [torch.zeros_like(t) if g is None else g for t, g in zip(roots, grads)]


class _NamingErrors:
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


def _step_and_zero(optimizer: Any) -> None:
    """A step of an optimizer, and gradients of zero for the next."""
    optimizer.step()
    for group in optimizer.param_groups:
        for p in group["params"]:
            p.grad.zero_()


def _move_to(value: Any, device: torch.device) -> Any:
    """A nested value whose tensors are on a device."""
    if isinstance(value, torch.Tensor):
        return value.to(device)
    if isinstance(value, (list, tuple)):
        moved = [_move_to(v, device) for v in value]
        return type(value)(*moved) if hasattr(value, "_fields") else type(value)(moved)
    return {k: _move_to(v, device) for k, v in value.items()} if isinstance(value, dict) else value


def _summarize(rows: List[Tuple[float, float, float, float]], kept: int, out: int) -> Measured:
    """What rounds come to: medians, and how far the quartiles are from each other."""
    forward, backward, by_weights, update = (statistics.median(column) for column in zip(*rows))
    low, middle, high = statistics.quantiles([row[0] + row[1] for row in rows], n=4)
    spread = (high - low) / middle if middle else 0.0
    return Measured(forward, backward, min(by_weights, backward), update, kept, out, spread)
