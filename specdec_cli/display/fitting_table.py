"""A table that leaves out its last columns where a screen has no room for them."""

from collections.abc import Sequence
from dataclasses import dataclass, field

from rich.cells import cell_len
from rich.console import Console, ConsoleOptions, RenderResult
from rich.table import Table
from rich.text import Text

_NAME_WIDTH = 14
"""Of the first column, which may fold, and is shown on the narrowest screen."""


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
        shown, room = 1, options.max_width - min(widths[0], _NAME_WIDTH) - 1
        for width in widths[1:]:
            room -= (min(width, self.least) if self.folds else width) + 1
            shown += room >= 0
        table = Table(box=None, padding=(0, 1, 0, 0), header_style="bold")
        table.add_column(self.columns[0], min_width=min(widths[0], _NAME_WIDTH), overflow="fold")
        for name in self.columns[1:shown]:
            right = name and not self.folds
            table.add_column(name, justify="right" if right else "left", no_wrap=not self.folds, overflow="fold")
        for cells, style in self.rows:
            table.add_row(*cells[:shown], style=style)
        yield table

    def _texts(self) -> list[list[str]]:
        """The rows as text; one that has a first cell alone, a heading, is filled up."""
        return [[cell.plain for cell in cells] + [""] * (len(self.columns) - len(cells)) for cells, _ in self.rows]
