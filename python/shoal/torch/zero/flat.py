"""The parameters of a sharded optimizer as vectors in arena memory, and the all-reduce that gathers
what the workers hold in parts.
"""

from __future__ import annotations

from collections import deque
from typing import Any, Deque, Iterator, List, NamedTuple, Sequence, Tuple

import torch
from torch import Tensor

import shoal

from ..arena import empty
from .layout import GRAIN, Span, overlap, round_up

CHUNK_ELEMENTS = 1 << 20  # elements that travel in one call, a multiple of GRAIN
_WINDOW = 4  # calls under way


class FlatBuffer(NamedTuple):
    """The part of the flat parameters whose elements are of one type."""

    start: int  # its first element among all flat parameters
    stop: int  # the element after its last one
    dtype: torch.dtype
    values: Tensor  # the elements, in the arena, which the parameters are views of

    def part(self, tensor: Tensor, span: Span) -> Tensor:
        """The elements of a span, of a tensor as long as the buffer; nothing is copied."""
        start, stop = (min(max(at, self.start), self.stop) - self.start for at in span)
        return tensor[start:stop]

    def pieces(self, tensor: Tensor, held: Sequence[Span]) -> "List[Piece]":
        """What lies within the spans, of a tensor as long as the buffer; nothing is copied."""
        shared = [overlap((self.start, self.stop), span) for span in held]
        return [(span, self.part(tensor, span)) for span in shared if span]


class FlatParameters:
    """All parameters one after the other, as one vector in the arena; those of one element type
    together.

    The parameters become views of it, so that the optimizer, a broadcast and an all-gather work on
    them in place. The thread of the training loop uses it; the places of the parameters
    are not changed after `__init__`.
    """

    def __init__(self, parameters: Sequence[Tensor]) -> None:
        """Copy the parameters into the arena, and make them views of it."""
        self.parameters = sorted(parameters, key=lambda p: str(p.dtype))
        self.places: List[Span] = []  # by parameter: its elements among all flat parameters
        self.buffers: List[FlatBuffer] = []
        self._buffer_of: List[int] = []  # by parameter: the index of its buffer
        at = 0
        for dtype in dict.fromkeys(p.dtype for p in self.parameters):
            some, start = [p for p in self.parameters if p.dtype is dtype], at
            for p in some:
                self.places.append((at, at + p.numel()))
                at = round_up(at + p.numel())
            buffer = FlatBuffer(start, at, dtype, empty(at - start, dtype).zero_())
            self.buffers.append(buffer)
            self._buffer_of += [len(self.buffers) - 1] * len(some)
        self.total = at
        for i, p in enumerate(self.parameters):
            place = self.elements_of(i, [s.values for s in self.buffers])
            place.copy_(p.detach().reshape(-1))
            p.data = place.view(p.shape)

    def allocate(self) -> List[Tensor]:
        """New arena memory for as many elements as the parameters have, by buffer, which the caller
        owns. What is between parameters is 0: it is averaged, and measured, with them.
        """
        made = [empty(s.stop - s.start, s.dtype) for s in self.buffers]
        for i, p in enumerate(self.parameters):
            (start, stop), buffer = self.places[i], self.buffers[self._buffer_of[i]]
            between = (stop, round_up(stop))
            buffer.part(made[self._buffer_of[i]], between).zero_()
        return made

    def elements_of(self, parameter: int, tensors: Sequence[Tensor]) -> Tensor:
        """The elements of a parameter in tensors as long as the buffers; nothing is copied."""
        i = self._buffer_of[parameter]
        return self.buffers[i].part(tensors[i], self.places[parameter])

    def parameters_in(self, buffer: FlatBuffer) -> List[int]:
        """The numbers of the parameters in a buffer, which are their indices in `parameters`."""
        return [i for i, s in enumerate(self._buffer_of) if self.buffers[s] is buffer]


Piece = Tuple[Span, Tensor]  # a span of the flat parameters, and its elements


class Chunk(NamedTuple):
    """A chunk of elements under way: their bits as integers, of which a maximum picks one, and
    after them a mark for each GRAIN of elements. One thread uses it, that of the training loop.
    """

    span: Span  # its elements among all flat parameters
    buffer: Tensor  # in the arena: data and marks, as integers
    data: Tensor  # a view of the buffer: the elements
    marks: Tensor  # a view of the buffer: 1 where a worker has put elements in

    @classmethod
    def blank(cls, span: Span, dtype: torch.dtype) -> "Chunk":
        """A new chunk in which no worker has put anything."""
        size = torch.empty(0, dtype=dtype).element_size()
        word = torch.int64 if size == 8 else torch.int32
        words, grains = (
            (span[1] - span[0]) * size // (8 if size == 8 else 4),
            (span[1] - span[0]) // GRAIN,
        )
        buffer = empty(words + grains, word).fill_(torch.iinfo(word).min)
        return cls(span, buffer, buffer[:words].view(dtype), buffer[words:])

    def put_in(self, piece: Piece) -> None:
        """Copy the elements of a piece that lie in this chunk into it, and mark them."""
        (first, last), values = piece
        shared = overlap(self.span, (first, last))
        if shared:
            start, stop = (at - self.span[0] for at in shared)
            self.data[start:stop] = values[shared[0] - first : shared[1] - first]
            self.marks[start // GRAIN : round_up(stop) // GRAIN] = 1

    def is_whole(self, span: Span) -> bool:
        """Whether the workers have put in all elements of a span that lie in this chunk."""
        shared = overlap(self.span, span)
        if not shared:
            return True
        start, stop = (at - self.span[0] for at in shared)
        return bool((self.marks[start // GRAIN : round_up(stop) // GRAIN] == 1).all())

    def copy_out(self, span: Span, values: Tensor) -> None:
        """Copy the elements of this chunk that lie in a span to `values`, a tensor of that span."""
        shared = overlap(self.span, span)
        if shared:
            values[shared[0] - span[0] : shared[1] - span[0]] = self.data[
                shared[0] - self.span[0] : shared[1] - self.span[0]
            ]


def gather_chunks(
    job: "shoal.Job", buffer: FlatBuffer, dtype: torch.dtype, give: Sequence[Piece]
) -> Iterator[Chunk]:
    """Gather a buffer, of which every member gives the pieces that it has, chunk by chunk. All
    members call it and go through all chunks, and wait for each other at each. Elements are of type
    `dtype`.

    This is an all-reduce, which goes on without a lost member, and gives all members the same. Two
    members that give the same element have the same value, or nearly (processors may round
    differently), so either will do: the maximum of the bits as integers picks one, and an element
    that no member gives is the least integer.
    """
    in_flight: Deque[Tuple[Chunk, Any]] = deque()
    for start in range(buffer.start, buffer.stop, CHUNK_ELEMENTS):
        words = Chunk.blank((start, min(start + CHUNK_ELEMENTS, buffer.stop)), dtype)
        for piece in give:
            words.put_in(piece)
        in_flight.append((words, job.allreduce_async(words.buffer, op="max")))
        if len(in_flight) == _WINDOW:
            yield _wait_for_chunk(*in_flight.popleft())
    while in_flight:
        yield _wait_for_chunk(*in_flight.popleft())


def _wait_for_chunk(words: Chunk, call: Any) -> Chunk:
    """The chunk, once the call that gathers it is complete, for which it waits."""
    call.wait()
    return words
