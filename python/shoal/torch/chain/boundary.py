"""What two neighbouring stages of a pipeline send to each other: the tensors that a layer gives to
the next one, and their gradients.
"""

from __future__ import annotations

import collections
import json
from typing import Any, Deque, Dict, List, NamedTuple, Optional, Sequence, Tuple

import torch

from shoal._runtime.handle import Handle
from shoal.errors import ShoalError
from shoal.group import Group

from ..arena import empty

_MESSAGE_BYTES = 4096  # of the message that says what is sent
_DTYPES = {
    str(dtype).rpartition(".")[2]: dtype
    for dtype in vars(torch).values()
    if isinstance(dtype, torch.dtype)
}


class TensorDescription(NamedTuple):
    """A tensor that goes from stage to stage, without its elements."""

    shape: Tuple[int, ...]
    dtype: torch.dtype
    differentiated: bool  # a gradient comes back


PendingReceive = Tuple[List[torch.Tensor], List["Handle[Any]"]]


class Boundary:
    """One end of what a stage and a neighbour send to each other. The thread of the training loop
    uses it.

    What is sent is described once, with the first micro-batch of each size: the receiver knows the
    size of each micro-batch, but not what the layers make of it. A description counts when the step
    is committed, because both ends learn of that alike. Where a step is dropped, it comes again.
    """

    def __init__(self, group: Group, peer: int, layer: str) -> None:
        """Towards the rank `peer` of the stages in `group`. `layer` is the layer that gives what
        is sent, for people.
        """
        self._group, self._peer, self._layer = group, peer, layer
        self._known: Dict[int, List[TensorDescription]] = {}  # by size of the micro-batch
        self._new: Dict[int, List[TensorDescription]] = {}  # as `_known`, of the step under way
        self._sends: Deque["Handle[Any]"] = collections.deque()  # that may be under way
        self._coming: Optional[PendingReceive] = None  # receives that have begun

    def begin(self) -> None:
        """Begin a step, and forget the one before where it was dropped."""
        self._new, self._coming = {}, None
        self._sends.clear()

    def commit(self) -> None:
        """Note that the step is committed."""
        self._known.update(self._new)

    def wait_sent(self) -> None:
        """Wait until the neighbour has all that was sent, at the end of a step. Raises what the
        sends raise: the job's errors, as when the neighbour is lost.
        """
        while self._sends:
            self._sends.popleft().wait()

    def descriptions(self, size: int) -> Optional[List[TensorDescription]]:
        """What is sent for a micro-batch of this size; None = not known yet."""
        return self._known.get(size) or self._new.get(size)

    def send(self, size: int, tensors: Sequence[torch.Tensor]) -> None:
        """Begin to send what the last layer of this stage gave for a micro-batch of this size.
        Raises ShoalError where it is not what it was for another one of the size.
        """
        now = [TensorDescription(tuple(t.shape), t.dtype, t.requires_grad) for t in tensors]
        known = self.descriptions(size)
        if known is None:
            self._new[size] = now
            self._begin_send(_encode_message(now, self._layer))
        elif known != now:
            gave, before = _format_tensors(now), _format_tensors(known)
            raise ShoalError(
                f"{self._layer} gave {gave} for {size} samples, and {before} before:"
                " what goes to another stage has one shape for all samples, so pad them"
            )
        for tensor in tensors:
            self._begin_send(tensor.detach())

    def send_gradients(self, tensors: Sequence[torch.Tensor]) -> None:
        """Begin to send the gradients of what the stage before gave."""
        for tensor in tensors:
            gradient = torch.zeros_like(tensor) if tensor.grad is None else tensor.grad
            if tensor.requires_grad:
                self._begin_send(gradient)

    def begin_receive(self, size: int, gradients: bool = False) -> None:
        """Begin to receive the tensors of the next micro-batch, of this size, or the gradients of
        those that were sent, unless that has begun or they are not described yet.
        """
        described = self.descriptions(size)
        if self._coming is None and described is not None:
            wanted = [d for d in described if d.differentiated or not gradients]
            tensors = [empty(d.shape, d.dtype) for d in wanted]
            filled = [t for t in tensors if t.numel()]
            calls = [self._group.recv_async(_bytes(t), self._peer) for t in filled]
            self._coming = tensors, calls

    def receive(self, size: int) -> List[torch.Tensor]:
        """Receive the tensors of the next micro-batch, of this size, and wait for them."""
        if self.descriptions(size) is None:
            memory = torch.empty(_MESSAGE_BYTES, dtype=torch.uint8)
            self._new[size] = _decode_message(self._group.recv(memory, self._peer))
        tensors = self._wait_received(size, gradients=False)
        for tensor, described in zip(tensors, self.descriptions(size) or ()):
            tensor.requires_grad_(described.differentiated)
        return tensors

    def receive_gradients(self, size: int) -> List[torch.Tensor]:
        """Receive the gradients of the next micro-batch, of this size, and wait for them: those of
        the tensors that were sent and have one.
        """
        return self._wait_received(size, gradients=True)

    def _wait_received(self, size: int, gradients: bool) -> List[torch.Tensor]:
        """Wait for what comes next."""
        self.begin_receive(size, gradients)
        assert self._coming is not None
        (tensors, calls), self._coming = self._coming, None
        for call in calls:
            call.wait()
        return tensors

    def _begin_send(self, tensor: torch.Tensor) -> None:
        """Begin to send a tensor, and let go of what has arrived."""
        if tensor.numel():
            self._sends.append(self._group.send_async(_bytes(tensor), self._peer))
        while self._sends and self._sends[0].done():
            self._sends.popleft().wait()


def _bytes(tensor: torch.Tensor) -> torch.Tensor:
    """The elements of a tensor as bytes: the same memory where it is contiguous."""
    return tensor.contiguous().view(-1).view(torch.uint8)


def _encode_message(described: Sequence[TensorDescription], layer: str) -> torch.Tensor:
    """The message that says what is sent. Raises ShoalError where it would be too long."""
    listed = [[d.shape, str(d.dtype).rpartition(".")[2], d.differentiated] for d in described]
    text = json.dumps(listed)
    if len(text) > _MESSAGE_BYTES:
        raise ShoalError(
            f"{layer} gives {len(described)} tensors, too many to describe to another stage: join"
            " some with torch.cat"
        )
    return torch.frombuffer(bytearray(text.ljust(_MESSAGE_BYTES).encode()), dtype=torch.uint8)


def _decode_message(message: torch.Tensor) -> List[TensorDescription]:
    """What a message says."""
    listed = json.loads(bytes(message.tolist()))
    return [
        TensorDescription(tuple(shape), _DTYPES[dtype], wanted) for shape, dtype, wanted in listed
    ]


def _format_tensors(described: Sequence[TensorDescription]) -> str:
    """Tensors for people."""
    return ", ".join(f"{str(d.dtype).rpartition('.')[2]}{list(d.shape)}" for d in described)
