"""The tables of all displays: plain ones, labels with lines of text, and tables that leave out what doesn't fit."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from rich.cells import cell_len
from rich.console import Console, ConsoleOptions, RenderResult
from rich.containers import Lines
from rich.measure import Measurement
from rich.table import Table
from rich.text import Text

from specdec_cli.display.terminal import safe


def plain_table(
    columns: Iterable[str], left: Sequence[str], whole: Sequence[str] = (), header: str = "bold", gap: int = 1
) -> Table:
    """An empty table without lines, justified to the right. left: the columns that are not; whole: those that are never
    folded.
    """
    table = Table(box=None, padding=(0, gap, 0, 0), header_style=header)
    for name in columns:
        table.add_column(name, justify="left" if name in left else "right", no_wrap=name in whole, overflow="fold")
    return table


@dataclass(frozen=True, slots=True)
class Folding:
    """Text for a cell. A word wider than the cell, such as a path, breaks after `/`, `-` or `_`, or before `.gguf`."""

    text: str

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        text = _WORD.sub(lambda word: _folded(word[0], options.max_width), safe(self.text))
        yield Text(text, overflow="fold")

    def __rich_measure__(self, console: Console, options: ConsoleOptions) -> Measurement:
        text = safe(self.text)
        parts = (part for word in text.split() for part in _BREAKS.split(word))
        return Measurement(max(map(cell_len, parts), default=0), cell_len(text))


_MIN = 12  # cells that prose takes
_WORD, _BREAKS = re.compile(r"\S+"), re.compile(r"(?<=[/\-_])|(?=\.[A-Za-z])")


def _folded(word: str, width: int) -> str:
    lines = [""]
    for part in _BREAKS.split(word) if cell_len(word) > width else [word]:
        if lines[-1] and cell_len(lines[-1] + part) > width:
            lines.append("")
        lines[-1] += part
    return "\n".join(lines)


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
                grid.add_row(name if i == 0 else "", Folding(line))
    return grid


def bullets(lines: Iterable[str]) -> Table:
    grid = Table.grid(padding=(0, 1))
    for line in lines:
        grid.add_row("-", line)
    return grid


def note_lines(notes: Iterable[str]) -> list[Text]:
    return [Text(f"note: {note}", style="yellow") for note in notes]


class _EvenText(Text):
    """Wraps into lines of about the same length, so that no word is alone on the last one."""

    def wrap(self, console: Console, width: int, **options: Any) -> Lines:
        lines = super().wrap(console, width, **options)
        while width > 1 and len(narrower := super().wrap(console, width - 1, **options)) == len(lines):
            lines, width = narrower, width - 1
        return lines


@dataclass
class FittingTable:
    """A table that leaves out the columns that don't fit.

    columns: their titles, the most important first. Only the first column and the `prose` columns may take several
    lines; with `folds` all columns are prose. first: how narrow the first column may get, in cells. Prose, the first
    column and columns without a title are aligned to the left.
    """

    columns: Sequence[str]
    folds: bool = False
    prose: Sequence[str] = ()
    gap: int = 1
    first: int = 14
    rows: list[tuple[list[Text], str]] = field(default_factory=list)

    def add(self, cells: Sequence[Text | str], style: str = "") -> None:
        kind = _EvenText if self.folds else Text
        self.rows.append(([kind(cell) if isinstance(cell, str) else cell for cell in cells], style))

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        widths = [max(map(cell_len, cells)) for cells in zip(self.columns, *self._texts(), strict=True)]
        first, prose = min(widths[0], self.first, options.max_width), self.columns if self.folds else self.prose
        shown, room = 1, options.max_width - first
        for name, width in zip(self.columns[1:], widths[1:], strict=True):
            room -= self.gap + (min(width, _MIN) if name in prose else width)
            shown += room >= 0
        whole = [name for name in self.columns[1:] if name not in prose]
        whole += self.columns[:1] if widths[0] == first <= options.max_width else []
        table = plain_table(self.columns[:shown], (self.columns[0], "", *prose), whole, gap=self.gap)
        table.columns[0].min_width, table.pad_edge = first, False
        for cells, style in self.rows:
            table.add_row(*cells[:shown], style=style)
        yield table

    def _texts(self) -> list[list[str]]:
        """The rows as text; one that has a first cell alone, a heading, is filled up."""
        return [[cell.plain for cell in cells] + [""] * (len(self.columns) - len(cells)) for cells, _ in self.rows]
