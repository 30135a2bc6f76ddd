"""A download as it goes: bars on a terminal, a line for each file elsewhere."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Protocol

from rich.console import Console
from rich.progress import (
    BarColumn,
    DownloadColumn,
    Progress,
    TaskID,
    TextColumn,
    TimeRemainingColumn,
    TransferSpeedColumn,
)
from rich.text import Text

from specdec_cli.display.theme import safe
from specdec_cli.results import format_bytes

_LINES = {"begin": "fetching", "check": "checking", "wait": "waiting: another process is fetching"}
_STATES = {"check": "checking", "wait": "another specdec fetches it", "done": "done"}


class File(Protocol):
    """What is shown of a file. size: bytes."""

    @property
    def name(self) -> str: ...
    @property
    def size(self) -> int: ...


class DownloadDisplay:
    """Shows on stderr how far the files of a pair have come. On a terminal all at once, with rate and time left."""

    def __init__(self, files: Sequence[File]) -> None:
        self._out = Console(stderr=True, highlight=False, soft_wrap=True)
        self._last: tuple[File, str] | None = None  # a new attempt at a file needs no new line
        self._tasks: dict[str, TaskID] = {}
        bars = Console(stderr=True, highlight=False)
        self._bars = Progress(
            TextColumn("{task.description}", markup=False),
            BarColumn(bar_width=None),
            DownloadColumn(),
            TransferSpeedColumn(),
            TimeRemainingColumn(),
            TextColumn("{task.fields[state]}"),
            console=bars,
        )
        if sys.stderr.isatty() and not bars.is_dumb_terminal:
            for file in files:
                self._tasks[file.name] = self._bars.add_task(safe(_short(file.name)), total=file.size, state="")

    def __enter__(self) -> DownloadDisplay:
        return self

    def __exit__(self, *_: object) -> None:
        if self._tasks:
            self._bars.stop()

    def __call__(self, file: File, state: str, done: int) -> None:
        """Show what happens to a file, and how many bytes of it are here. See `hub.download.DownloadProgress`."""
        if self._tasks:
            task = self._tasks[file.name]
            self._bars.start()
            if state == "begin":  # what was here before says nothing of the rate
                self._bars.reset(task, completed=done)
            self._bars.update(task, completed=done, state=_STATES.get(state, ""))
        elif state in _LINES and (file, state) != self._last:
            rest = f", {format_bytes(done)} are here already" if done else ""
            size = f" ({format_bytes(file.size)}{rest})" if state == "begin" else ""
            self._out.print(Text(safe(f"{_LINES[state]} {file.name}{size}")))
        self._last = (file, state) if state == "begin" else self._last


def _short(name: str) -> str:
    """A file's name, its beginning cut if it is long: what tells quantisations and parts apart is at the end."""
    name = name.rpartition("/")[2]
    return name if len(name) <= 36 else f"…{name[-35:]}"
