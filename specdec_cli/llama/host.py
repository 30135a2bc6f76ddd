"""Cores and memory of this machine. Doesn't need llama.cpp."""

from __future__ import annotations

import os
from pathlib import Path


def processors() -> int:
    """Hardware threads that this process may use."""
    try:
        return len(os.sched_getaffinity(0))
    except AttributeError:  # not Linux
        return max(1, os.cpu_count() or 1)


def physical_cores() -> int:
    """Physical cores that this process may use; hardware threads where the system doesn't report cores."""
    try:
        usable = os.sched_getaffinity(0)
    except AttributeError:  # not Linux
        return processors()
    siblings = set()
    for cpu in usable:
        topology = Path(f"/sys/devices/system/cpu/cpu{cpu}/topology/thread_siblings_list")
        siblings.add(topology.read_text().strip() if topology.exists() else str(cpu))
    cores = len(siblings)
    try:  # the limit of a container (cgroup v2); more threads than that would only wait
        quota, period = Path("/sys/fs/cgroup/cpu.max").read_text().split()
        cores = min(cores, int(quota) // int(period))
    except (OSError, ValueError):  # no cgroups, or "max": no limit
        pass
    return max(1, cores)


def usual_threads() -> int:
    """The CPU threads of a run without -t."""
    given = os.environ.get("SPECDEC_THREADS", "")
    return min(int(given), processors()) if given.isdigit() and int(given) else physical_cores()


def available_memory() -> int | None:
    """Bytes of main memory available without swapping; None if the system doesn't report it."""
    try:
        lines = Path("/proc/meminfo").read_text().splitlines()
    except OSError:
        return None
    return next((int(line.split()[1]) * 1024 for line in lines if line.startswith("MemAvailable:")), None)


def total_memory() -> int:
    """Bytes of main memory; 0 if the system doesn't report it."""
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (AttributeError, ValueError, OSError):  # not POSIX
        return 0
