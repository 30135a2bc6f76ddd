"""Parts that reports share: labelled lines, notes, spans of time."""

from collections.abc import Iterable, Mapping, Sequence

from rich.table import Table
from rich.text import Text


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


def bar(share: float, cells: int) -> str:
    """A share of 1 as so many blocks at most, at least one."""
    return "█" * max(round(cells * share), 1)


def spark(values: Sequence[float], top: float | None = None) -> str:
    """Values from 0 on as blocks of eight heights. top: what the highest block stands for; None: the highest value."""
    highest = top or max(values, default=0) or 1
    return "".join("▁▂▃▄▅▆▇█"[min(int(value / highest * 7.999), 7)] for value in values)
