"""Trials in a child process, for calls that may end it: llama.cpp aborts on some bad files, and a build for another
processor crashes. trial_child.py runs the trials.

No check of a header can find every file that crashes llama.cpp: each of its architectures and tokenizers has its own
asserts. So a child process loads a model file before this one does.
"""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from tempfile import TemporaryFile
from time import monotonic

from specdec_cli.decoding.errors import Interrupted
from specdec_cli.llama import host
from specdec_cli.llama.interrupt import Interrupt

SCRIPT = str(Path(__file__).with_name("trial_child.py"))
"""The script that a child runs."""
NO_GPU = {"CUDA_VISIBLE_DEVICES": "-1", "HIP_VISIBLE_DEVICES": "-1", "GGML_VK_VISIBLE_DEVICES": ""}
"""The environment of children that try only the CPU: a GPU takes a second to start."""

_MAX_SAID = 1 << 20
_PLACE = re.compile(r"^\S*?([\w.-]+:\d+): +(.*)$")  # file and line of an assertion, after the folder of the build

_MAX_BYTES = 4 << 30
"""The largest file whose weights are read; if less memory is free, that is the limit."""
_WAIT_S, _CPU_S = 20.0, 4
_BYTES_PER_S = 20 << 20
_DATA_BYTES = 1 << 30
"""A trial's limits for waiting, computing and memory, each extended by the size of the file. Its 18 tokens take a core
of a two-core EPYC 2 s for a gigabyte of Q4_K, 7 s for one of IQ1_S, and processors without AVX2 several times that.
"""

_SIGNALS = ("SIGKILL", "SIGTERM", "SIGHUP", "SIGXCPU", "SIGALRM")
FROM_OUTSIDE = {-getattr(signal, name) for name in _SIGNALS if hasattr(signal, name)}
"""The exit codes of children that were ended from outside: by their limits, by a user, or by the system if memory is
short.
"""


class Child:
    """A child process of this Python. arguments: those after `python`. wait_s: after this many seconds it is killed.

    Its standard output and standard error are kept.
    """

    def __init__(self, arguments: Sequence[str], wait_s: float, environment: Mapping[str, str] | None = None) -> None:
        self.timed_out = False
        """Whether it was ended because it took too long."""
        self._until = monotonic() + wait_s
        # Files, because a pipe can fill up.
        self._output, self._last_words = TemporaryFile(), TemporaryFile()  # noqa: SIM115
        self._process = subprocess.Popen(
            [sys.executable, *arguments],
            stdin=subprocess.DEVNULL,
            stdout=self._output,
            stderr=self._last_words,
            env={**os.environ, "GGML_NO_BACKTRACE": "1", **(environment or {})},  # else an abort starts a debugger
            start_new_session=True,  # the parent handles Ctrl-C
        )

    def wait(self, interrupt: Interrupt | None = None) -> int:
        """Wait until it ends; returns its exit code, negative for a signal. Raises Interrupted."""
        while self._process.poll() is None:
            if interrupt and interrupt.is_set():
                raise Interrupted
            if monotonic() > self._until:
                self.timed_out = True
                self._process.kill()
            try:
                self._process.wait(Interrupt.POLL_S)
            except subprocess.TimeoutExpired:
                continue
        return int(self._process.returncode)

    def output(self) -> bytes:
        """What it printed, up to a megabyte."""
        self._output.seek(0)
        return self._output.read(_MAX_SAID)

    def death(self) -> str:
        """After it has ended: how it crashed (its last line or the signal); empty if it didn't."""
        code = int(self._process.returncode)
        return "" if code in (0, 1) else self.last_words() or name_of(code)  # Windows: a large number, not a signal

    def last_words(self) -> str:
        """The last line on standard error, or the last assertion if there is one."""
        self._last_words.seek(0)
        text = self._last_words.read(_MAX_SAID).decode("utf-8", "replace")
        lines = [line.strip() for line in text.split("\n") if line.strip()] or [""]
        last = next((line for line in reversed(lines) if "GGML_" in line or "what():" in line), lines[-1])
        place = _PLACE.match(last)
        return f"{place[2]} ({place[1]})" if place else last

    def stop(self) -> None:
        """End it, if it still runs."""
        self._process.kill()
        self._process.wait()
        self._output.close()
        self._last_words.close()


def name_of(code: int) -> str:
    """How a process ended, by its code: the signal's name, if it was one."""
    try:
        return signal.Signals(-code).name
    except ValueError:
        return f"code {code}"


def begin_load(path: Path, n_bytes: int, adapters: Sequence[Path] = (), head: Path | None = None) -> Child:
    """A child process that loads a model and decodes some tokens, on one CPU thread. n_bytes: the file's size.
    adapters: files to load with the model. head: a file of heads to try with it.

    Except with heads, the weights of a file larger than `_MAX_BYTES` aren't read: that would read it from the disk
    twice.
    """
    whole = n_bytes <= min(_MAX_BYTES, host.available_memory() or _MAX_BYTES)
    limits = _CPU_S + n_bytes // _BYTES_PER_S, _DATA_BYTES + n_bytes // 8
    what = ("heads", *limits, path, head) if head else ("model", *limits, "whole" if whole else "", path, *adapters)
    return Child([SCRIPT, *map(str, what)], _WAIT_S + n_bytes / _BYTES_PER_S, NO_GPU)
