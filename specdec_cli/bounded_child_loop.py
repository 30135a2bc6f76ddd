"""The child process of bounded_child, run as a script: python bounded_child_loop.py MODULE LIMITS

Each input line is a request and each output line an answer, both in JSON. MODULE's function `answer` gets a request
and its number of bytes, and returns the answer, or None if none is needed. The process ends at the end of its input,
and when a request exceeds a limit.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from contextlib import suppress
from importlib import import_module
from pathlib import Path


def main(module: str, limits: dict[str, float]) -> None:
    """Answer requests, each within the limits, which are those of `bounded_child.Limits`."""
    if hasattr(os, "nice"):
        os.nice(int(limits["nice"]))
    answer = import_module(module).answer
    for line in sys.stdin.buffer:
        _limit_memory(int(limits["most_bytes"] + limits["bytes_per_input_byte"] * len(line)))
        _limit_cpu(limits["cpu_s"])
        try:
            answered = answer(json.loads(line), len(line))
        except MemoryError:
            return
        _limit_cpu(0)
        if answered is not None:
            sys.stdout.write(json.dumps(answered) + "\n")
            sys.stdout.flush()


def _limit_cpu(seconds: float) -> None:
    """Limit the processor time from now on; 0 for no limit. On Windows, the parent process limits the time."""
    if hasattr(signal, "setitimer"):
        signal.setitimer(signal.ITIMER_PROF, seconds)  # the signal ends the process


def _limit_memory(n_bytes: int) -> None:
    """Limit the memory. On Windows and macOS, which have no such limit, the parent process checks."""
    with suppress(ImportError, ValueError, OSError):
        import resource

        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        resource.setrlimit(resource.RLIMIT_DATA, (n_bytes, resource.getrlimit(resource.RLIMIT_DATA)[1]))


if __name__ == "__main__":
    sys.path[0] = str(Path(__file__).parents[1])  # instead of this folder, whose names would hide others
    main(sys.argv[1], json.loads(sys.argv[2]))
    os._exit(0)  # skip the interpreter's shutdown
