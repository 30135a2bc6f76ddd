"""How signals end a command: it closes what it opened, and restores the terminal."""

from __future__ import annotations

import atexit
import os
import signal
import sys
from collections.abc import Callable, Coroutine, Iterator
from contextlib import ExitStack, contextmanager
from types import FrameType

from specdec_cli.decoding.errors import obeyed_signals


class _Ended(KeyboardInterrupt):
    """After a plain KeyboardInterrupt inside exec, as in dataclasses, Python exits by SIGINT even if it was caught."""


@contextmanager
def exit_codes_of_signals() -> Iterator[None]:
    """Let a signal before and after a command end the process with its exit code, and none end Python's own exit."""
    numbers = obeyed_signals()

    def handle(handler: Callable[[int, FrameType | None], None] | signal.Handlers) -> None:
        for number in numbers:
            signal.signal(number, handler)

    def end(number: int, frame: FrameType | None) -> None:
        raise SystemExit(128 + number)

    def end_at_once(number: int, frame: FrameType | None) -> None:
        os._exit(128 + number)

    atexit.register(handle, signal.SIG_IGN)  # runs last, because it is the first
    handle(end)
    try:
        yield
    finally:
        handle(end_at_once)


@contextmanager
def ended_by_signals() -> Iterator[None]:
    """Let SIGTERM, SIGHUP and SIGQUIT raise KeyboardInterrupt as Ctrl-C does; the exit code says which it was.

    A second signal ends the process at once.
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
            report(what)

    old = {number: signal.signal(number, end) for number in obeyed_signals()}
    report, sys.unraisablehook = sys.unraisablehook, lost
    try:
        yield
    finally:
        sys.unraisablehook = report
        restore()
        for number, handler in old.items():
            signal.signal(number, handler)
        if received:
            sys.exit(128 + received[0])


async def cancelled_by_signals(work: Coroutine[None, None, None]) -> int:
    """Let the same signals cancel asyncio's work. Returns the signal's number, or 0.

    An exception from a handler inside asyncio's own code would lose the next task, and closing the loop would hang. A
    second signal ends the process at once.
    """
    import asyncio

    loop, task, received = asyncio.get_running_loop(), asyncio.ensure_future(work), list[int]()

    def cancel(number: int) -> None:
        if received:
            os._exit(128 + number)
        received.append(number)
        task.cancel()

    def handle(number: int, frame: FrameType | None) -> None:
        loop.call_soon_threadsafe(cancel, number)

    with ExitStack() as handled:
        for number in obeyed_signals():
            try:
                loop.add_signal_handler(number, cancel, number)
            except NotImplementedError:  # on Windows, whose loops wake up for every signal
                handled.callback(signal.signal, number, signal.signal(number, handle))
        try:
            await task
        except asyncio.CancelledError:
            if not received:
                raise
    return received[0] if received else 0


def _restoring_terminal() -> Callable[[], None]:
    """A function that restores the present settings of the terminal on stdin, if it is one."""
    try:
        import termios
    except ImportError:  # on Windows, where nothing changes a terminal's settings
        return lambda: None
    try:
        before = termios.tcgetattr(0)
    except termios.error:  # no terminal
        return lambda: None

    def restore() -> None:
        try:
            if termios.tcgetattr(0) != before:  # else a process in the background would be stopped for this
                termios.tcsetattr(0, termios.TCSANOW, before)
        except termios.error:  # the terminal has hung up
            pass

    return restore
