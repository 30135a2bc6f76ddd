"""Ctrl-C and Ctrl-Z that take effect in the middle of a forward pass.

While Python waits inside llama.cpp its signal handlers do not run, and an abort callback in Python would cost a
microsecond per graph node. So the signal's wake-up byte goes through a pipe to a thread that sets a flag in memory,
which llama.cpp polls with a C function.
"""

from __future__ import annotations

import ctypes
import os
import signal
import threading
from collections.abc import Callable
from contextlib import AbstractContextManager, ExitStack
from time import perf_counter
from types import FrameType

POLL = ctypes.cast(ctypes.CDLL(None).strlen, ctypes.c_void_p).value if os.name == "posix" else None
"""The abort callback, `bool (*)(void * data)`: C's strlen on the one-character flag, 0 until the flag is set, then 1.
It needs neither Python nor the interpreter lock."""

_SIGNALS = {getattr(signal, name, signal.SIGINT) for name in ("SIGINT", "SIGTERM", "SIGHUP", "SIGQUIT")}
"""All that end a command: what their handlers raised in a callback of llama.cpp would be lost."""


class Interrupt:
    """Catches signals that end a command, while entered: the first sets the flag, a second does what it did before."""

    POLL_S = 0.03
    """How often code that waits for something else must look: Python goes on sleeping after a signal."""

    def __init__(self) -> None:
        self._flag = ctypes.create_string_buffer(2)
        self.address = ctypes.addressof(self._flag)
        self._signal = 0
        self._stops: tuple[float, float | None] = (0.0, None)
        """Seconds that the process was stopped, and since when it is, if it is; replaced at once, for `clock`."""
        self._around_stop: list[Callable[[], AbstractContextManager[object]]] = []

    def clock(self) -> float:
        """Seconds, without those that the process was stopped by Ctrl-Z after `stop_with`."""
        stopped_s, since = self._stops
        return (perf_counter() if since is None else since) - stopped_s

    def stop_with(self, *around: Callable[[], AbstractContextManager[object]]) -> None:
        """While entered, let Ctrl-Z stop the process in the middle of a pass. around: entered for as long as it is."""
        self._around_stop += around
        if os.name == "posix" and os.getpgrp() != os.getsid(0):  # else there is no shell that could continue it
            # Python's handler has nothing to do: the thread that reads the wake-up byte stops the process.
            old = signal.signal(signal.SIGTSTP, lambda *_: None)
            self._old_handlers.setdefault(signal.SIGTSTP, old)

    def is_set(self) -> bool:
        return self._flag.raw[0] != 0

    @property
    def exit_code(self) -> int:
        """130 after Ctrl-C, as a shell expects; 0 if nothing happened."""
        return 128 + (self._signal or signal.SIGINT) if self.is_set() else 0

    def set(self) -> None:
        self._flag[0] = b"\x01"

    def clear(self) -> None:
        """Forget what was caught, to catch again; not while entered."""
        self._flag[0], self._signal, self._around_stop = b"\0", 0, []

    def __enter__(self) -> Interrupt:
        self._reader, self._writer = os.pipe()
        os.set_blocking(self._writer, False)
        caught = [number for number in _SIGNALS if signal.getsignal(number) is not signal.SIG_IGN]  # nohup
        self._old_handlers = {number: signal.signal(number, self._on_signal) for number in caught}
        self._old_fd = signal.set_wakeup_fd(self._writer, warn_on_full_buffer=False)
        self._watcher = threading.Thread(target=self._watch, args=(self._reader,), daemon=True)
        self._watcher.start()
        return self

    def __exit__(self, *_: object) -> None:
        signal.set_wakeup_fd(self._old_fd)
        for number, handler in self._old_handlers.items():
            signal.signal(number, handler)
        os.close(self._writer)  # the thread reads the end of the pipe, closes its side and ends
        self._watcher.join()  # else it could set the flag late, after `clear`

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        if self._signal:
            if callable(before := self._old_handlers[signal.Signals(number)]):
                before(number, frame)
            raise KeyboardInterrupt
        self._signal = number
        self.set()

    def _watch(self, reader: int) -> None:
        while received := os.read(reader, 1):
            if received[0] in _SIGNALS:
                self.set()
            elif received[0] == signal.SIGTSTP and signal.SIGTSTP in self._old_handlers:
                self._stop()
        os.close(reader)

    def _stop(self) -> None:
        """Stop the process until the shell continues it; meanwhile the clock stands."""
        before, since = self._stops[0], perf_counter()
        self._stops = before, since
        with ExitStack() as stack:
            for around in self._around_stop:
                stack.enter_context(around())
            signal.pthread_kill(threading.get_ident(), signal.SIGSTOP)
        self._stops = before + perf_counter() - since, None
