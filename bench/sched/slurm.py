"""A Slurm cluster on this machine: munge, a controller and some nodes, in a folder and on loopback.

scripts/setup slurm installs Debian's packages. It is for benchmarks and tests, not for people.
"""

import os
import re
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from pathlib import Path
from types import TracebackType
from typing import Callable, Dict, Iterator, List, Optional, Tuple, Type, Union

__all__ = ["Slurm"]

CONF = """ClusterName=bench
SlurmctldHost=localhost(127.0.0.1)
SlurmctldPort={port}
SlurmUser={user}
SlurmdUser={user}
AuthType=auth/munge
AuthInfo=socket={folder}/munge.socket
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool-%n
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd-%n.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/slurmd-%n.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
MpiDefault=none
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
SchedulerType=sched/backfill
SchedulerParameters=bf_interval=1,sched_interval=1
PreemptType=preempt/partition_prio
PreemptMode=REQUEUE
SlurmdParameters=config_overrides
SlurmdTimeout={node_timeout}
ReturnToService=2
KillWait={kill_wait}
NodeName=n[1-{nodes}] NodeHostname=localhost NodeAddr=127.0.0.1 Port=[{first}-{last}] CPUs={cpus}
PartitionName=normal Nodes=ALL Default=YES PriorityTier=1 GraceTime={grace}
PartitionName=urgent Nodes=ALL PriorityTier=2 PreemptMode=OFF
"""


class Slurm:
    """Nodes n1, n2, … of so many CPUs each, which are not those of the machine.

    Jobs of partition urgent preempt those of partition normal, which get SIGTERM, and are killed
    and put back into the queue after `grace` seconds. A node that is silent for `node_timeout`
    seconds is down. A context manager starts and stops it.

    Raises RuntimeError with the end of the log if it is not up within a minute.
    """

    def __init__(self, nodes: int = 1, cpus: int = 4, grace: int = 20, kill_wait: int = 10,
                 node_timeout: int = 300) -> None:
        for program in "munged", "slurmctld", "slurmd", "sbatch":
            if shutil.which(program, path=f"{os.environ['PATH']}:/usr/sbin") is None:
                raise RuntimeError(f"no {program} here: scripts/setup slurm installs it")
        self.folder = Path(tempfile.mkdtemp(prefix="slurm-"))
        self.nodes = [f"n{i + 1}" for i in range(nodes)]
        self.started: List["subprocess.Popen[bytes]"] = []
        self.slurmds: Dict[str, "subprocess.Popen[bytes]"] = {}  # by node
        first = free_ports(nodes + 1)
        (self.folder / "state").mkdir()
        self.conf = conf = self.folder / "slurm.conf"
        conf.write_text(CONF.format(
            port=first, first=first + 1, last=first + nodes, folder=self.folder, nodes=nodes,
            cpus=cpus, grace=grace, kill_wait=kill_wait, node_timeout=node_timeout,
            user=name_of_user()))
        self.env: Dict[str, str] = {
            **os.environ, "SLURM_CONF": str(conf), "PATH": f"{os.environ['PATH']}:/usr/sbin"}

    def __enter__(self) -> "Slurm":
        try:
            self.start()
        except BaseException:
            self.stop()
            raise
        return self

    def __exit__(self, kind: Optional[Type[BaseException]], error: Optional[BaseException],
                 trace: Optional[TracebackType]) -> None:
        self.stop()

    def start(self) -> None:
        """Start all daemons, and wait until every node is idle."""
        key = self.folder / "munge.key"
        key.write_bytes(os.urandom(128))
        key.chmod(0o600)
        at = self.folder
        self.launch("munged", "--foreground", "--force", f"--key-file={key}",
                    f"--socket={at}/munge.socket", f"--pid-file={at}/munged.pid",
                    f"--log-file={at}/munged.log", f"--seed-file={at}/munged.seed")
        self.wait(lambda: (at / "munge.socket").exists(), "munged")
        self.launch("slurmctld", "-D")
        for node in self.nodes:
            (at / f"spool-{node}").mkdir()
            self.slurmds[node] = self.launch("slurmd", "-D", "-N", node)
        self.wait(lambda: self.idle() == len(self.nodes), "slurmctld")

    def launch(self, program: str, *args: str) -> "subprocess.Popen[bytes]":
        """Start a daemon in the foreground, in a session of its own, and return it."""
        log = (self.folder / f"{program}.out").open("ab")
        with log:
            self.started.append(subprocess.Popen([program, *args], env=self.env, stdout=log,
                                                 stderr=log, start_new_session=True))
        return self.started[-1]

    def wait(self, is_up: Callable[[], bool], program: str) -> None:
        """Wait for a minute until something is up."""
        end = time.monotonic() + 60
        while not is_up():
            if time.monotonic() > end:
                logs = [self.folder / f"{program}{kind}" for kind in (".log", ".out")]
                text = "".join(log.read_text()[-1000:] for log in logs if log.exists())
                raise RuntimeError(f"{program} is not up after a minute: {text}")
            time.sleep(0.1)

    def lose(self, node: str) -> None:
        """Kill all that runs on a node at one moment, as a power cut does: nothing tells Slurm."""
        daemon = self.slurmds.pop(node)
        self.started.remove(daemon)
        tasks = {pid for pid, words in environments()
                 if f"SLURMD_NODENAME={node}" in words and f"SLURM_CONF={self.conf}" in words}
        # The processes that Slurm starts for the tasks of a step are their parents.
        steps = {parent for parent in map(parent_of, tasks) if name_of(parent) == "slurmstepd"}
        for pid in [daemon.pid, *steps, *tasks]:
            kill(pid, signal.SIGSTOP)
        # Parents last: the kernel wakes a stopped process whose parent has ended.
        for pid in [*tasks, *steps, daemon.pid]:
            kill(pid, signal.SIGKILL)
        daemon.wait()

    def bring_back(self, node: str) -> None:
        """Start a node again that was lost, and wait until it is idle."""
        before = self.idle()
        self.slurmds[node] = self.launch("slurmd", "-D", "-N", node)
        self.wait(lambda: self.idle() > before, "slurmd")

    def node_state(self, node: str) -> str:
        """Return what scontrol says of a node, such as IDLE, ALLOCATED or DOWN*."""
        found = re.search(r"State=(\S+)", self.call("scontrol", "-o", "show", "node", node))
        return found.group(1) if found else ""

    def idle(self) -> int:
        """Return how many nodes are idle."""
        done = subprocess.run(["sinfo", "-h", "-N", "-p", "normal", "-o", "%t"], env=self.env,
                              stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
        return done.stdout.split().count("idle")

    def call(self, *words: str) -> str:
        """Run one of Slurm's commands, and return what it prints.

        Raises RuntimeError with what it says where it fails.
        """
        done = subprocess.run(words, env=self.env, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                              text=True)
        if done.returncode:
            raise RuntimeError(f"{' '.join(words)}: {done.stderr.strip()}")
        return done.stdout

    def submit(self, script: str, *options: str, folder: Optional[Path] = None) -> int:
        """Submit the text of a batch script from a folder, by default this process's, and return
        the number of the job.
        """
        done = subprocess.run(["sbatch", *options], input=script, env=self.env, text=True,
                              cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        found = re.search(r"\d+", done.stdout)
        if done.returncode or not found:
            raise RuntimeError(f"sbatch {' '.join(options)}: {done.stderr.strip()}")
        return int(found.group())

    def state(self, job: Union[int, str]) -> Dict[str, str]:
        """Return what scontrol shows of a job, or of an element of an array such as 17_3, by key,
        such as JobState and Restarts.
        """
        text = self.call("scontrol", "-o", "show", "job", str(job))
        return dict(re.findall(r"(\w+)=(\S*)", text))

    def stop(self) -> None:
        """End all jobs and daemons, and remove the folder."""
        if len(self.started) > 1:
            subprocess.run(["scancel", "--state=RUNNING,PENDING", f"--user={name_of_user()}"],
                           env=self.env, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        for daemon in reversed(self.started):
            daemon.send_signal(signal.SIGTERM)
        for daemon in reversed(self.started):
            try:
                daemon.wait(10)
            except subprocess.TimeoutExpired:
                daemon.kill()
                daemon.wait()
        shutil.rmtree(self.folder, ignore_errors=True)


def environments() -> Iterator[Tuple[int, List[str]]]:
    """Yield each process of this user's, with its environment as it was started."""
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            yield int(folder.name), (folder / "environ").read_text(errors="replace").split("\0")
        except (PermissionError, FileNotFoundError, ProcessLookupError):
            continue


def name_of(pid: int) -> str:
    """Return the name of a process; "" = it is gone."""
    try:
        return Path(f"/proc/{pid}/comm").read_text().strip()
    except (FileNotFoundError, ProcessLookupError):
        return ""


def parent_of(pid: int) -> int:
    """Return the parent of a process; 0 = it is gone."""
    try:
        return int(Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2].split()[1])
    except (FileNotFoundError, ProcessLookupError):
        return 0


def kill(pid: int, number: int) -> None:
    """Send a signal to a process, if it is there."""
    try:
        os.kill(pid, number)
    except ProcessLookupError:
        pass


def name_of_user() -> str:
    """Return the name of who runs this, as Slurm wants it."""
    return subprocess.run(["id", "-un"], stdout=subprocess.PIPE, text=True).stdout.strip()


def free_ports(n: int) -> int:
    """Return the first of n ports in a row that nobody listens on."""
    for first in range(17001, 30000, n):
        held = []
        try:
            for port in range(first, first + n):
                held.append(socket.socket())
                held[-1].bind(("127.0.0.1", port))
            return first
        except OSError:
            continue
        finally:
            for one in held:
                one.close()
    raise RuntimeError(f"no {n} free ports in a row")
