"""The machine that is measured on: what it is, and whether it is idle."""

from __future__ import annotations

import mmap
import os
import pathlib
import platform
import re
import subprocess
import time


def _processor_time() -> tuple[int, int]:
    """Returns the ticks that all processors were idle since the machine started, and those of all
    time.
    """
    fields = [int(f) for f in pathlib.Path("/proc/stat").read_text().splitlines()[0].split()[1:9]]
    return fields[3] + fields[4], sum(fields)  # idle + iowait, all


def wait_until_idle(share: float, limit_s: float) -> bool:
    """Waits until the processors were idle for this share of a second; returns False when that did
    not happen within limit_s.
    """
    end = time.monotonic() + limit_s
    while True:
        idle, total = _processor_time()
        time.sleep(1)
        idle_after, total_after = _processor_time()
        if idle_after - idle >= share * (total_after - total):
            return True
        if time.monotonic() > end:
            return False


def touch_memory(share: float) -> float:
    """Touches this share of the memory that is free, and gives it back; returns the seconds that it
    took.

    The host of a virtual machine may provide memory only as it is touched, and take back what is
    free. A process that grows then takes 4 ms for each 2 MB in place of 0.2 ms, and whoever needs
    gigabytes appears slower by seconds. So the memory is touched before such a measurement.
    """
    about = pathlib.Path("/proc/meminfo").read_text()
    free = int(re.search(r"MemAvailable:\s*(\d+)", about)[1]) << 10
    start = time.monotonic()
    pages = int(free * share) // mmap.PAGESIZE
    with mmap.mmap(-1, pages * mmap.PAGESIZE, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS) as memory:
        memory.madvise(mmap.MADV_HUGEPAGE)
        memory[:: mmap.PAGESIZE] = bytes(pages)
    return time.monotonic() - start


def _output(*command: str) -> str:
    """Returns what a command prints, without space around it; "" if it fails."""
    try:
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        return ""


def describe(root: pathlib.Path) -> dict[str, str]:
    """Returns processor, memory, kernel, the versions of what is compared, and the commit of shoal
    in the repository root, as texts by title; "" for what is not installed.
    """
    cpuinfo = pathlib.Path("/proc/cpuinfo").read_text()

    def cpu(key: str) -> str:
        """Returns a field of the first processor; "unknown" where it has none."""
        match = re.search(rf"^{key}\s*:\s*(.*)$", cpuinfo, re.M)
        return match[1] if match else "unknown"

    memory = int(re.search(r"MemTotal:\s*(\d+)", pathlib.Path("/proc/meminfo").read_text())[1]) / (
        1 << 20
    )
    guest = ", virtual machine" if "hypervisor" in cpu("flags") else ""
    caches = re.findall(r"^(L[23]) cache:\s*(.*)$", _output("lscpu"), re.M)
    commit = _output("git", "-C", str(root), "rev-parse", "--short=12", "HEAD")
    changed = _output("git", "-C", str(root), "status", "--porcelain", "--untracked-files=no")
    packages = {
        "OpenMPI": "openmpi-bin",
        "MPICH": "mpich",
        "torch": "python3-torch",
        "gloo": "libgloo0",
        "NumPy": "python3-numpy",
    }
    return {
        "processor": (
            f"{cpu('model name')} (family {cpu('cpu family')}, model {cpu('model')}){guest}"
        ),
        "cores": str(os.cpu_count()),
        "caches": ", ".join(f"{level} {size}" for level, size in caches),
        "memory": f"{memory:.1f} GiB",
        "kernel": f"{platform.system()} {platform.release()} {platform.machine()}",
        **{
            name: _output("dpkg-query", "-W", "-f", "${Version}", package)
            for name, package in packages.items()
        },
        "Python": _output(
            "/usr/bin/python3", "-c", "import platform; print(platform.python_version())"
        ),
        "shoal": commit + (", with uncommitted changes" if changed else ""),
    }
