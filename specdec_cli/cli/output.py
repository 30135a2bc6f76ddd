"""What commands print: `--json` as one object, else tables and lines."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from specdec_cli.decoding.errors import UsageError

if TYPE_CHECKING:
    from rich.console import RenderableType

    from specdec_cli.decoding.types import Event
    from specdec_cli.display.run_report import RunRecord


class EventDisplay(Protocol):
    """What takes the events of an answer: a display, or a recording."""

    def show(self, event: Event) -> None: ...
    def close(self) -> None: ...


def json_text(value: object, indent: int | None = None) -> str:
    """JSON that a terminal can show: ASCII, with all control characters escaped, DEL too."""
    return json.dumps(value, indent=indent).replace("\x7f", "\\u007f")


@contextmanager
def writing(path: Path) -> Iterator[None]:
    """Raise UsageError if the file, which the block makes, cannot be made."""
    try:
        yield
    except OSError as error:
        raise UsageError(f"cannot write {path}: {error.strerror}", "Name another file.") from None


def say_written(path: Path) -> None:
    """Tell, on stderr, what file there is now."""
    from specdec_cli.pairs.results import format_bytes

    print(f"Wrote {path}, {format_bytes(path.stat().st_size)}.", file=sys.stderr)


def print_json(*results: object, indent: int | None = None) -> None:
    """Print the fields of results, all in one object, in one line."""
    import msgspec

    fields: dict[str, Any] = {}
    for result in results:
        fields |= msgspec.to_builtins(result, enc_hook=str)
    print(json_text(fields, indent), flush=True)


def print_parts(
    *parts: RenderableType, stderr: bool = False, style: str | None = None, pipe_width: int | None = None
) -> None:
    """Print tables and lines, as wide as the terminal is. pipe_width: cells of what is no terminal, if not 80."""
    from specdec_cli.display.terminal import SafeConsole

    console = SafeConsole(stderr=stderr)
    if pipe_width and not console.is_terminal and "COLUMNS" not in os.environ:
        console.width = pipe_width
        with console.capture() as printed:
            console.print(*parts, sep="\n", style=style)
        lines = (line.rstrip() for line in printed.get().splitlines())  # tables fill their last column
        print(*lines, sep="\n", file=console.file)
        return
    for part in parts:
        console.print(part, style=style)


def print_report(run: RunRecord, verbose: bool) -> None:
    """The report of a run on stderr; verbose: all that is known of it."""
    from specdec_cli.display.run_report import run_details, run_report

    print_parts(run_report(run), *([run_details(run)] if verbose else []), stderr=True)
