"""How signals end a command: with what it has opened closed, and the terminal as it was."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType


class _Ended(KeyboardInterrupt):
    """Python ends itself by SIGINT once a KeyboardInterrupt proper was raised while dataclasses were made, though it
    was caught.
    """


@contextmanager
def ended_by_signals() -> Iterator[None]:
    """Let SIGTERM, SIGHUP and SIGQUIT raise KeyboardInterrupt as Ctrl-C does; the exit code tells which it was.

    A signal that comes while the first one is obeyed ends the process at once.
    """
    restore = _restoring_terminal()
    received: list[int] = []

    def end(number: int, frame: FrameType | None) -> None:
        if received:
            restore()
            os._exit(128 + number)
        received.append(number)
        raise _Ended

    def lost(what: sys.UnraisableHookArgs) -> None:
        if not isinstance(what.exc_value, KeyboardInterrupt):  # of a second signal, in a callback of llama.cpp
            tell(what)

    numbers = [getattr(signal, name, signal.SIGINT) for name in ("SIGINT", "SIGTERM", "SIGHUP", "SIGQUIT")]
    old = {number: signal.signal(number, end) for number in numbers if signal.getsignal(number) is not signal.SIG_IGN}
    tell, sys.unraisablehook = sys.unraisablehook, lost
    try:
        yield
    finally:
        sys.unraisablehook = tell
        restore()
        for number, handler in old.items():
            signal.signal(number, handler)
        if received:
            sys.exit(128 + received[0])


def _restoring_terminal() -> Callable[[], None]:
    """What gives the terminal that stdin is, if it is one, the settings that it has now."""
    try:
        import termios

        before = termios.tcgetattr(0)
    except (ImportError, termios.error):  # not on Windows; no terminal
        return lambda: None

    def restore() -> None:
        try:
            if termios.tcgetattr(0) != before:  # else a process in the background would be stopped for this
                termios.tcsetattr(0, termios.TCSANOW, before)
        except termios.error:  # the terminal has hung up
            pass

    return restore
