"""A race on the screen: two answers side by side as they come, then who won and by how much."""

from __future__ import annotations

from rich import box
from rich.columns import Columns
from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from specdec_cli.decoding.metrics import Metrics
from specdec_cli.decoding.types import Event, Step
from specdec_cli.display.theme import LABEL, STYLES
from specdec_cli.evaluation.race_result import RaceResult

_ROWS = 16
"""Lines of an answer on the screen, where the terminal has as many."""
_BAR = 24


class RaceView:
    """Paints the events of a race. Use it in a `with` block; without a terminal it shows nothing."""

    def __init__(self, console: Console, rounds: int, title: str) -> None:
        self._console, self._rounds, self._title = console, rounds, title
        self._texts = {False: Text(), True: Text()}
        self._metrics = {False: Metrics(), True: Metrics()}
        self._done = {False: 0, True: 0}
        self._live = Live(console=console, refresh_per_second=15, transient=True, get_renderable=self._render)

    def __enter__(self) -> RaceView:
        if self._console.is_terminal:
            self._live.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._live.stop()

    def show(self, drafts: bool, event: Event) -> None:
        if isinstance(event, Step):
            if event.index == 0:
                self._texts[drafts], self._metrics[drafts] = Text(), Metrics()
                self._done[drafts] += 1
            for token in event.tokens:
                self._texts[drafts].append(token.text.expandtabs(4), STYLES[token.origin])
        self._metrics[drafts].add(event)

    def _render(self) -> RenderableType:
        width = max((self._console.width - 1) // 2, 20)
        rows = max(min(_ROWS, self._console.height - 6), 3)
        panels = [self._panel(drafts, width, rows) for drafts in (False, True)]
        number = max(self._done.values())
        return Group(Text(f"{self._title}   round {number} of {self._rounds}", "bold"), Columns(panels, padding=(0, 0)))

    def _panel(self, drafts: bool, width: int, rows: int) -> Panel:
        lines = self._texts[drafts].split("\n", allow_blank=True)[-rows:]
        for line in lines:
            line.truncate(width - 4, overflow="ellipsis")
        body = Text("\n").join([*lines, *[Text()] * (rows - len(lines))])
        metrics = self._metrics[drafts]
        speed = f"{metrics.tokens_per_s:,.0f} tokens/s" if metrics.tokens_per_s else ""
        title = "with drafts" if drafts else "the target alone"
        return Panel(
            body, box.ROUNDED, title=title, subtitle=speed, width=width, title_align="left", subtitle_align="left"
        )


def result(found: RaceResult) -> RenderableType:
    """Who won and by how much, then what the same drafts would bring on other machines."""
    same = "same text, token for token" if found.divergence is None else f"the text differs: {found.divergence}"
    speeds = Table.grid(padding=(0, 2))
    most = max(found.alone_tokens_per_s, found.drafted_tokens_per_s)
    for name, speed in (("with drafts", found.drafted_tokens_per_s), ("alone", found.alone_tokens_per_s)):
        speeds.add_row(f"  {name}", f"{speed:,.0f} tokens/s", _bar(speed / most))
    machines = Table.grid(padding=(0, 2))
    most = max((each.speedup for each in found.elsewhere), default=1.0)
    for each in found.elsewhere:
        description = Text(each.description, LABEL, overflow="ellipsis", no_wrap=True)
        machines.add_row(f"  {each.machine}", f"{each.speedup:.2f}x", _bar(each.speedup / most), description)
    said = [Text(f"{found.speedup} {found.speedup.difference}, {same}", "bold")]
    if found.speedup.difference == "inconclusive":
        said.append(Text("Other programs disturb this machine: try again when it is quiet.", "yellow"))
    title = Text("The same drafts elsewhere, predicted from what passes cost there:", "bold")
    return Group(*said, speeds, Text(), title, machines)


def _bar(share: float) -> str:
    return "\u2588" * max(round(_BAR * share), 1)
