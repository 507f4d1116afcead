"""A rank that has its work done by a fork of rank_server.py, and ends as that does.

    rank.py PROGRAM ARGUMENT …

RANK_SERVER in the environment is the server's socket; the fork runs PROGRAM.
"""

import array
import json
import os
import signal
import socket
import sys

server = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
server.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1 << 20)
server.connect(os.environ["RANK_SERVER"])
ours, theirs = socket.socketpair()
words = {"RANK_WORDS": json.dumps(sys.argv[1:]), "RANK_FOLDER": os.getcwd()}
request = {"environment": {**os.environ, **words}, "processors": []}
files = array.array("i", [1, 2, theirs.fileno()])
text = json.dumps(request).encode() + b"\n"
server.sendmsg([text], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, files)])
theirs.close()
for file in (0, 1, 2):
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
