"""What displays share: how tokens look, labelled lines, notes, bars, spans of time."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

from rich.style import Style
from rich.table import Table
from rich.text import Text

if TYPE_CHECKING:
    from specdec_cli.decoding.types import Origin

STYLES: dict[Origin, Style] = {
    "accepted": Style(color="green"),
    "correction": Style(color="yellow", bold=True),
    "bonus": Style(color="cyan", underline=True),
    "plain": Style(),
    "forced": Style(italic=True),
}
"""Never colour alone: accepted is upright, a correction bold, a bonus underlined, a forced token italic, a rejected one
struck out.
"""

REJECTED = Style(color="red", strike=True)
LABEL = Style(dim=True)


def append_token(line: Text, text: str, style: Style) -> Text:
    """Append a token's text; spaces before it are neither underlined nor struck, which would look like other signs."""
    word = text.lstrip(" ")
    return line.append(text[: len(text) - len(word)]).append(word, style)


def legend() -> Text:
    """What the styles of tokens mean."""
    line = Text("kept", STYLES["accepted"], end="")
    line.append("  ").append("corrected", STYLES["correction"]).append("  ").append("bonus", STYLES["bonus"])
    return line.append("  ").append("rejected", REJECTED)


def label_grid() -> Table:
    """Labels and text with a hanging indent."""
    grid = Table.grid(padding=(0, 2))
    grid.add_column(style="dim", no_wrap=True)
    grid.add_column(overflow="fold")
    return grid


def lines_table(lines: Mapping[str, str | Sequence[str] | None]) -> Table:
    """Labels with a line of text or several each; labels without text are left out."""
    grid = label_grid()
    for name, value in lines.items():
        for i, line in enumerate([value] if isinstance(value, str) else value or ()):
            if line:
                grid.add_row(name if i == 0 else "", line)
    return grid


def note_lines(notes: Iterable[str]) -> list[Text]:
    return [Text(f"note: {note}", style="yellow") for note in notes]


def duration(seconds: float) -> str:
    return f"{seconds:.2f} s" if seconds >= 0.9995 else f"{seconds * 1000:.3g} ms"


def rough_duration(seconds: float) -> str:
    return f"{seconds:,.0f} s" if seconds < 120 else f"{seconds / 60:,.0f} minutes"


def bar(share: float, cells: int) -> str:
    """A share of 1 as so many blocks at most, at least one."""
    return "█" * max(round(cells * share), 1)


def spark(values: Sequence[float], top: float | None = None) -> str:
    """Values from 0 on as blocks of eight heights. top: what the highest block stands for; None: the highest value."""
    highest = top or max(values, default=0) or 1
    return "".join("▁▂▃▄▅▆▇█"[min(int(value / highest * 7.999), 7)] for value in values)


def plain_table(columns: Iterable[str], left: Sequence[str], gap: int = 1) -> Table:
    """An empty table whose columns are justified to the right but for some."""
    table = Table(box=None, padding=(0, gap, 0, 0), header_style="bold")
    for name in columns:
        table.add_column(name, justify="left" if name in left else "right")
    return table
