"""The tables of all displays: plain ones, labels with lines of text, and tables that leave out what does not fit."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from copy import copy
from dataclasses import dataclass, field, replace

from rich.cells import cell_len
from rich.console import Console, ConsoleOptions, RenderResult
from rich.measure import Measurement
from rich.table import Table
from rich.text import Text

UNCUT = 10_000
"""Cells that hold any line: the width of what is no terminal."""
_NARROW = 72
_FIRST_WIDTH = 14
"""Of a first column that may fold, and is shown on the narrowest screen."""


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


@dataclass
class FittingTable:
    """columns: their titles, the most important first. folds: whether cells may take several lines, of `least`
    characters or more; else all but the first column are aligned to the right, those without a title to the left.
    """

    columns: Sequence[str]
    folds: bool = False
    least: int = 12
    rows: list[tuple[list[Text], str]] = field(default_factory=list)

    def add(self, cells: Sequence[Text | str], style: str = "") -> None:
        self.rows.append(([Text(cell) if isinstance(cell, str) else cell for cell in cells], style))

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        widths = [max(map(cell_len, cells)) for cells in zip(self.columns, *self._texts(), strict=True)]
        shown, room = 1, options.max_width - min(widths[0], _FIRST_WIDTH) - 1
        for width in widths[1:]:
            room -= (min(width, self.least) if self.folds else width) + 1
            shown += room >= 0
        left, whole = (self.columns, ()) if self.folds else ((self.columns[0], ""), self.columns[1:])
        table = plain_table(self.columns[:shown], left, whole)
        table.columns[0].min_width = min(widths[0], _FIRST_WIDTH)
        for cells, style in self.rows:
            table.add_row(*cells[:shown], style=style)
        yield table

    def _texts(self) -> list[list[str]]:
        """The rows as text; one that has a first cell alone, a heading, is filled up."""
        return [[cell.plain for cell in cells] + [""] * (len(self.columns) - len(cells)) for cells, _ in self.rows]


@dataclass(frozen=True, slots=True)
class CutTable:
    """A table that cuts its texts only where they do not fit, and leaves some of its columns out on a narrow screen."""

    table: Table
    wide_only: tuple[str, ...]

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        table = copy(self.table)
        whole = copy(self.table)
        whole.columns, whole.expand = [replace(column, max_width=None) for column in table.columns], False
        if Measurement.get(console, options.update(max_width=UNCUT), whole).maximum <= options.max_width:
            table = whole
        elif options.max_width < _NARROW:
            table.columns = [column for column in table.columns if column.header not in self.wide_only]
            table.expand = False
        yield table
