"""An agent made of Python, in the process of the test: slow, simple, and open to inspection and to
faults.

It serves the protocol of docs/formats/arena.md and does all_reduce (sum), all_gather, broadcast and
barrier. It always says that it is parked, so every publication rings its bell.

Three kinds of threads: the test's, which uses the methods without underscore; one that accepts
connections, with one more for each, which answer requests; and the engine, which executes calls.
There is no lock: each attribute is written by one kind only, as told where it is made, and a
reader may see it late.
"""

import ctypes
import json
import mmap
import os
import socket
import struct
import tempfile
import threading

import numpy

from shoal._runtime import protocol
from shoal._runtime.worker import Worker
from shoal.job import Job

# NumPy's names of the element types, by the codes of the protocol.
DTYPES = {1: "f8", 2: "f4", 3: "f2", 4: "u2", 5: "i8", 6: "i4", 7: "u1"}  # of bf16 only the bytes
libc = ctypes.CDLL(None)


class Session:
    """One rank as the double sees it. Made, with its segments, by the thread of the rank's
    connection; `taken` and `waiting` are the engine's alone. Tests may read all of it.
    """

    def __init__(self, rank, slots):
        """Make the control block, of so many slots of 1024 bytes, and the bell of a rank. The agent
        is always parked. Nothing closes the two descriptors: they live as long as the process.
        """
        size = protocol.HEADER_BYTES + slots * 1024
        self.fd = os.memfd_create("control")
        os.ftruncate(self.fd, size)
        self.block = mmap.mmap(self.fd, size)
        self.bell = libc.eventfd(0, 0)
        self.segments = {}  # the memory of each segment that the worker has, by id
        self.freed = []  # the ids of those that it has given back, in order
        self.taken = 0  # how many calls were read from the slots
        self.waiting = []  # calls that were read and not executed, in order
        self.left = False  # whether the worker has asked to leave
        protocol.HEADER.pack_into(
            self.block, 0, protocol.MAGIC, protocol.PROTOCOL, slots, 1024, rank
        )
        struct.pack_into("<I", self.block, 128, 1)

    def view(self, segment, offset, count, dtype):
        """`count` elements of a segment, from the byte `offset` on, as a NumPy array over its
        memory.
        """
        if not count:
            return numpy.empty(0, dtype)
        return numpy.frombuffer(self.segments[segment], dtype, count, offset)


class AgentDouble:
    """The double; a context manager, whose block the test has to stay in while it uses the double
    and the jobs that `join` returns. What tests read: `calls` (descriptors as dicts, in order) and
    `rings` (how often the bell rang), both written by the engine; `sessions` (by rank) and
    `requests` (in order), written by the threads of the connections.

    What tests set: clear `going` and calls stay incomplete until it is set. `error` is the text
    with which the next call fails, None for none; the engine takes it. `answer`, when set, is
    called on a connection's thread with each request and may return bytes to send instead of the
    true answer, b"" to hang up, or None for the true answer.
    """

    def __init__(self, size=1, slots=8, spin_us=0):
        """Open the socket at which `size` workers join, each with so many slots, who are told to
        spin for `spin_us` microseconds; the threads start with the block.
        """
        self.size, self.slots, self.spin_us = size, slots, spin_us
        self.sessions, self.calls, self.requests, self.rings = {}, [], [], 0
        self.answer = None
        self.error = None
        self.going = threading.Event()
        self.going.set()
        self.lost = threading.Event()  # a worker's socket closed without a leave
        self._folder = tempfile.TemporaryDirectory()
        self.path = os.path.join(self._folder.name, "agent")
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._listener.bind(self.path)
        self._listener.listen()
        self._bell = libc.eventfd(0, 0)
        self._connections = []  # all sockets that were accepted; the accepting thread adds
        self._jobs = []  # what `join` has returned
        self._over = False  # set by __exit__, for the engine

    def __enter__(self):
        """Start the threads that accept connections and execute calls."""
        threading.Thread(target=self._accept, daemon=True).start()
        self._engine = threading.Thread(target=self._run, daemon=True)
        self._engine.start()
        return self

    def __exit__(self, *_):
        """Leave all jobs, hang up, wait for the engine, and close the socket at which workers
        join.
        """
        for job in self._jobs:
            job.leave()
        self.hang_up()
        self.going.set()
        self._over = True
        os.write(self._bell, struct.pack("<Q", 1))
        self._engine.join()
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self._folder.cleanup()

    def join(self, rank=0):
        """A Job connected here, without the watcher that would end the test's process. The double
        leaves it at the end of the block, if the test has not.
        """
        job = Job(Worker(self.path, "double", rank, "token"))
        self._jobs.append(job)
        return job

    def wait_for_request(self, kind):
        """Wait, without a time limit, until a request whose "type" is `kind` was read."""
        while not any(r["type"] == kind for r in list(self.requests)):
            os.sched_yield()

    def hang_up(self, word=None):
        """Shut down every control socket, so that workers see what a killed agent leaves; after a
        last `word`, a message without a serial, where one is given.
        """
        for connection in self._connections:
            try:
                if word:
                    connection.send(json.dumps(word).encode())
                connection.shutdown(socket.SHUT_RDWR)
            except OSError:
                pass

    def _accept(self):
        """Accept connections, and start a thread for each, until the socket is shut down. Runs on
        a thread of its own.
        """
        while True:
            try:
                connection, _ = self._listener.accept()
            except OSError:
                return
            self._connections.append(connection)
            threading.Thread(target=self._serve, args=(connection,), daemon=True).start()

    def _serve(self, connection):
        """Answer the requests of one connection, on its own thread, until it ends; then close
        it.
        """
        rank = None
        with connection:
            while True:
                try:
                    packet = connection.recv(65536)
                except OSError:
                    return
                if not packet:
                    self.lost.set()
                    return
                request = json.loads(packet)
                self.requests.append(request)
                rank = request.get("rank", rank)
                if self.answer is not None and (instead := self.answer(request)) is not None:
                    if not instead:
                        return
                    connection.send(instead)
                    continue
                if request["type"] == "leave":
                    self.sessions[rank].left = True
                    return
                reply, fds = self._reply(rank, request)
                if reply:
                    packet = json.dumps({"serial": request["serial"], **reply}).encode()
                    connection.sendmsg(
                        [packet],
                        (
                            [
                                (
                                    socket.SOL_SOCKET,
                                    socket.SCM_RIGHTS,
                                    struct.pack(f"{len(fds)}i", *fds),
                                )
                            ]
                            if fds
                            else []
                        ),
                    )

    def _reply(self, rank, request):
        """Do what a request of a rank asks, on the thread of its connection; return the answer,
        None for none, and the descriptors to send with it, which stay open here too.
        """
        kind = request["type"]
        if kind == "join":
            session = self.sessions[rank] = Session(rank, self.slots)
            reply = {
                "type": "joined",
                "job": "double",
                "host": "here",
                "rank": rank,
                "size": self.size,
                "generation": 1,
            }
            reply.update(slots=self.slots, slot_bytes=1024, spin_us=self.spin_us)
            return reply, [session.fd, self._bell, session.bell]
        session = self.sessions[rank]
        if kind == "segment":
            number = len(session.segments) + len(session.freed) + 1
            fd = os.memfd_create("segment")
            os.ftruncate(fd, request["bytes"])
            session.segments[number] = mmap.mmap(fd, request["bytes"])
            return {"type": "segment", "id": number, "bytes": request["bytes"]}, [fd]
        if kind == "free":
            session.freed.append(request["id"])
            del session.segments[request["id"]]
            return {"type": "freed", "id": request["id"]}, []
        if kind == "withdraw":
            return {"type": "withdraw"}, []
        return None, []

    def _run(self):
        """The engine's thread: wait for the bell and for `going`, take the new calls of all ranks,
        and execute those that all ranks have made, until the end of the block.
        """
        while True:
            self.rings += struct.unpack("<Q", os.read(self._bell, 8))[0]
            self.going.wait()
            if self._over:
                return
            for rank, session in sorted(self.sessions.items()):
                (tail,) = struct.unpack_from("<Q", session.block, 64)
                while session.taken < tail:
                    call = self._read_call(session, session.taken)
                    session.taken += 1
                    session.waiting.append(call)
                    self.calls.append({**call, "rank": rank})
            while len(self.sessions) == self.size and all(
                s.waiting for s in self.sessions.values()
            ):
                self._execute([(s, s.waiting.pop(0)) for _, s in sorted(self.sessions.items())])

    def _read_call(self, session, number):
        """Read the descriptor of a rank's call, by its number from 0, from its slot, and check what
        every descriptor has. On the engine's thread: where a check fails, that ends.
        """
        at = protocol.HEADER_BYTES + number % self.slots * 1024
        names = (
            "ticket kind dtype op ndim group peer tag weight seg_in seg_out off_in n_in off_out"
            " n_out seg_counts n_counts off_counts _ flags view step_times"
        )
        values = protocol.DESCRIPTOR.unpack_from(session.block, at)
        call = dict(
            zip(names.split(), values),
            at=at,
            shape=struct.unpack_from("<8Q", values[-4])[: values[4]],
        )
        assert call["ticket"] == number + 1, (
            f"slot of call {number} carries ticket {call['ticket']}"
        )
        assert session.block[at + 160 : at + 176] == bytes(16)
        return call

    def _execute(self, calls):
        """Compute the result of one call of every rank, (session, descriptor) each, or fail all of
        them with `error`, complete them, and ring those who sleep. On the engine's thread.
        """
        error, self.error = self.error, None
        if error is None:
            dtype = DTYPES[calls[0][1]["dtype"]]
            inputs = [s.view(c["seg_in"], c["off_in"], c["n_in"], dtype) for s, c in calls]
            outputs = [s.view(c["seg_out"], c["off_out"], c["n_out"], dtype) for s, c in calls]
            kind = calls[0][1]["kind"]
            if kind == protocol.KINDS["all_reduce"]:
                result = sum(inputs)
            elif kind == protocol.KINDS["broadcast"]:
                result = inputs[calls[0][1]["peer"]]
            else:
                result = numpy.concatenate(inputs)
            for out in outputs:
                out[:] = result[: len(out)]
        for session, call in calls:
            text = (error or "").encode()[: 1024 - 204]
            struct.pack_into(f"<I{len(text)}s", session.block, call["at"] + 200, len(text), text)
            struct.pack_into(
                "<Q", session.block, call["at"] + 192, call["ticket"] << 8 | (2 if error else 1)
            )
            if struct.unpack_from("<I", session.block, 192)[0]:
                os.write(session.bell, struct.pack("<Q", 1))
