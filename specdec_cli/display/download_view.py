"""Shows the progress of downloads."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from contextlib import ExitStack

from rich.progress import (
    BarColumn,
    DownloadColumn,
    Progress,
    TaskID,
    TextColumn,
    TimeRemainingColumn,
    TransferSpeedColumn,
)

from specdec_cli.display.terminal import SafeConsole, can_paint
from specdec_cli.user_files import format_bytes

_LINES = {"check": "checking", "wait": "waiting, because another process is downloading"}
_STATES = {"check": "checking", "wait": "another specdec downloads it", "done": "done"}


class DownloadDisplay(ExitStack):
    """Shows the progress of downloads on stderr. On a terminal it shows all files, with rate and time left."""

    def __init__(self, sizes: Mapping[str, int]) -> None:
        super().__init__()
        self._out = SafeConsole(stderr=True, soft_wrap=True)
        self._begun = ""  # a new attempt at the same file gets no new line
        self._sizes = sizes
        self._tasks: dict[str, TaskID] = {}
        self._bars = Progress(
            TextColumn("{task.description}", markup=False),
            BarColumn(bar_width=None),
            DownloadColumn(),
            TransferSpeedColumn(),
            TimeRemainingColumn(),
            TextColumn("{task.fields[state]}"),
            console=SafeConsole(stderr=True),
        )
        if can_paint(sys.stderr):
            for name, size in sizes.items():
                short = name.rpartition("/")[2]
                short = short if len(short) <= 36 else f"…{short[-35:]}"  # quantisations and parts differ at the end
                self._tasks[name] = self._bars.add_task(short, total=size, state="")
            self.callback(self._bars.stop)

    def __call__(self, name: str, state: str, done: int) -> None:
        """Show the state of a file, and how many of its bytes are here. See `hub.download.DownloadProgress`."""
        if self._tasks:
            self._bars.start()
            if state == "begin":  # what was here before says nothing about the rate
                self._bars.reset(self._tasks[name], completed=done)
            self._bars.update(self._tasks[name], completed=done, state=_STATES.get(state, ""))
        elif state == "begin" and name != self._begun:
            rest = f", {format_bytes(done)} already here" if done else ""
            self._out.print(f"downloading {name} ({format_bytes(self._sizes[name])}{rest})")
            self._begun = name
        elif state in _LINES:
            self._out.print(f"{_LINES[state]} {name}")
