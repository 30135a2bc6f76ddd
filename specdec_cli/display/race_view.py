"""A race on the screen: two answers side by side as they're written, then the result."""

from __future__ import annotations

from statistics import geometric_mean
from typing import TYPE_CHECKING

from rich import box
from rich.columns import Columns
from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.padding import Padding
from rich.panel import Panel
from rich.style import Style
from rich.table import Table
from rich.text import Text

from specdec_cli.decoding.metrics import Metrics
from specdec_cli.decoding.types import Done, Event, Step
from specdec_cli.decoding.wording import counted
from specdec_cli.display.parts import STYLES, bar
from specdec_cli.display.terminal import can_paint

if TYPE_CHECKING:
    from specdec_cli.measure.race import RaceResult

_ROWS = 16
"""Lines of an answer on the screen, if the terminal has room."""
_BAR = 24
_NAMES = {True: "with drafts", False: "the target alone"}


class RaceView:
    """Shows the events of a race, and leaves its title on the screen. Use it in a `with` block. Without a terminal, it
    prints a line for each answer.

    Rich draws from its own thread, so it draws from a copy of each list: nothing is appended while a list is copied.
    """

    def __init__(self, console: Console, title: str) -> None:
        self._console, self._title = console, title
        self._painted = can_paint(console.file)
        self._parts: dict[bool, list[tuple[str, Style]]] = {False: [], True: []}
        self._metrics = {False: Metrics(), True: Metrics()}
        self._speeds: dict[bool, float | None] = {False: None, True: None}
        self._rounds = {False: 0, True: 0}
        self._ended = {False: True, True: True}
        self._live = Live(console=console, refresh_per_second=15, transient=True, get_renderable=self._render)

    def __enter__(self) -> RaceView:
        if self._painted:
            self._live.start()
        else:
            self._console.print(self._title)
        return self

    def __exit__(self, *_: object) -> None:
        self._live.stop()
        if self._painted:
            self._console.print(self._title)

    def show(self, drafts: bool, event: Event) -> None:
        if self._ended[drafts]:
            self._parts[drafts], self._metrics[drafts] = [], Metrics()
            self._rounds[drafts] += 1
        self._ended[drafts] = isinstance(event, Done)
        metrics = self._metrics[drafts]
        metrics.add(event)
        if isinstance(event, Step):
            self._parts[drafts].extend((token.text.expandtabs(4), STYLES[token.origin]) for token in event.tokens)
            self._speeds[drafts] = metrics.tokens_per_s
        elif isinstance(event, Done) and not self._painted:
            speed = f"{metrics.tokens_per_s or 0:,.0f} tokens/s"
            self._console.print(f"  round {self._rounds[drafts]}, {_NAMES[drafts]}: {speed}")

    def _render(self) -> RenderableType:
        width = max((self._console.width - 1) // 2, 20)
        title = Text(f"{self._title} Round {max(self._rounds.values())}.", "bold")
        above = len(title.wrap(self._console, max(self._console.width, 1)))
        rows = max(min(_ROWS, self._console.height - 5 - above), 3)
        panels = [self._panel(drafts, width, rows) for drafts in (False, True)]
        return Group(title, Columns(panels, padding=(0, 0)))

    def _panel(self, drafts: bool, width: int, rows: int) -> Panel:
        lines = Text.assemble(*self._parts[drafts][:]).split("\n", allow_blank=True)[-rows:]
        for line in lines:
            line.truncate(width - 4, overflow="ellipsis")
        body = Text("\n").join([*lines, *[Text()] * (rows - len(lines))])
        speed = self._speeds[drafts]
        below = f"{speed:,.0f} tokens/s" if speed else ""
        return Panel(
            body,
            box.ROUNDED,
            title=_NAMES[drafts],
            subtitle=below,
            width=width,
            title_align="left",
            subtitle_align="left",
        )


def result(found: RaceResult) -> RenderableType:
    """Which was faster and by how much, or why that isn't known. The speeds are geometric means over the rounds, so
    their ratio is the speedup.
    """
    same = "same text, token for token" if found.divergence is None else f"the text differs: {found.divergence}"
    if not found.alone:
        return Text("This machine is too busy: no round was completed. Try again when it's quiet.", "yellow")
    rounds, speedup = counted(len(found.alone), "round"), found.speedup
    if speedup and speedup.excludes_one:
        ending = f"{found.tokens_per_step:.1f} tokens/step"
        faster, alone = speedup.difference == "faster", "the target alone"
        claim = f"{speedup} as fast as {alone}" if faster else f"slower than {alone}: {speedup}"
        said = [Text(f"{claim} over {rounds}, {ending}, {same}", "bold")]
    elif speedup and speedup.difference == "no difference":
        said = [Text("These models are too small to gain from drafts on this processor.", "bold")]
        said.append(Text(f"{rounds}, {same}. specdec compare measures larger ones."))
    else:
        busy = "Other programs use this machine, so the speedup can't be measured. Try again when it's quiet."
        why = busy if speedup else "Nothing was drafted, so there is no speedup to measure."
        return Group(Text(why, "yellow"), Text(f"{rounds}, {same}"))
    speeds = Table.grid(padding=(0, 2))
    means = {"with drafts": geometric_mean(found.drafted), "alone": geometric_mean(found.alone)}
    for name, speed in means.items():
        speeds.add_row(f"  {name}", f"{speed:,.0f} tokens/s", bar(speed / max(means.values()), _BAR))
    return Group(*said, speeds)


def next_steps() -> RenderableType:
    steps = (
        ("specdec pull qwen2.5-coder-1.5b", "1.6 GB; specdec ls lists others"),
        ('specdec edit -p qwen2.5-coder-1.5b FILE "..."', "edits gain most, also on a CPU"),
        ('specdec run -p qwen2.5-coder-1.5b "..."', "on a CPU, its draft may not pay"),
        ("specdec compare -p qwen2.5-coder-1.5b", "does drafting pay here?"),
        ("specdec tune --what-if rtx-4090", "would it pay on an RTX 4090?"),
    )
    table = Table.grid(padding=(0, 2))
    table.add_column(overflow="fold")
    for command, what in steps:
        table.add_row(Padding(command, (0, 0, 0, 2)), what)
    return Group(Text("What to try next:"), table)
