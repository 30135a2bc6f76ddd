"""Ctrl-C and Ctrl-Z that take effect in the middle of a forward pass.

While Python waits inside llama.cpp, its signal handlers don't run, and an abort callback in Python would cost a
microsecond per graph node. So the signal's wake-up byte goes through a socket pair, which works on every system, to a
thread that sets a flag in memory, and llama.cpp polls the flag with a C function.
"""

from __future__ import annotations

import ctypes
import os
import signal
import socket
import threading
from collections.abc import Callable
from contextlib import AbstractContextManager, ExitStack
from time import perf_counter
from types import FrameType

from specdec_cli.decoding.errors import ENDING_SIGNALS, Interrupted, obeyed_signals

POLL = ctypes.cast(ctypes.pythonapi.PyThread_tss_is_created, ctypes.c_void_p).value
"""The abort callback, `bool (*)(void * data)`: a function of Python's C API that returns the int its argument points
to, here the flag. Every system has it, and it needs no interpreter lock."""


class Interrupt:
    """While entered, catches signals that end a command: the first sets the flag, a second runs the old handler."""

    POLL_S = 0.03
    """How often code that waits for something else must check the flag: a signal doesn't wake Python."""

    def __init__(self) -> None:
        self._flag = ctypes.c_int(0)
        self.address = ctypes.addressof(self._flag)
        self._signal = self._number = 0
        """The signal that was handled, and the one that set the flag, which may be before Python handles it."""
        self._stops: tuple[float, float | None] = (0.0, None)
        """Seconds that the process was stopped, and when the current stop began. One tuple, so `clock` can read it at
        any time."""
        self._around_stop: list[Callable[[], AbstractContextManager[object]]] = []

    def clock(self) -> float:
        """Seconds, without the time that the process was stopped by Ctrl-Z after `stop_with`."""
        stopped_s, since = self._stops
        return (perf_counter() if since is None else since) - stopped_s

    def stop_with(self, *around: Callable[[], AbstractContextManager[object]]) -> None:
        """While entered, let Ctrl-Z stop the process in the middle of a pass. around: entered while it is stopped."""
        self._around_stop += around
        # Windows has no such signal, and without a shell nothing could continue the process.
        if hasattr(signal, "SIGTSTP") and os.getpgrp() != os.getsid(0):
            # Python's handler has nothing to do: the thread that reads the wake-up byte stops the process.
            old = signal.signal(signal.SIGTSTP, lambda *_: None)
            self._old_handlers.setdefault(signal.SIGTSTP, old)

    def is_set(self) -> bool:
        return self._flag.value != 0

    @property
    def exit_code(self) -> int:
        """130 after Ctrl-C, as a shell expects; 0 if nothing happened."""
        return 128 + (self._number or signal.SIGINT) if self.is_set() else 0

    def set(self) -> None:
        self._flag.value = 1

    def clear(self) -> None:
        """Forget what was caught, to catch again; not while entered."""
        self._flag.value, self._signal, self._number, self._around_stop = 0, 0, 0, []

    def __enter__(self) -> Interrupt:
        self._reader, self._writer = socket.socketpair()
        self._writer.setblocking(False)
        # All: what their usual handlers raise inside a callback of llama.cpp would be lost.
        self._old_handlers = {number: signal.signal(number, self._on_signal) for number in obeyed_signals()}
        self._old_fd = signal.set_wakeup_fd(self._writer.fileno(), warn_on_full_buffer=False)
        self._watcher = threading.Thread(target=self._watch, args=(self._reader,), daemon=True)
        self._watcher.start()
        return self

    def __exit__(self, _kind: object, error: BaseException | None, _trace: object) -> None:
        if isinstance(error, Interrupted) and self.is_set():
            error.exit_code = self.exit_code
        signal.set_wakeup_fd(self._old_fd)
        for number, handler in self._old_handlers.items():
            signal.signal(number, handler)
        self._writer.close()  # the thread reads the end of the stream, closes its side and ends
        self._watcher.join()  # else it could set the flag late, after `clear`

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        if self._signal:
            if callable(before := self._old_handlers[signal.Signals(number)]):
                before(number, frame)
            raise KeyboardInterrupt
        self._signal = self._number = number
        self.set()

    def _watch(self, reader: socket.socket) -> None:
        with reader:
            while received := reader.recv(1):
                if received[0] in ENDING_SIGNALS:
                    self._number = self._number or received[0]
                    self.set()
                elif received[0] in self._old_handlers:  # Ctrl-Z, after `stop_with`
                    self._stop()

    def _stop(self) -> None:
        """Stop the process, and the clock, until the shell continues it."""
        before, since = self._stops[0], perf_counter()
        self._stops = before, since
        with ExitStack() as stack:
            for around in self._around_stop:
                stack.enter_context(around())
            signal.pthread_kill(threading.get_ident(), signal.SIGSTOP)
        self._stops = before + perf_counter() - since, None
