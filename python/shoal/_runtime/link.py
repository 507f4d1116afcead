"""The control socket: one JSON object a packet, with descriptors beside it. The end of the socket
means that the agent is lost.
"""

from __future__ import annotations

import array
import json
import os
import select
import signal
import socket
import sys
import threading
from typing import Any, Dict, List, Optional, Tuple

from ..errors import JoinError, LostError, ShoalError
from .protocol import MESSAGE_BYTES

Message = Dict[str, Any]
# Linux's value; Python has no name for it on other systems, where no agent runs.
POLLRDHUP = getattr(select, "POLLRDHUP", 0x2000)
_EXIT_SECONDS = 1.0  # what a process has for its end after the agent is gone
_MAX_FDS = 4  # descriptors of one answer, at most


class Refused(ShoalError):
    """The agent answered with an error. Callers of `Link.request` raise it again as an error of
    their own.
    """


class TooManyFiles(ShoalError):
    """The agent has answered, and this process has no room for the descriptors of the answer."""

    def __init__(self, reply: Message) -> None:
        """Of this answer. Nobody has its descriptors."""
        super().__init__(
            "this process has as many files open as it may, and cannot take memory of the agent:"
            " raise `ulimit -n`, or close files"
        )
        self.reply = reply


class Link:
    """A worker's connection to its agent. One request is under way at a time; every method may be
    called from any thread.
    """

    def __init__(self, path: str, job: str) -> None:
        """Connect to the agent's socket at `path`. Raises JoinError where nobody listens."""
        self.job = job
        # Held from a request to its answer. The last lock in the order: who has it takes no other.
        self._turn = threading.Lock()
        self._serial = 0  # number of the newest request; 0 = none yet; guarded by the turn
        # Requests for groups whose answers were not taken, as JSON, with their numbers; guarded by
        # the turn. The agent counts a request by its number: one that a Ctrl-C has ended is made
        # again with the same, so that the group is that of the other members.
        self._untaken: Dict[str, int] = {}
        self._closing = threading.Event()  # set when this side begins to close the link
        # The thread that ends this process after the agent is gone; None = not started.
        self._watcher: Optional[threading.Thread] = None
        # Why every call fails from now on; None = the link works. Set without a lock by the thread
        # that finds it first, and never cleared.
        self.broken: Optional[ShoalError] = None
        # What this worker has done that the agent hung up on it, in its words; "" = it has not.
        self._how = ""
        self.socket = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.socket.settimeout(None)  # whatever the program has for those of its own
        try:
            self.socket.connect(path)
        except OSError as err:
            self.socket.close()
            raise JoinError(
                f"cannot reach the agent at SHOAL_SOCKET={path}: {err.strerror or err}. Is the"
                " `shoal run` that made it still running? Without SHOAL_SOCKET the program runs as"
                " a job of one"
            ) from None

    def check(self) -> None:
        """Raise what broke the link, if anything did. Takes no lock."""
        if self.broken is not None:
            raise type(self.broken)(*self.broken.args)

    def mark_lost(self) -> LostError:
        """Note that the agent is gone, so that every call fails from now on. Returns the error, for
        the caller to raise. Takes no lock.
        """
        if self.broken is None:
            self._how = self._last_word()
            if self._how:
                self.broken = LostError(
                    f"job {self.job} takes nothing more from this worker, which {self._how}"
                )
            else:
                self.broken = LostError(
                    f"the agent of job {self.job} is gone (its control socket hung up), so this"
                    " call cannot finish: look at the end of the launcher's output for the reason,"
                    " and start the job again"
                )
        return LostError(*self.broken.args)

    def _last_word(self) -> str:
        """What this worker has done, by the last word of an agent that has hung up on it; "" =
        it has said nothing. Takes no lock.
        """
        try:
            packet = self.socket.recv(MESSAGE_BYTES, socket.MSG_DONTWAIT | socket.MSG_PEEK)
            word = json.loads(packet)
            return str(word["error"]) if word["type"] == "error" and "serial" not in word else ""
        except (OSError, ValueError, TypeError, KeyError):
            return ""  # it is gone without a word, or an answer lies there that nobody took

    def send(self, message: Message) -> None:
        """Send a message, and do not wait for an answer. Takes no lock; blocks only while the
        socket is full. Raises ValueError for a message that is too long, LostError when the agent
        is gone.
        """
        self.check()
        packet = json.dumps(message, separators=(",", ":"), allow_nan=False).encode()
        if len(packet) > MESSAGE_BYTES:
            raise ValueError(
                f"a {message['type']} message of {len(packet)} bytes; the limit is {MESSAGE_BYTES}:"
                " send less at once"
            )
        try:
            self.socket.send(packet)
        except OSError:
            self.check()
            raise self.mark_lost() from None

    def request(self, message: Message, answer: str) -> Tuple[Message, List[int]]:
        """Send a message, and wait for the answer of the type `answer`. Returns it and its
        descriptors, which the caller owns. Requests of several threads wait for each other.

        Raises Refused when the agent answers with an error, LostError when it is gone, and
        TooManyFiles where the descriptors could not be taken.
        """
        self.check()  # before the lock, which a forked child may have inherited taken
        counted = json.dumps(message) if answer == "group" else ""
        with self._turn:
            serial = self._untaken.get(counted, self._serial + 1)
            self._serial = max(self._serial, serial)
            if counted:
                self._untaken[counted] = serial
            self.send({**message, "serial": serial})
            while True:
                packet, fds, complete = self._receive()
                reply = _parse_reply(packet, fds)
                # A signal can interrupt a request at any place: its answer comes
                # later, if it was asked at all.
                if reply.get("serial", serial) == serial:
                    break
                _close_all(fds)
                if reply.get("type") == "segment":  # nobody knows of it, so it goes back at once
                    self.send({"type": "free", "id": reply["id"], "serial": reply["serial"]})
            self._untaken.pop(counted, None)
        if reply.get("type") == answer and complete:
            return reply, fds
        _close_all(fds)
        if reply.get("type") == "error":
            raise Refused(str(reply.get("error", "the agent gave no reason")))
        if not complete:
            raise TooManyFiles(reply)
        raise ShoalError(
            f"the agent answered {str(reply.get('type'))!r} to {message['type']!r}, where"
            f" {answer!r} was due: the package and the `shoal` binary are of different versions;"
            " install both from the same release"
        )

    def _receive(self) -> Tuple[bytes, List[int], bool]:
        """Wait for the next packet and its descriptors, which the caller owns, and say whether
        there was room for all of these. The turn is held. Raises LostError when the agent is gone.
        """
        space = socket.CMSG_SPACE(_MAX_FDS * 4)
        try:
            packet, ancillary, flags, _ = self.socket.recvmsg(
                MESSAGE_BYTES, space, getattr(socket, "MSG_CMSG_CLOEXEC", 0)
            )
        except OSError:
            packet, ancillary, flags = b"", [], 0
        if not packet:
            self.check()
            raise self.mark_lost()
        fds = array.array("i")
        for level, kind, data in ancillary:
            if level == socket.SOL_SOCKET and kind == socket.SCM_RIGHTS:
                fds.frombytes(data[: len(data) - len(data) % fds.itemsize])
        return packet, list(fds), not flags & socket.MSG_CTRUNC

    def start_watcher(self) -> None:
        """Start the thread that ends this process when the agent is gone, also while it computes.
        Called once, by the thread that has joined; `close` waits for the thread.
        """
        self._watcher = threading.Thread(target=self._watch, name="shoal-watch", daemon=True)
        self._watcher.start()

    def _watch(self) -> None:
        """Wait for the end of the socket, on the watcher thread. If this side has not closed it,
        kill this process after a moment.
        """
        # No POLLIN: answers belong to `request`.
        poll = select.poll()
        poll.register(self.socket, POLLRDHUP)
        poll.poll()
        if self._closing.is_set():
            return
        self.mark_lost()
        # A thread that waits gets LostError now; it has a moment for its last output and its
        # exit handlers.
        if self._closing.wait(_EXIT_SECONDS):
            return
        try:
            text = f"the agent of job {self.job} is gone" if not self._how else str(self.broken)
            sys.stderr.write(f"shoal: {text}; this worker ends\n")
            sys.stderr.flush()
        except (OSError, ValueError, AttributeError):
            pass  # stderr was a pipe to the launcher
        os.kill(os.getpid(), signal.SIGKILL)

    def close(self, reason: ShoalError, last: Optional[Message] = None) -> None:
        """Close the link, after a last message if there is one, and wait for the watcher thread.
        Every later use raises `reason`.
        """
        if self._closing.is_set():
            return
        self._closing.set()  # first: the agent hangs up when it reads the last message
        if last is not None:
            try:
                self.send(last)
            except LostError:
                pass  # the agent was gone first
        if self.broken is None:
            self.broken = reason
        try:
            self.socket.shutdown(socket.SHUT_RDWR)  # ends the watcher's poll
        except OSError:
            pass
        if self._watcher is not None and self._watcher is not threading.current_thread():
            self._watcher.join()
        self.socket.close()

    def disown(self, reason: ShoalError) -> None:
        """In a forked child: close the descriptor without a message, and have every later use raise
        `reason`. A shutdown would close the parent's connection too. Takes no lock.
        """
        self.broken = reason
        self.socket.close()


def _parse_reply(packet: bytes, fds: List[int]) -> Message:
    """The JSON object in a packet. Raises ShoalError, and closes the descriptors, where there is
    none.
    """
    try:
        reply = json.loads(packet)
        if not isinstance(reply, dict):
            raise ValueError("not a JSON object")
    except ValueError as err:
        _close_all(fds)
        raise ShoalError(
            f"the agent's answer cannot be read ({err}): the package and the `shoal` binary do not"
            " match, or SHOAL_SOCKET is the socket of another program"
        ) from None
    return reply


def _close_all(fds: List[int]) -> None:
    """Close the descriptors of an answer, which the caller owns."""
    for fd in fds:
        os.close(fd)
