"""Starts ranks of tests without importing torch anew, which takes seconds of a processor.

    python rank_server.py SOCKET [MODULE …]
    python rank.py PROGRAM …

The first imports torch and the modules, then forks a process for each that asks. The second is what
`shoal run` starts: it asks, and lives as long as its fork.

The one that asks sends its arguments, environment, working directory and standard files, and gets
the status with which its fork ended. The fork runs the program as an interpreter would that had
just started. When the one that asked is gone, its fork is killed.

Only for tests of what ranks compute together: who is killed, and when, is tested with real ones.
"""

import array
import importlib
import json
import os
import select
import signal
import socket
import sys


def serve_forks(path, *modules):
    """Import torch and the modules, and fork for everybody who asks, until standard input ends;
    return in each fork what it shall run, and its standard files.
    """
    import torch.distributed
    import torch.nn.parallel
    import torch.utils.data  # noqa: F401

    if not torch.__version__.startswith("1."):
        import torch._dynamo  # noqa: F401  as the first optimizer does, for as long as torch takes

    for module in modules:
        importlib.import_module(module)
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    listener.bind(path)
    listener.listen(64)
    print("ready", flush=True)
    forks, poll = {}, select.poll()  # descriptor: the connection, and the descriptor of its fork
    poll.register(listener, select.POLLIN)
    poll.register(sys.stdin, select.POLLIN)  # at its end the tests are over
    while True:
        for descriptor, _ in poll.poll():
            if descriptor == sys.stdin.fileno():
                for _, process in forks.values():
                    signal.pidfd_send_signal(process, signal.SIGKILL)
                os._exit(0)
            if descriptor == listener.fileno():
                asked = accept_request(listener)
                if asked is None:
                    continue
                connection, request, files = asked
                pid = os.fork()
                if pid == 0:
                    return request, files
                for file in files:
                    os.close(file)
                process = os.pidfd_open(pid)
                forks[process] = forks[connection.fileno()] = connection, process
                poll.register(process, select.POLLIN)
                poll.register(connection, select.POLLIN)
            elif descriptor in forks:
                connection, process = forks[descriptor]
                if descriptor == process:
                    report_end(poll, forks, connection, process)
                else:  # the one that asked is gone
                    signal.pidfd_send_signal(process, signal.SIGKILL)
                    poll.unregister(connection)


def accept_request(listener):
    """Take the next who asks: the connection, what is asked, and the standard files; None where it
    is gone.
    """
    connection, _ = listener.accept()
    size = 3 * array.array("i").itemsize
    message, ancillary, _, _ = connection.recvmsg(1 << 20, socket.CMSG_SPACE(size))
    if not message:  # it is gone
        connection.close()
        return None
    files = array.array("i")
    for _, _, content in ancillary:
        files.frombytes(content)
    return connection, json.loads(message), list(files)


def report_end(poll, forks, connection, process):
    """Tell the one that asked how its fork has ended, and forget both."""
    status = os.waitid(os.P_PIDFD, process, os.WEXITED)
    poll.unregister(process)
    try:
        poll.unregister(connection)
        code = status.si_status if status.si_code == os.CLD_EXITED else -status.si_status
        connection.send(str(code).encode())
    except (KeyError, OSError):
        pass  # the one that asked is gone
    del forks[process], forks[connection.fileno()]
    connection.close()
    os.close(process)


def become_process(request, files):
    """Give this fork the files, folder, environment and arguments of the request, as a process
    would have them that has just started; return the path of the program.
    """
    for standard, file in enumerate(files):
        os.dup2(file, standard)
    os.closerange(3, 1 << 16)
    os.chdir(request["folder"])
    os.environ.clear()
    os.environ.update(request["environment"])
    sys.argv[:] = request["arguments"]
    sys.path[0] = os.path.dirname(os.path.abspath(sys.argv[0]))
    return sys.argv[0]


if __name__ == "__main__":
    program = become_process(*serve_forks(*sys.argv[1:]))
    from shoal._runtime import template

    template.run([program])
