"""A CUDA device made of CPU tensors, for tests on machines without one.

Copies on a stream other than the default one happen only when somebody waits for an event after
them, on the CPU or, as the default stream here computes at once, by a wait of that. So what does
not wait sees old numbers, as it may on a device. `log` has what was asked for, in order.

As with a real device, any thread may use it. `DeviceDouble.lock` guards the log and the queues of
all streams.
"""

import contextlib
import queue
import threading
from datetime import timedelta

import torch
import torch.distributed as dist


class Stream:
    """A stream whose tasks wait in a queue until somebody waits for an event after them."""

    def __init__(self, device, name):
        """An empty stream of a DeviceDouble, with this name in the log."""
        self.device, self.name = device, name
        self.queue, self.ran = [], 0  # all tasks so far, and how many of them have run

    def wait_event(self, event):
        """Have what comes later on this stream wait for an event. The default stream computes at
        once, so for it the tasks before the event are run now, in the calling thread.
        """
        self.device.note("wait", self.name, event.stream.name)
        if self is self.device.default:
            event.run()
        else:
            self.queue.append(event.run)


class Event:
    """A place in the queue of a stream: it has happened when all tasks before it have run. Not
    changed after it was made.
    """

    def __init__(self, stream):
        """The event after what the stream has to do now. The caller holds the device's lock."""
        self.stream, self.place = stream, len(stream.queue)

    def run(self):
        """Run the tasks of the stream up to this event that have not run, in the calling thread,
        under the device's lock.
        """
        with self.stream.device.lock:
            while self.stream.ran < self.place:
                task = self.stream.queue[self.stream.ran]
                self.stream.ran += 1
                task()

    def synchronize(self):
        """Log that the CPU waits here, and run the tasks as `run` does."""
        self.stream.device.note("sync", self.stream.name, self.place)
        self.run()


class Future(torch.futures.Future):
    """A future whose waiters compute after the stream on which it was completed. `device` is set by
    DeviceDouble.new_future.
    """

    def set_result(self, value):
        """Log it, run the tasks of this thread's current stream, and complete the future."""
        self.device.note("complete", self.device.current_stream().name)
        self.device.record_event(self.device.current_stream()).run()
        super().set_result(value)


class Communicator:
    """A stand-in for shoal.torch.cuda.Communicator, made of Gloo. `hook` is called with the name of
    each place that a worker may die or fail at: by the communicator's thread, and by `wait`.
    `_changed` guards `_open` and `_error`.

    Gloo cannot be aborted: what waits for a partner that is lost is left alone on its thread, with
    a copy of the tensor, and ends by Gloo's time-out.
    """

    def __init__(self, store, rank, size, hook):
        """Start the thread that finds the other processes through `store` and sums. This process
        is rank `rank` of `size`.
        """
        from shoal.torch import threads

        self._hook = hook
        self._tasks = queue.SimpleQueue()  # tensors to be summed; None ends the thread
        self._changed = threading.Condition()
        self._open = 0  # how many tensors were given to `all_reduce` and are not summed
        self._error = None  # the first error, after which nothing is summed
        threads.Thread("gloo", lambda: self._sum_queued(store, rank, size), self.abort).start()

    def _sum_queued(self, store, rank, size):
        """Sum the tensors of the queue one after the other by Gloo. What the communicator's own
        thread runs.
        """
        try:
            group = dist.ProcessGroupGloo(store, rank, size, timedelta(seconds=20))
            for tensor in iter(self._tasks.get, None):
                copy = tensor.clone()
                self._hook("within the collective")
                group.allreduce([copy]).wait()
                self._hook("after a part of the collective")
                with self._changed:
                    if self._error is not None:
                        return
                    tensor.copy_(copy)
                    self._open -= 1
                    self._changed.notify_all()
        except RuntimeError as error:
            self._fail(error)

    def _fail(self, error):
        """Keep the first error, and wake `wait`. Any thread may call it."""
        with self._changed:
            self._error = self._error or error
            self._changed.notify_all()

    def all_reduce(self, tensor):
        """Queue a tensor to be summed in place; it is the communicator's until `wait` returns."""
        with self._changed:
            self._open += 1
        self._tasks.put(tensor)

    def wait(self):
        """Block until all queued tensors are summed; raise RuntimeError after an error."""
        with self._changed:
            self._changed.wait_for(lambda: not self._open or self._error is not None)
            if self._error is not None:
                raise RuntimeError(str(self._error))
        self._hook("after the collective")

    def abort(self):
        """Have `wait` raise RuntimeError, now and later, and the thread end when it does not wait
        for Gloo. Any thread may call it.
        """
        self._fail(RuntimeError("aborted"))
        self._tasks.put(None)


class DeviceDouble:
    """What shoal.torch.cuda.Device is; with a `device`, the name of one, NCCL can be used on it."""

    def __init__(self, refuses=False, device=None, hook=lambda place: None):
        """With `refuses` no memory can be pinned; `hook` is called with the name of each place
        where a test may interrupt, on the thread that comes by, see Communicator.
        """
        self.device, self.hook = device, hook
        self.lock = threading.RLock()
        self.log = []  # tuples: what was asked for, its arguments, and the name of the thread
        self.pinned = {}  # the length in bytes of pinned memory, by its address
        self.refuses = refuses
        self.default = Stream(self, "default")
        self._here = threading.local()  # its `stream` is the current one, the default one without

    def __str__(self):
        """The name in error messages."""
        return "double"

    def note(self, *entry):
        """Append an entry to the log, with the name of the calling thread."""
        with self.lock:
            self.log.append((*entry, threading.current_thread().name))

    def pin(self, address, nbytes):
        """Log that so many bytes at an address are pinned; fails where they are already, and
        always with `refuses`.
        """
        if self.refuses:
            raise RuntimeError("cudaError 2")
        assert address not in self.pinned, "pinned twice"
        self.pinned[address] = nbytes
        self.note("pin", address, nbytes)

    def unpin(self, address):
        """Log that the memory at an address is not pinned any more; fails where it was not."""
        self.note("unpin", address, self.pinned.pop(address))

    def new_stream(self):
        """A new stream, "side" in the log."""
        return Stream(self, "side")

    def current_stream(self):
        """The stream that the calling thread computes on."""
        return getattr(self._here, "stream", self.default)

    @contextlib.contextmanager
    def using_stream(self, stream):
        """A block in which this thread computes on a stream."""
        before, self._here.stream = self.current_stream(), stream
        yield
        self._here.stream = before

    def record_event(self, stream):
        """An event after all tasks of a stream so far."""
        with self.lock:
            return Event(stream)

    def copy(self, to, source):
        """Queue a copy on the current stream, which must not be the default one."""
        stream = self.current_stream()
        assert stream is not self.default, "a copy that the computation waits for"
        with self.lock:
            self.note("copy", to.data_ptr(), source.data_ptr())
            stream.queue.append(lambda: to.detach().copy_(source))

    def to_cpu(self, tensor):
        """A copy of a tensor that is the caller's, after the tasks of the current stream."""
        self.record_event(self.current_stream()).run()
        return tensor.clone()

    def empty(self, count, dtype):
        """A tensor on the device, which is the CPU here."""
        return torch.empty(count, dtype=dtype)

    def identity(self):
        """The name of the device, and a version of NCCL; raises RuntimeError, as where there is no
        NCCL, if the double has no name.
        """
        if self.device is None:
            raise RuntimeError("no NCCL")
        return self.device, 7

    def communicator(self, store, rank, size):
        """A communicator by Gloo of so many ranks, after a place at which a worker may die."""
        self.hook("before the communicator")
        return Communicator(store, rank, size, self.hook)

    def new_future(self):
        """A future that is ordered after streams, not completed."""
        future = Future()
        future.device = self
        return future


def install(**options):
    """Have shoal.torch take all tensors for ones on one new DeviceDouble with these options, from
    now to the end of the process; returns it.
    """
    import shoal.torch.cuda

    device = DeviceDouble(**options)
    shoal.torch.cuda.device_of = lambda tensors: device
    return device
