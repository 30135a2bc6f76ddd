"""The making of a draft as it goes, and what came of it."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Iterable
from types import TracebackType
from typing import Any, TextIO

from rich.console import Console, RenderableType
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeElapsedColumn
from rich.table import Table
from rich.text import Text

from specdec_cli.display.pair_tables import size
from specdec_cli.display.theme import safe


class CopyDisplay:
    """Shows on stderr, if it is a terminal, how many tensors of a copy are done."""

    def __init__(self, what: str, tensors: int, silent: bool, stream: TextIO | None = None) -> None:
        stream = stream or sys.stderr
        console = Console(file=stream, highlight=False)
        self._bar: Progress | None = None
        if not silent and stream.isatty() and not console.is_dumb_terminal:
            self._bar = Progress(
                TextColumn("{task.description}", markup=False),
                BarColumn(bar_width=None),
                MofNCompleteColumn(),
                TextColumn("tensors"),
                TimeElapsedColumn(),
                console=console,
                transient=True,
            )
            self._task: TaskID = self._bar.add_task(safe(what), total=tensors)

    def __enter__(self) -> CopyDisplay:
        if self._bar:
            self._bar.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._bar:
            self._bar.stop()

    def begun(self, number: int) -> None:
        """The tensor of this number has its turn; those before it are done."""
        if self._bar:
            self._bar.update(self._task, completed=number - 1)


def plan(layers: int, keep: int, prompts: int, tokens: int, trials: int, seconds: float) -> str:
    """What a search will do, and how long it may take."""
    about = f"about {seconds:,.0f} s" if seconds < 120 else f"about {seconds / 60:,.0f} minutes"
    return (
        f"{layers} layers, {keep} to keep: {trials} trials on {prompts} of the target's answers ({tokens} tokens), "
        f"{about}\nlayers  agreement       size  kept"
    )


def row(kept: str, count: int, agreement: float, bytes_: int) -> str:
    """A line of a search's table."""
    return f"{count:6}  {agreement:9.1%}  {size(bytes_):>9}  {kept}"


def report(result: dict[str, Any]) -> list[RenderableType]:
    """A finished draft, as the object that `--json` prints tells it."""
    table = Table.grid(padding=(0, 2))
    table.add_column(style="dim", no_wrap=True)
    table.add_column(overflow="fold")
    share = result["bytes"] / max(1, result["target_bytes"])
    pruned = result["kept"] and len(result["layers"]) < result["of"]
    rows = {
        "draft": result["out"],
        "of": result["target"],
        "layers": f"{result['kept']} ({len(result['layers'])} of {result['of']})" if pruned else "",
        "type": _type(result["type"], result["unfit"]),
        "agreement": "" if result["agreement"] is None else f"{result['agreement']:.1%} of the target's own tokens",
        "size": f"{size(result['bytes'])}, {share:.0%} of the target's {size(result['target_bytes'])}",
        "took": f"{result['seconds']:,.1f} s",
    }
    for name, value in rows.items():
        if value:
            table.add_row(name, Text(safe(value)))
    notes = [Text(f"note: {safe(note)}", style="yellow") for note in (*_unfit(result["unfit"]), *result["notes"])]
    return [table, *notes]


def use(result: dict[str, Any]) -> str:
    """The command that drafts with it, to be copied: whatever prints it must not wrap it."""
    return f"Use it:  {safe(result['run'])}"


def _type(name: str, unfit: list[dict[str, Any]]) -> str:
    """A draft's type, and what most of its tensors are instead where their rows do not fit."""
    if not unfit:
        return name
    (got, count), *_ = Counter(found["got"] for found in unfit).most_common()
    return f"{name} by name; {count} tensors are {got}"


def _unfit(unfit: list[dict[str, Any]]) -> list[str]:
    """What llama.cpp gave another type, since the rows did not fit the one asked for."""
    found: dict[str, list[dict[str, Any]]] = {}
    for tensor in unfit:
        found.setdefault(tensor["got"], []).append(tensor)
    return [
        f"{len(tensors)} tensor{'s' if len(tensors) > 1 else ''} became {got}: rows of "
        f"{_either(f'{columns:,}' for columns in sorted({tensor['columns'] for tensor in tensors}))} values do not fit "
        f"{_either(sorted({tensor['wanted'] for tensor in tensors}))}"
        for got, tensors in found.items()
    ]


def _either(names: Iterable[str]) -> str:
    return " or ".join(names)
