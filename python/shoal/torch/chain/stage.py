"""A stage of a chain: the layers that a worker has on a mesh, and a step of them."""

from __future__ import annotations

import collections
from typing import Any, Callable, Deque, Dict, List, Mapping, NamedTuple, Optional, Tuple

import torch
from torch import nn

from shoal._runtime.arguments import wrong_type
from shoal.errors import ShoalError
from shoal.mesh import Mesh

from ..arena import empty
from .boundary import Boundary
from .layers import Layers, Optimizers, parameters_in, refuse_device
from .stage_optimizer import StageOptimizer

# How many micro-batches a stage makes of its samples for each stage of the pipeline, where the mesh
# does not say how many samples one has: so 1F1B waits for less than a fifth of the step.
_MICRO_BATCHES = 4


class Program(NamedTuple):
    """What a program says of its training, besides its layers."""

    loss: Callable[[Any, Any], torch.Tensor]
    optimizer: Optimizers
    schedule: Optional[Callable[[int], float]]
    fetch: Callable[[torch.Tensor], Tuple[Any, Any]]


class InFlight(NamedTuple):
    """A micro-batch that has gone forward through a stage and not back."""

    size: int
    inputs: List[torch.Tensor]
    outputs: List[torch.Tensor]  # on the last stage the loss


class Stage:
    """This rank's layers of a chain on a mesh: the model that shoal.train trains. A step is
    `gradients`, on all ranks together, and then `update`. The thread of the training loop uses it.

    `layers` are its modules by their numbers, and `optimizer` is torch's.
    """

    def __init__(self, layers: Layers, program: Program, mesh: Mesh) -> None:
        """Give the parameters of this stage memory, which is not filled yet. Raises ValueError for
        a mesh that a chain cannot follow.
        """
        self._all_layers, self._program, self._mesh = layers, program, mesh
        self._dp, self._pp = mesh["dp"], mesh["pp"]
        part = mesh.part("pp", len(layers))
        self.layers = {number: layers.modules[number] for number in part}
        self._first, self._last = self._pp.rank == 0, self._pp.rank == self._pp.size - 1
        self._before = None if self._first else Boundary(self._pp, self._pp.rank - 1, "")
        giver = layers.describe(max(part.start, part.stop - 1)) if len(part) else "the first stage"
        self._after = None if self._last else Boundary(self._pp, self._pp.rank + 1, giver)
        self._boundaries = [b for b in (self._before, self._after) if b is not None]
        self._parameters: Dict[str, nn.Parameter] = {}
        for name, weight in layers.weights.items():
            mine = weight.layer in part
            memory = torch.empty(weight.shape, dtype=weight.dtype) if mine else None
            weight.put(
                nn.Parameter(memory, requires_grad=weight.trained)
                if mine
                else weight.without_memory()
            )
            if mine:
                module, key = weight.places[0]
                self._parameters[name] = module._parameters[key]
        trained = {n: p for n, p in self._parameters.items() if p.requires_grad}
        self._gradients = _flat_gradients(trained)
        self._stage_optimizer = StageOptimizer(
            program.optimizer, trained, layers.state_entries, program.schedule
        )
        # Micro-batches whose gradient is not back, the oldest first.
        self._flight: Deque[InFlight] = collections.deque()
        self._loss = torch.zeros(1, dtype=torch.float64)  # of this rank's samples in the step
        # Each buffer as it was made, with its version.
        self._buffers: Dict[str, Tuple[torch.Tensor, int]] = {
            f"layers.{i}.{name}": (buffer, buffer._version)
            for i, module in self.layers.items()
            for name, buffer in module.named_buffers()
        }

    @property
    def optimizer(self) -> Optional[torch.optim.Optimizer]:
        """The optimizer of this stage; None = the stage has nothing to train."""
        return self._stage_optimizer.optimizer

    def tensors(self) -> Mapping[str, torch.Tensor]:
        """The state by name, as shoal.train asks for it."""
        parameters = {n: p.detach() for n, p in self._parameters.items()}
        return {**parameters, **self._stage_optimizer.tensors()}

    def adopt(self, tensors: Mapping[str, torch.Tensor]) -> None:
        """Keep the state in these tensors, which lie in memory of the job."""
        for name, parameter in self._parameters.items():
            parameter.data = tensors[name]
        self._stage_optimizer.adopt(tensors)

    @torch.no_grad()
    def initialize(self) -> None:
        """Set the state to what training begins with: the parameters to the values that their
        modules give them.
        """
        for number, module in self._all_layers.initial_layers():
            if number in self.layers:
                for name, inner, key in parameters_in(number, module):
                    if name in self._parameters:
                        self._parameters[name].copy_(inner._parameters[key])
        self._stage_optimizer.reset()

    def gradients(self, indices: Any) -> torch.Tensor:
        """Compute the gradients of a global batch, and return this rank's share of the mean loss,
        in a tensor that the next step uses again.

        The stage takes as many micro-batches forward as the mesh says that it holds, and then by
        turns one back and one forward. Where the mesh does not say, it is one more for each stage
        after, 1F1B (Narayanan et al. 2021, section 2.2).
        """
        self._flight.clear()
        self._loss.zero_()
        for flat in self._gradients:
            flat.zero_()
        for boundary in self._boundaries:
            boundary.begin()
        here = self._mesh.part("dp", len(indices))
        mine = torch.as_tensor(indices[here.start : here.stop], dtype=torch.int64)
        micro = list(mine.split(self._micro_size(len(mine)))) if len(mine) else []
        held = min(self._mesh.ahead or self._pp.size - self._pp.rank, max(len(micro), 1))
        for turn in range(len(micro) + held - 1):
            if turn < len(micro):
                following = len(micro[turn + 1]) if turn + 1 < len(micro) else 0
                self._forward(micro[turn], following, len(indices))
            if turn >= held - 1:
                self._backward()
        for boundary in self._boundaries:
            boundary.wait_sent()
        self._check_buffers()
        for flat in self._gradients:
            self._dp.allreduce(flat)
        return self._loss

    def update(self) -> None:
        """Make a step of the optimizer, and note in the boundaries that the job's is committed."""
        for boundary in self._boundaries:
            boundary.commit()
        self._stage_optimizer.step()

    def _micro_size(self, samples: int) -> int:
        """How many samples a micro-batch has, of so many of this rank."""
        if self._mesh.micro:
            return self._mesh.micro
        return -(-samples // (_MICRO_BATCHES * self._pp.size)) if self._pp.size > 1 else samples

    def _forward(self, indices: torch.Tensor, following: int, batch: int) -> None:
        """Take a micro-batch through this stage: from the stage before, or from the data, to the
        stage after, or to the loss. `following` is the size of the next one, 0 = none. `batch` is
        the size of the global batch. Waits for the stage before.
        """
        size, targets = len(indices), None
        inputs: List[torch.Tensor] = []
        if self._first or self._last:
            given, targets = split_sample(self._program.fetch(indices))
            inputs = as_tensors(given, "fetch(indices)[0]") if self._first else inputs
            for tensor in [*inputs, targets] if isinstance(targets, torch.Tensor) else inputs:
                refuse_device(tensor, "what fetch gave", "leave samples there")
        if self._before is not None:
            inputs = self._before.receive(size)
            if following:
                self._before.begin_receive(following)
        # Copies of what came, of which the gradient is wanted: a layer may work in place.
        outputs = [t.clone() if t.requires_grad else t for t in inputs]
        for number, module in self.layers.items():
            outputs = as_tensors(module(*outputs), self._all_layers.describe(number))
        if self._last:
            loss = mean_loss(self._program.loss, outputs, targets) * (size / batch)
            self._loss += loss.item()
            outputs = [loss]
        self._flight.append(InFlight(size, inputs, outputs))
        if self._after is not None:
            self._after.send(size, outputs)
            self._after.begin_receive(self._flight[0].size, gradients=True)

    def _backward(self) -> None:
        """Take the gradient of the oldest micro-batch through this stage. Waits for the stage
        after.
        """
        size, inputs, outputs = self._flight.popleft()
        roots = [t for t in outputs if t.requires_grad]
        gradients: Optional[List[torch.Tensor]] = None
        if self._after is not None:
            gradients = self._after.receive_gradients(size)
            if self._flight:
                self._after.begin_receive(self._flight[0].size, gradients=True)
        if roots:
            torch.autograd.backward(roots, gradients)
        if self._before is not None:
            self._before.send_gradients(inputs)

    def _check_buffers(self) -> None:
        """Raise ShoalError where a layer has changed one of its buffers, or put another one in its
        place: it would have another value on each worker.
        """
        for i, module in self.layers.items():
            for name, buffer in module.named_buffers():
                made, version = self._buffers.get(f"layers.{i}.{name}", (None, 0))
                if buffer is not made or buffer._version != version:
                    raise ShoalError(
                        f"layers.{i}.{name} is a buffer that changes while samples go forward: it"
                        " would have another value on each worker, and the losses would depend on"
                        " the mesh. Leave it out, or make it a parameter"
                    )


def as_tensors(value: Any, giver: str) -> List[torch.Tensor]:
    """What a layer, or the program, gave, as a list of tensors. Raises TypeError, which names the
    giver, where it is something else.
    """
    tensors = list(value) if isinstance(value, (tuple, list)) else [value]
    for tensor in tensors:
        if not isinstance(tensor, torch.Tensor) or tensor.layout is not torch.strided:
            kind = tensor.layout if isinstance(tensor, torch.Tensor) else type(tensor).__name__
            raise TypeError(
                f"{giver} gave a {kind}: layers of a chain pass on dense tensors, one or a tuple of"
                " them, and nothing else"
            )
    return tensors


def split_sample(value: Any) -> Tuple[Any, Any]:
    """What fetch gave, as inputs and targets. Raises TypeError where it is something else."""
    if not isinstance(value, (tuple, list)) or len(value) != 2:
        raise wrong_type(
            "fetch(indices)", value, "inputs of the first layer, and targets of the loss"
        )
    return value[0], value[1]


def mean_loss(
    function: Callable[[Any, Any], torch.Tensor], outputs: List[torch.Tensor], targets: Any
) -> torch.Tensor:
    """The mean loss of some samples, by what the last layer gave for them. Raises TypeError where
    the program's function gives something else.
    """
    loss = function(outputs[0] if len(outputs) == 1 else tuple(outputs), targets)
    if not isinstance(loss, torch.Tensor) or loss.numel() != 1:
        what = "a tensor of one element, the mean over the samples"
        raise wrong_type("loss(outputs, targets)", loss, what)
    return loss


def _flat_gradients(parameters: Mapping[str, nn.Parameter]) -> List[torch.Tensor]:
    """Memory for the gradients of parameters, one for each element type, so that one all-reduce
    adds them up. The gradients of the parameters are views of it.
    """
    kinds: Dict[torch.dtype, List[nn.Parameter]] = {}
    for parameter in parameters.values():
        kinds.setdefault(parameter.dtype, []).append(parameter)
    flats = []
    for dtype, alike in kinds.items():
        counts = [p.numel() for p in alike]
        flat = empty(sum(counts), dtype)
        for parameter, part in zip(alike, flat.split(counts)):
            parameter.grad = part.view_as(parameter)
        flats.append(flat)
    return flats
