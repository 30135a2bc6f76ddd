"""A model file's trial: a child process loads it before this one does, for llama.cpp ends its process on some of them.

No check of a header can know them all: each of its architectures has asserts of its own, and so have its tokenizers.
"""

from __future__ import annotations

import importlib.util
import os
import re
import signal
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from time import monotonic

from specdec_cli.decoding.errors import Interrupted, SpecdecError
from specdec_cli.llama import host, trial_child
from specdec_cli.llama.interrupt import Interrupt

_MOST_BYTES = 4 << 30
"""Of a file whose weights are read; where less memory is free, that is the most."""
_WAIT_S = 20.0
_WAIT_BYTES_PER_S = 20 << 20
_CPU_S = 4
_CPU_BYTES_PER_S = 250 << 20
_DATA_BYTES = 1 << 30
"""What a trial may take, and more for each byte of the file: to wait for, to compute, to have in memory."""

_NO_GPU = {"CUDA_VISIBLE_DEVICES": "-1", "HIP_VISIBLE_DEVICES": "-1", "GGML_VK_VISIBLE_DEVICES": ""}
_PLACE = re.compile(r"^\S*?([\w.-]+:\d+): +(.*)$")  # of an assertion, with the folder it was compiled in
_LIMITS = {-getattr(signal, name) for name in ("SIGKILL", "SIGXCPU") if hasattr(signal, name)}


class TrialLoad:
    """A child process that loads a model and decodes one token, on one thread of the CPU. n_bytes: the file's size.
    adapters: files that the model is loaded with. heads: load next-token layers too, and compute nothing: a file of
    heads alone cannot.

    Of a larger file than `_MOST_BYTES` the weights are not read: it would be read from the disk twice.
    """

    def __init__(self, path: Path, n_bytes: int, adapters: Sequence[Path] = (), heads: bool = False) -> None:
        free = host.available_memory()
        whole = n_bytes <= min(_MOST_BYTES, free or _MOST_BYTES)
        limits = (_CPU_S + n_bytes // _CPU_BYTES_PER_S, _DATA_BYTES + n_bytes // 8)
        self._name = path.name
        self._last_words = tempfile.TemporaryFile()  # noqa: SIM115  # a pipe could be full
        self._until = monotonic() + _WAIT_S + n_bytes / _WAIT_BYTES_PER_S
        self._child = subprocess.Popen(
            [
                *(sys.executable, str(Path(trial_child.__file__)), str(path)),
                *(*map(str, limits), "heads" if heads else "whole" if whole else "", *map(str, adapters)),
            ],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=self._last_words,
            env={**os.environ, **_NO_GPU, "GGML_NO_BACKTRACE": "1"},  # an abort would start a debugger otherwise
            start_new_session=True,  # Ctrl-C is the parent's to decide on
        )

    def death(self, interrupt: Interrupt) -> str:
        """How the child died; empty if it came through. Raises SpecdecError if it came to no end within its limits,
        Interrupted on Ctrl-C.
        """
        while self._child.poll() is None:
            if interrupt.is_set():
                self.stop()
                raise Interrupted
            if monotonic() > self._until:
                self.stop()
            try:
                self._child.wait(interrupt.POLL_S)
            except subprocess.TimeoutExpired:
                continue
        code = self._child.returncode
        if code in _LIMITS:
            raise SpecdecError(
                f"{self._name} was loaded on trial, which did not end within its limits of time and memory",
                "Close other programs and try again; if that does not help, the file is damaged: download it again.",
            )
        return "" if code >= 0 else self._said() or signal.Signals(-code).name

    def _said(self) -> str:
        """The child's last words, without the folder that llama.cpp was compiled in."""
        self._last_words.seek(0)
        lines = self._last_words.read(1 << 20).decode("utf-8", "replace").split("\n")
        said = [line.strip() for line in lines if line.strip()] or [""]
        last = next((line for line in reversed(said) if "GGML_" in line or "what():" in line), said[-1])
        place = _PLACE.match(last)
        return f"{place[2]} ({place[1]})" if place else last

    def stop(self) -> None:
        """End the child, if it still runs."""
        self._child.kill()
        self._child.wait()
        self._last_words.close()


@cache
def build() -> str:
    """What tells this build of llama.cpp from others, without loading it: its file's place, size and time."""
    spec = importlib.util.find_spec("llama_cpp")
    folders = [Path(place) / "lib" for place in (spec.submodule_search_locations or ())] if spec else []
    files = sorted(path for folder in folders for path in folder.glob("*llama.*"))
    return " ".join(f"{path}/{path.stat().st_size}/{path.stat().st_mtime_ns}" for path in files)
