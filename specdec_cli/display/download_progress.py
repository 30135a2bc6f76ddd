"""A download as it goes: bars on a terminal, a line for each file elsewhere."""

import sys
from collections.abc import Sequence
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

from specdec_cli.display.safe_console import SafeConsole
from specdec_cli.display.theme import can_paint
from specdec_cli.pairs.pair_download import PlannedFile
from specdec_cli.user_files import format_bytes

_LINES = {"check": "checking", "wait": "waiting: another process is fetching"}
_STATES = {"check": "checking", "wait": "another specdec fetches it", "done": "done"}


class DownloadDisplay(ExitStack):
    """Shows on stderr how far the files of a pair have come. On a terminal all at once, with rate and time left."""

    def __init__(self, files: Sequence[PlannedFile]) -> None:
        super().__init__()
        self._out = SafeConsole(stderr=True, soft_wrap=True)
        self._begun = ""  # a new attempt at the same file needs no new line
        self._sizes = {file.name: file.size for file in files}
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
            for file in files:
                name = file.name.rpartition("/")[2]
                name = name if len(name) <= 36 else f"…{name[-35:]}"  # quantisations and parts differ at the end
                self._tasks[file.name] = self._bars.add_task(name, total=file.size, state="")
            self.callback(self._bars.stop)

    def __call__(self, name: str, state: str, done: int) -> None:
        """Show what happens to a file, and how many bytes of it are here. See `hub.download.DownloadProgress`."""
        if self._tasks:
            self._bars.start()
            if state == "begin":  # what was here before says nothing of the rate
                self._bars.reset(self._tasks[name], completed=done)
            self._bars.update(self._tasks[name], completed=done, state=_STATES.get(state, ""))
        elif state == "begin" and name != self._begun:
            rest = f", {format_bytes(done)} are here already" if done else ""
            self._out.print(f"fetching {name} ({format_bytes(self._sizes[name])}{rest})")
            self._begun = name
        elif state in _LINES:
            self._out.print(f"{_LINES[state]} {name}")
