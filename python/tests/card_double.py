"""A CUDA device made of CPU tensors, for tests on machines without one.

Copies on a stream other than the default one happen only when somebody waits for an event behind them, on the CPU or, as the default stream here
computes at once, by a wait of that. So what does not wait sees old numbers, as it may on a device. `log` has what was asked for, in order.
"""

import contextlib
import threading

import torch


class Stream:
    def __init__(self, card, name):
        self.card, self.name = card, name
        self.queue, self.ran = [], 0

    def wait_event(self, event):
        self.card.note("wait", self.name, event.stream.name)
        if self is self.card.default:
            event.run()
        else:
            self.queue.append(event.run)


class Event:
    def __init__(self, stream):
        self.stream, self.place = stream, len(stream.queue)

    def run(self):
        with self.stream.card.lock:
            while self.stream.ran < self.place:
                task = self.stream.queue[self.stream.ran]
                self.stream.ran += 1
                task()

    def synchronize(self):
        self.stream.card.note("sync", self.stream.name, self.place)
        self.run()


class Future(torch.futures.Future):
    """Whoever waits for it computes behind the stream on which it was completed."""

    def set_result(self, value):
        self.card.note("complete", self.card.current().name)
        self.card.mark(self.card.current()).run()
        super().set_result(value)


class CardDouble:
    """What shoal.torch.cuda.Card is."""

    def __init__(self, refuses=False):
        self.lock = threading.RLock()
        self.log, self.pinned = [], {}
        self.refuses = refuses
        self.default = Stream(self, "default")
        self._here = threading.local()

    def __str__(self):
        return "double"

    def note(self, *entry):
        with self.lock:
            self.log.append((*entry, threading.current_thread().name))

    def pin(self, address, nbytes):
        if self.refuses:
            raise RuntimeError("cudaError 2")
        assert address not in self.pinned, "pinned twice"
        self.pinned[address] = nbytes
        self.note("pin", address, nbytes)

    def unpin(self, address):
        self.note("unpin", address, self.pinned.pop(address))

    def stream(self):
        return Stream(self, "side")

    def current(self):
        return getattr(self._here, "stream", self.default)

    @contextlib.contextmanager
    def on(self, stream):
        before, self._here.stream = self.current(), stream
        yield
        self._here.stream = before

    def mark(self, stream):
        with self.lock:
            return Event(stream)

    def copy(self, to, source):
        stream = self.current()
        assert stream is not self.default, "a copy that the computation waits for"
        with self.lock:
            self.note("copy", to.data_ptr(), source.data_ptr())
            stream.queue.append(lambda: to.detach().copy_(source))

    def home(self, tensor):
        self.mark(self.current()).run()
        return tensor.clone()

    def future(self):
        future = Future()
        future.card = self
        return future


def install():
    """Have all tensors lie on a device from now on; returns it."""
    import shoal.torch.cuda

    card = CardDouble()
    shoal.torch.cuda.card_of = lambda tensors: card
    return card
