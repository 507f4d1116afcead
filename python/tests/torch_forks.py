"""Processes with torch imported, from which ranks are forked: a rank that imports it anew costs a second of a processor and more.

Each rank of a job has such a process of its own, so that ranks differ in the seeds of hashes and of numpy as they do elsewhere. What is tested is
imported behind the fork. The launcher starts this file as the rank, with `rank NAME SCRIPT ARGUMENT…`: it hands its environment and its output to
the process called NAME and its rank, and ends as the fork does, which runs SCRIPT as python would. When it is killed, so is the fork.
"""

import atexit
import json
import os
import signal
import socket
import sys


def start(count):
    """Start `count` of them, for the ranks from 0 on; they end with the process that calls. Returns their name."""
    import subprocess

    name = f"shoal-tests-{os.getpid()}-"
    env = dict(os.environ, OMP_NUM_THREADS="1", PYTHONPATH=str(os.path.dirname(os.path.dirname(os.path.abspath(__file__)))))
    for rank in range(count):
        with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listener:
            listener.bind(f"\0{name}{rank}")  # here, so that no rank comes too early
            listener.listen(16)
            fd = listener.fileno()
            STARTED.append(subprocess.Popen([sys.executable, __file__, "serve", str(fd)], env=env, stdin=subprocess.PIPE, pass_fds=[fd]))
    return name


STARTED = []


@atexit.register
def stop():
    """End all that were started: each ends with its standard input."""
    for process in STARTED:
        process.stdin.close()
        process.wait()


def rank(name, *arguments):
    """The process that the launcher has started."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as conn:
        conn.connect(f"\0{name}{os.environ['SHOAL_RANK']}")
        order = {"arguments": arguments, "env": dict(os.environ), "cwd": os.getcwd()}
        socket.send_fds(conn, [json.dumps(order).encode()], [1, 2])
        code = int(conn.recv(100) or 1)
    if code < 0:
        os.kill(os.getpid(), -code)
    sys.exit(code)


def serve(listener):
    """Fork for each that comes; returns in the fork, with what it is to run."""
    import selectors

    import numpy  # noqa: F401
    import pytest  # noqa: F401
    import torch
    import torch.distributed
    import torch.utils.data  # noqa: F401

    selector = selectors.DefaultSelector()
    selector.register(0, selectors.EVENT_READ)
    selector.register(listener, selectors.EVENT_READ)
    while True:
        for key, _ in selector.select():
            if key.fd == 0:
                os._exit(0)
            if key.fileobj is listener:
                conn, _ = listener.accept()
                data, outputs, _, _ = socket.recv_fds(conn, 1 << 20, 2)
                pid = os.fork()
                if pid == 0:
                    for other in selector.get_map().values():
                        if other.data:
                            os.close(other.data[1])
                            other.data[2].close()
                    selector.close()
                    conn.close()
                    listener.close()
                    return become(json.loads(data), outputs)
                for fd in outputs:
                    os.close(fd)
                ended = os.pidfd_open(pid)
                selector.register(ended, selectors.EVENT_READ, (pid, ended, conn))
                selector.register(conn, selectors.EVENT_READ, (pid, ended, conn))
            elif key.fd in selector.get_map():  # else both came at once
                pid, ended, conn = key.data
                if key.fileobj is conn:  # which never sends more: it is gone
                    os.kill(pid, signal.SIGKILL)
                code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
                if key.fileobj is not conn:
                    conn.send(str(code).encode())
                selector.unregister(ended)
                selector.unregister(conn)
                os.close(ended)
                conn.close()


def become(order, outputs):
    """In the fork: be the process that the launcher has started."""
    for fd, mine in zip([os.open(os.devnull, os.O_RDONLY), *outputs], (0, 1, 2)):
        os.dup2(fd, mine)
        os.close(fd)
    os.environ.clear()
    os.environ.update(order["env"])
    os.chdir(order["cwd"])
    return order["arguments"]


if __name__ == "__main__":
    if sys.argv[1] == "rank":
        rank(*sys.argv[2:])
    sys.argv = serve(socket.socket(fileno=int(sys.argv[2])))
    __file__ = sys.argv[0]
    with open(__file__) as script:
        source = script.read()
    exec(compile(source, __file__, "exec"))
