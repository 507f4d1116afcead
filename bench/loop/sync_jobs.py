"""Jobs of paced workers on hosts with slow cables, for sync.py: on shoal, torchft and hivemind."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import interference
import jobs
from programs import json_lines

ROOT = jobs.HERE.parents[1]
PYTHON = ROOT / ".venv-torch2/bin/python"
WORKERS, RATE, MTU, LIMIT = 4, "50mbit", 1500, 400
COMMON = dict(
    workers=WORKERS, width=362, a=0.01, b=0.005, batch=8 * WORKERS, slow=1, slow_worker=-1,
    samples=1 << 16,
)
# Layers of 362 times 362 elements: 2.1 MB of parameters. A step of 8 samples takes 50 ms.
ROUND = 16


def start(net, running, system, options, flags=()):
    """Start a worker on each host; does not wait for its first step."""
    command = worker(running, options)
    if system == "shoal":
        interference.start(net, running, str(jobs.SHOAL), flags, command)
        return
    tools = ROOT / "build/tools" / system
    own = net.address
    env = dict(
        PYTHONPATH=f"{ROOT / 'python'}:{tools}", OMP_NUM_THREADS="1", GLOO_SOCKET_IFNAME="eth0"
    )
    named = ["sh", "-c", 'hostname "$0"; exec "$@"']  # peers take it for their address
    if system == "torchft":
        address = f"http://{own[0]}:7077"
        lighthouse = [str(tools / "bin/torchft_lighthouse"), "--bind", f"{own[0]}:7077"]
        lighthouse += ["--min_replicas", "1", "--quorum_tick_ms", "100"]
        lighthouse += ["--join_timeout_ms", "10000"]
        running.start(net.command(0, *named, own[0], str(PYTHON), *lighthouse), **env)
    else:
        identity = running.folder / "identity"
        address = f"/ip4/{own[0]}/tcp/7077/p2p/{peer_id(identity, tools)}"
        env["IDENTITY"] = str(identity)
    for h in net.hosts:
        running.start(
            net.command(h, *named, own[h], *command),
            **env, WORKER=str(h), ADDRESS=address, OWN_ADDRESS=own[h],
        )
        # The other peers of hivemind need the first one.
        while system == "hivemind" and not list(running.folder.glob("worker0-*")):
            running.running()


def worker(running, options):
    """The command of a worker that writes into the folder of the processes."""
    python = str(PYTHON) if PYTHON.exists() else sys.executable
    options = dict(options, out=str(running.folder), port=7077)
    return [python, str(jobs.HERE / "sync_worker.py"), json.dumps(options)]


def commits(running, number=0):
    """What a worker has written down of commits so far."""
    found = running.folder.glob(f"worker{number}-*.jsonl")
    return [x for path in found for x in json_lines(path.read_text()) if "samples" in x]


def peer_id(path, tools):
    """Make an identity of hivemind's in a file; returns the name that follows from it."""
    code = (
        "import sys; from hivemind.p2p.p2p_daemon import P2P; P2P.generate_identity(sys.argv[1]);"
        "from hivemind.p2p.p2p_daemon_bindings.datastructures import PeerID;"
        "print(PeerID.from_identity(open(sys.argv[1], 'rb').read()))"
    )
    done = subprocess.run(
        [str(PYTHON), "-W", "ignore", "-c", code, str(path)],
        env=dict(os.environ, PYTHONPATH=str(tools)), stdout=subprocess.PIPE, text=True, check=True,
    )
    return done.stdout.strip()
