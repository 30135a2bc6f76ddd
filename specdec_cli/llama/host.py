"""What this machine has: cores and memory. Nothing of llama.cpp is needed to tell."""

from __future__ import annotations

import os
from pathlib import Path


def processors() -> int:
    """Threads that can run at once, two a core where it has two."""
    try:
        return len(os.sched_getaffinity(0))
    except AttributeError:  # not Linux
        return max(1, os.cpu_count() or 1)


def physical_cores() -> int:
    """Cores to compute on: those this process may use, one thread each where the system tells."""
    try:
        usable = os.sched_getaffinity(0)
    except AttributeError:  # not Linux
        return processors()
    siblings = set()
    for cpu in usable:
        topology = Path(f"/sys/devices/system/cpu/cpu{cpu}/topology/thread_siblings_list")
        siblings.add(topology.read_text().strip() if topology.exists() else str(cpu))
    cores = len(siblings)
    try:  # what a container may use at once (cgroup v2); more threads than that would spin in vain
        quota, period = Path("/sys/fs/cgroup/cpu.max").read_text().split()
        cores = min(cores, int(quota) // int(period))
    except (OSError, ValueError):  # no cgroups, or "max": no limit
        pass
    return max(1, cores)


def available_memory() -> int | None:
    """Bytes of main memory that could be taken without swapping; None where the system does not tell."""
    try:
        lines = Path("/proc/meminfo").read_text().splitlines()
    except OSError:
        return None
    return next((int(line.split()[1]) * 1024 for line in lines if line.startswith("MemAvailable:")), None)


def total_memory() -> int:
    """Bytes of main memory; 0 where the system does not tell."""
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (AttributeError, ValueError, OSError):  # not POSIX
        return 0
