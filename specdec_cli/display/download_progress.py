"""A download as it goes: bars on a terminal, a line for each file elsewhere."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from types import TracebackType
from typing import Protocol, TextIO

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

from specdec_cli.display.pair_tables import size
from specdec_cli.display.theme import safe


class File(Protocol):
    """What is shown of a file. size: bytes."""

    @property
    def name(self) -> str: ...
    @property
    def size(self) -> int: ...


class DownloadDisplay:
    """Shows on stderr how far the files of a pair have come. On a terminal all at once, with rate and time left."""

    def __init__(self, files: Sequence[File], silent: bool, stream: TextIO | None = None) -> None:
        stream = stream or sys.stderr
        self._silent = silent
        self._out = Console(file=stream, highlight=False, soft_wrap=True)
        self._bars: Progress | None = None
        self._tasks: dict[str, TaskID] = {}
        self._now: File | None = None
        bars = Console(file=stream, highlight=False)
        if not silent and stream.isatty() and not bars.is_dumb_terminal:
            self._bars = Progress(
                TextColumn("{task.description}", markup=False),
                BarColumn(bar_width=None),
                DownloadColumn(),
                TransferSpeedColumn(),
                TimeRemainingColumn(),
                TextColumn("{task.fields[state]}"),
                console=bars,
            )
            for file in files:
                label = safe(_short(file.name))
                self._tasks[file.name] = self._bars.add_task(label, total=file.size, state="")

    def __enter__(self) -> DownloadDisplay:
        if self._bars:
            self._bars.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._bars:
            self._bars.stop()

    def start(self, file: File, done: int) -> None:
        """A file is being fetched; so many bytes of it are there already."""
        if self._bars:
            task = self._tasks[file.name]
            self._bars.reset(task, completed=done)
            self._bars.update(task, state="")
        elif self._now != file:
            rest = f", {size(done)} are here already" if done else ""
            self._say(f"fetching {file.name} ({size(file.size)}{rest})")
        self._now = file

    def advance(self, count: int) -> None:
        """So many bytes more have come; fewer if a server made us begin again."""
        if self._bars and self._now:
            self._bars.advance(self._tasks[self._now.name], count)

    def check(self, file: File) -> None:
        """The file is complete and its checksum is being computed."""
        if self._bars:
            self._bars.update(self._tasks[file.name], completed=file.size, state="checking")
        else:
            self._say(f"checking {file.name}")

    def done(self, file: File) -> None:
        """The file is in the cache, whole."""
        if self._bars:
            self._bars.update(self._tasks[file.name], completed=file.size, state="done")

    def wait(self, file: File) -> None:
        """Another process is downloading this very file."""
        if self._bars:
            self._bars.update(self._tasks[file.name], state="another specdec fetches it")
        else:
            self._say(f"waiting: another process is fetching {file.name}")

    def _say(self, text: str) -> None:
        if not self._silent:
            self._out.print(Text(safe(text)))


def _short(name: str) -> str:
    """A file's name, its beginning cut if it is long: what tells quantisations and parts apart is at the end."""
    name = name.rpartition("/")[2]
    return name if len(name) <= 36 else f"…{name[-35:]}"
