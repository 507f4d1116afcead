"""Starts ranks of tests without importing torch anew, which takes seconds of a processor.

    python -c "from rank_server import main; main()" SOCKET [MODULE …]
    python rank.py PROGRAM …

The first imports torch and the modules, and is then a template as `shoal run --prefork` has one
(shoal/_runtime/template.py), for all jobs of all tests. The second is what `shoal run` starts: it
asks, and lives as long as its fork. It sends its arguments and its folder in the environment.

A rank that is started so is two processes: such are only for tests of what ranks compute together.
Who is killed, and when, is tested with workers of a template of their own job, which costs nothing
where it is a fork too (rank.py -c); these are as shoal makes them.
"""

import atexit
import ctypes
import gc
import json
import os
import signal
import socket
import sys

from shoal._runtime import template

WORDS, FOLDER = "RANK_WORDS", "RANK_FOLDER"
_PDEATHSIG = 1  # of prctl: this process is killed when its parent ends


def main():
    """Import torch and the modules, and fork for everybody who asks at the socket, whose path is
    the first argument, and which is made here; print "ready" and the number of this process when
    it is there. Runs until this process is killed, and in each fork what that shall run.
    """
    path, *modules = sys.argv[1:]
    ctypes.CDLL(None).prctl(_PDEATHSIG, signal.SIGKILL)
    before, files = dict(os.environ), template._open_files()
    template._import(["torch", "torch.distributed", "torch.nn.parallel", "torch.utils.data"])
    template._import(["pytest"])  # what a test file imports
    template._import(modules)
    requests = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    requests.bind(path)
    gc.collect()
    gc.freeze()
    print("ready", os.getpid(), flush=True)
    changes = template.environment_changes(before)
    template.become_worker(template.serve(requests), changes, template.find_standard_copies(files))
    argv = json.loads(os.environ.pop(WORDS))
    os.chdir(os.environ.pop(FOLDER))
    if argv[0] == "-c":
        os.dup2(1, template._REQUESTS, inheritable=False)
        os.dup2(2, 1)
        sys.argv[:] = ["-c", *argv[2:]]
        template.main()
    else:
        sys.argv[:] = argv
        sys.path[0] = os.path.dirname(os.path.abspath(argv[0]))
        template.run_program(argv)
    if modules and (argv[0] == "-c" or "RESULTS" in os.environ):
        _end_now()


def _end_now():
    """End this process well, with what is registered for its end, but without Python's own: with
    many modules it takes 0.7 s of a processor to take them apart. It is for `torch_world.world` and
    for templates; the examples, which have the same modules, end as programs of users do.
    """
    atexit._run_exitfuncs()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)


if __name__ == "__main__":
    main()
