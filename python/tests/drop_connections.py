"""Opens a hundred connections to an agent and drops them, again and again, until stdin ends.

    drop_connections.py HOST PORT

A process of its own, so that it holds up no clock of a test.
"""

import contextlib
import socket
import sys
import threading

THREADS, CONNECTIONS = 10, 10  # connections of each thread at a time


def drop_connections(address, ended):
    """Open CONNECTIONS connections and drop them, again and again, until `ended` is set. What each
    of the THREADS threads runs.
    """
    while not ended.is_set():
        with contextlib.ExitStack() as stack:
            for _ in range(CONNECTIONS):
                with contextlib.suppress(OSError):  # it may refuse
                    stack.enter_context(socket.create_connection(address, timeout=5))


ended = threading.Event()
address = sys.argv[1], int(sys.argv[2])
threads = [threading.Thread(target=drop_connections, args=(address, ended)) for _ in range(THREADS)]
for thread in threads:
    thread.start()
sys.stdin.read()
ended.set()
for thread in threads:
    thread.join()
