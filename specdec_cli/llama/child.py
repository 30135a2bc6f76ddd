"""A process beside this one, for what may end it: llama.cpp does so on bad files, and a build on a wrong processor."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from time import monotonic
from typing import IO

from specdec_cli.decoding.errors import Interrupted
from specdec_cli.llama.interrupt import Interrupt

_MOST_SAID = 1 << 20
_PLACE = re.compile(r"^\S*?([\w.-]+:\d+): +(.*)$")  # of an assertion, with the folder it was compiled in


class Child:
    """A process of this Python. arguments: as after `python`. wait_s: after so many seconds it is ended.

    Its standard output is kept, and so are its last words.
    """

    def __init__(self, arguments: Sequence[str], wait_s: float, environment: Mapping[str, str] | None = None) -> None:
        self.timed_out = False
        """Whether it was ended because it took too long."""
        self._until = monotonic() + wait_s
        self._output, self._last_words = _file(), _file()  # a pipe could be full
        self._process = subprocess.Popen(
            [sys.executable, *arguments],
            stdin=subprocess.DEVNULL,
            stdout=self._output,
            stderr=self._last_words,
            env={**os.environ, "GGML_NO_BACKTRACE": "1", **(environment or {})},  # an abort starts a debugger otherwise
            start_new_session=True,  # Ctrl-C is the parent's to decide on
        )

    def wait(self, interrupt: Interrupt | None = None) -> int:
        """Wait for its end; returns its code, negative for a signal. Raises Interrupted."""
        while self._process.poll() is None:
            if interrupt and interrupt.is_set():
                self.stop()
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
        return self._output.read(_MOST_SAID)

    def death(self) -> str:
        """How it died, once it has ended: its last words or the signal; empty if by none."""
        code = int(self._process.returncode)
        return "" if code in (0, 1) else self.last_words() or name_of(code)  # Windows has no signals, but large numbers

    def last_words(self) -> str:
        """What it said last on standard error: an assertion, if there is one."""
        self._last_words.seek(0)
        lines = self._last_words.read(_MOST_SAID).decode("utf-8", "replace").split("\n")
        said = [line.strip() for line in lines if line.strip()] or [""]
        last = next((line for line in reversed(said) if "GGML_" in line or "what():" in line), said[-1])
        place = _PLACE.match(last)
        return f"{place[2]} ({place[1]})" if place else last

    def stop(self) -> None:
        """End it, if it still runs."""
        self._process.kill()
        self._process.wait()
        self._output.close()
        self._last_words.close()


def _file() -> IO[bytes]:
    return tempfile.TemporaryFile()


def name_of(code: int) -> str:
    """How a process ended, by its code: the signal's name, if it was one."""
    try:
        return signal.Signals(-code).name
    except ValueError:
        return f"code {code}"
