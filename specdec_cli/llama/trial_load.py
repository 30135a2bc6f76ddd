"""A model file's trial: a child process loads it before this one does, for llama.cpp ends its process on some of them.

No check of a header can know them all: each of its architectures has asserts of its own, and so have its tokenizers.
"""

from __future__ import annotations

import signal
from collections.abc import Sequence
from pathlib import Path

from specdec_cli.decoding.errors import SpecdecError
from specdec_cli.llama import host, trial_child
from specdec_cli.llama.child import Child
from specdec_cli.llama.interrupt import Interrupt
from specdec_cli.llama.kernels import NO_GPU

_MOST_BYTES = 4 << 30
"""Of a file whose weights are read; where less memory is free, that is the most."""
_WAIT_S = 20.0
_WAIT_BYTES_PER_S = 20 << 20
_CPU_S = 4
_CPU_BYTES_PER_S = 250 << 20
_DATA_BYTES = 1 << 30
"""What a trial may take, and more for each byte of the file: to wait for, to compute, to have in memory."""

_LIMITS = {-getattr(signal, name) for name in ("SIGKILL", "SIGXCPU") if hasattr(signal, name)}


class TrialLoad:
    """A child process that loads a model and decodes some tokens, on one thread of the CPU. n_bytes: the file's size.
    adapters: files that the model is loaded with. head: a file of heads that are tried with it.

    Of a larger file than `_MOST_BYTES` the weights are not read: it would be read from the disk twice.
    """

    def __init__(self, path: Path, n_bytes: int, adapters: Sequence[Path] = (), head: Path | None = None) -> None:
        free = host.available_memory()
        whole = n_bytes <= min(_MOST_BYTES, free or _MOST_BYTES)
        limits = (_CPU_S + n_bytes // _CPU_BYTES_PER_S, _DATA_BYTES + n_bytes // 8)
        script = trial_child.__file__ if head is None else str(Path(trial_child.__file__).with_name("head_trial.py"))
        more = ["whole" if whole else "", *adapters] if head is None else [head]
        self._name = path.name
        wait_s = _WAIT_S + n_bytes / _WAIT_BYTES_PER_S
        self._child = Child([script, str(path), *map(str, (*limits, *more))], wait_s, NO_GPU)

    def death(self, interrupt: Interrupt) -> str:
        """How the child died; empty if it came through. Raises SpecdecError if it came to no end within its limits,
        Interrupted on Ctrl-C.
        """
        code = self._child.wait(interrupt)
        if code in _LIMITS or self._child.timed_out:
            raise SpecdecError(
                f"{self._name} was loaded on trial, which did not end within its limits of time and memory",
                "Close other programs and try again; if that does not help, the file is damaged: download it again.",
            )
        return self._child.death()

    def stop(self) -> None:
        """End the child, if it still runs."""
        self._child.stop()
