"""A rank that has its work done by a fork of rank_server.py, and ends as that does.

    rank.py PROGRAM ARGUMENT …
    rank.py -c SOURCE MODULES PROGRAM ARGUMENT …
    rank.py OPTION …

RANK_SERVER in the environment is the server's socket; the fork runs PROGRAM. With -c it is started
by `shoal run --prefork` as the template process of a job, with a socket as descriptor 3; the fork
is that template, and has the socket. Any other options of Python are left to the interpreter.
"""

import array
import json
import os
import signal
import socket
import sys

is_template = sys.argv[1] == "-c" and "shoal._runtime.template" in sys.argv[2]
if sys.argv[1].startswith("-") and not is_template:
    os.execv(sys.executable, [sys.executable, *sys.argv[1:]])
server = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
server.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1 << 20)
server.connect(os.environ["RANK_SERVER"])
ours, theirs = socket.socketpair()
words = {"RANK_WORDS": json.dumps(sys.argv[1:]), "RANK_FOLDER": os.getcwd()}
environment = {
    os.fsencode(name).decode("latin-1"): os.fsencode(value).decode("latin-1")
    for name, value in {**os.environ, **words}.items()
}
request = {"environment": environment, "processors": []}
# A template writes stdout and stderr to one file, so that its socket takes the place of one.
files = array.array("i", [3 if is_template else 1, 2, theirs.fileno()])
text = json.dumps(request).encode() + b"\n"
server.sendmsg([text], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, files)])
theirs.close()
for file in (0, 1, 2, 3) if is_template else (0, 1, 2):
    os.close(file)
answer = {"code": 1}  # where the server ends before
for line in ours.makefile():
    answer = json.loads(line)
    if "pid" not in answer:
        break
if "signal" in answer:
    number = answer["signal"]
    os.kill(os.getpid(), number if number != signal.SIGABRT else signal.SIGKILL)
os._exit(answer.get("code", 1))
