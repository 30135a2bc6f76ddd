"""A thread that calls functions for others, one after another."""

from __future__ import annotations

from collections.abc import Callable
from queue import SimpleQueue
from threading import Event, Thread
from typing import Any


class PendingCall:
    """A call of a function. Once `done` is set, it has a result or an error."""

    def __init__(self, function: Callable[..., Any], arguments: tuple[Any, ...]) -> None:
        self.function, self.arguments = function, arguments
        self.result: Any = None
        self.error: Exception | None = None
        self.done = Event()


class Worker:
    """The thread; it ends with the process."""

    def __init__(self, name: str) -> None:
        self._calls: SimpleQueue[PendingCall] = SimpleQueue()
        Thread(target=self._work, name=name, daemon=True).start()

    def submit(self, call: PendingCall) -> None:
        """Have it done as soon as earlier ones are."""
        self._calls.put(call)

    def _work(self) -> None:
        while True:
            call = self._calls.get()
            try:
                call.result = call.function(*call.arguments)
            except Exception as error:
                call.error = error
            call.done.set()
