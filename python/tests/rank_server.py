"""Starts ranks of tests without importing torch anew, which takes seconds of a processor.

    python rank_server.py SOCKET [MODULE …]
    python rank.py PROGRAM …

The first imports torch and the modules, and is then a template as `shoal run --prefork` has one
(shoal/_runtime/template.py), for all jobs of all tests. The second is what `shoal run` starts: it
asks, and lives as long as its fork. It sends its arguments and its folder in the environment.

Only for tests of what ranks compute together: who is killed, and when, is tested with real ones.
"""

import ctypes
import importlib
import json
import os
import signal
import socket
import sys

from shoal._runtime import template

WORDS, FOLDER = "RANK_WORDS", "RANK_FOLDER"
_PDEATHSIG = 1  # of prctl: this process is killed when its parent ends


def main(path, *modules):
    """Import torch and the modules, and fork for everybody who asks at the socket `path`, which is
    made here; print "ready" when it is there. Runs until this process is killed, and in each fork
    what that shall run.
    """
    ctypes.CDLL(None).prctl(_PDEATHSIG, signal.SIGKILL)
    files = template._open_files()
    import torch.distributed
    import torch.nn.parallel
    import torch.utils.data  # noqa: F401

    if not torch.__version__.startswith("1."):
        import torch._dynamo  # noqa: F401  as the first optimizer does, for as long as torch takes

    for module in modules:
        importlib.import_module(module)
    requests = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    requests.bind(path)
    print("ready", flush=True)
    template.become_worker(template.serve(requests), {}, template.standard_copies(files))
    words = json.loads(os.environ.pop(WORDS))
    os.chdir(os.environ.pop(FOLDER))
    sys.argv[:] = words
    sys.path[0] = os.path.dirname(os.path.abspath(words[0]))
    template.run(words)


if __name__ == "__main__":
    main(*sys.argv[1:])
