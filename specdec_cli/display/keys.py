"""Single keys from a terminal."""

from __future__ import annotations

import os
import re
import select
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager

try:
    import termios
    import tty
except ImportError:  # on Windows
    CAN_BE_READ = False
else:
    CAN_BE_READ = True

from specdec_cli.decoding.types import Event, Prefill

_POLL_S = 0.05
_NEXT = {b" ", b"\r", b"\n", b"\x1b[C", b"\x1bOC"}
_LEAVE = {b"q", b"Q", b"\x03", b"\x04", b""}
_KEY = re.compile(rb"\x1b\[[\d;]*[@-~]|\x1bO.|.", re.DOTALL)


class Keyboard:
    """While entered, gives keys without Enter and without echo. interrupted: whether Ctrl-C or SIGTERM has come."""

    def __init__(self, interrupted: Callable[[], bool]) -> None:
        self._interrupted = interrupted
        self._fd = sys.stdin.fileno()
        self._pending: list[bytes] = []
        self._before = termios.tcgetattr(self._fd)

    def __enter__(self) -> Keyboard:
        tty.setcbreak(self._fd)
        return self

    def __exit__(self, *_: object) -> None:
        termios.tcsetattr(self._fd, termios.TCSAFLUSH, self._before)

    def wait(self, event: Event) -> bool:
        """Wait for a key before an event is shown; False if the user has seen enough."""
        while not isinstance(event, Prefill) and not self._interrupted():
            if not self._pending and select.select([self._fd], [], [], _POLL_S)[0]:
                self._pending.extend(_KEY.findall(os.read(self._fd, 1024)) or [b""])  # b"": the terminal has hung up
            if self._pending and (key := self._pending.pop(0)) in _NEXT | _LEAVE:
                return key in _NEXT
        return not self._interrupted()

    @contextmanager
    def suspended(self) -> Iterator[None]:
        """While the process is stopped, the shell has the terminal."""
        now = termios.tcgetattr(self._fd)
        termios.tcsetattr(self._fd, termios.TCSADRAIN, self._before)
        yield
        termios.tcsetattr(self._fd, termios.TCSADRAIN, now)
