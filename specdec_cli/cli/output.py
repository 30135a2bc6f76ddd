"""What commands print and write: an answer as it comes, one object for `--json`, tables and lines otherwise."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from specdec_cli.decoding.errors import SpecdecError, UsageError
from specdec_cli.display.terminal import SafeConsole, can_paint, close, status_line

if TYPE_CHECKING:
    from rich.console import RenderableType
    from rich.style import Style

    from specdec_cli.decoding.types import Origin
    from specdec_cli.display.live import PlainDisplay
    from specdec_cli.display.run_report import RunRecord
    from specdec_cli.engine.session import Generation, Session
    from specdec_cli.measure.traces import TraceFile

_UNCUT = 10_000
"""Cells that hold any line."""


def json_text(value: object, indent: int | None = None) -> str:
    """JSON that a terminal can show: ASCII, with all control characters escaped, DEL too."""
    return json.dumps(value, indent=indent).replace("\x7f", "\\u007f")


@contextmanager
def writing(path: Path) -> Iterator[None]:
    """Raise UsageError if the block cannot make the file."""
    try:
        yield
    except OSError as error:
        raise UsageError(f"cannot write {path}: {error.strerror}", "Name another file.") from None


def require_writable_file(path: Path) -> None:
    """Raise UsageError if a file cannot be written, before minutes of measuring."""
    from specdec_cli.user_files import try_out

    with writing(path):
        try_out(path)


def write_file(path: Path, content: str) -> None:
    """Write a file whole, and say so on stderr."""
    from specdec_cli.user_files import format_bytes, write_whole

    write_whole(path, content)
    print(f"Wrote {path}, {format_bytes(path.stat().st_size)}.", file=sys.stderr)


def print_json(*results: object, indent: int | None = None) -> None:
    """Print the fields of all results as one object."""
    import msgspec

    fields: dict[str, Any] = {}
    for result in results:
        fields |= msgspec.to_builtins(result, enc_hook=str)
    print(json_text(fields, indent), flush=True)


def print_parts(*parts: RenderableType, stderr: bool = False, style: str | None = None, uncut: bool = False) -> None:
    """Print tables and lines, as wide as the terminal. uncut: without a terminal, don't cut at 80 columns."""
    console = SafeConsole(stderr=stderr)
    if uncut and not console.file.isatty() and "COLUMNS" not in os.environ:
        console.width = _UNCUT
        with console.capture() as printed:
            console.print(*parts, sep="\n", style=style)
        lines = (line.rstrip() for line in printed.get().splitlines())  # tables fill their last column
        try:
            print(*lines, sep="\n", file=console.file, flush=True)  # as it is: it may have colours
        except BrokenPipeError:
            console.on_broken_pipe()
        return
    for part in parts:
        console.print(part, style=style)


def print_report(run: RunRecord, verbose: bool) -> None:
    """The report of a run on stderr; verbose: with the details."""
    from specdec_cli.display.run_report import run_details, run_report

    print_parts(run_report(run), *([run_details(run)] if verbose else []), stderr=True)


def print_run_report(session: Session, answer: Generation, verbose: bool, legend_too: bool = True) -> None:
    """The report on stderr. legend_too: explain the colours, if any."""
    from specdec_cli.display.parts import legend
    from specdec_cli.display.run_report import RunRecord
    from specdec_cli.engine.contexts import memory_of
    from specdec_cli.measure.recorded_settings import RecordedSettings

    result, pair, models = answer.result, session.pair, session.models
    if legend_too and can_paint(sys.stdout) and result.metrics.drafted:
        print_parts(legend(), stderr=True)
    paths = {"target": pair.target_path, "draft": pair.draft_path, "draft_small": pair.small_path}
    files = {role: path and str(path) for role, path in paths.items()}
    adapters = {"lora": tuple(map(str, pair.adapters)), "lora_draft": tuple(map(str, pair.draft_adapters))}
    corpus = [f"a corpus of {len(session.weights.corpus):,} tokens"] if session.weights.corpus else []
    record = RunRecord(
        metrics=result.metrics,
        settings=RecordedSettings.of({**result.settings.recorded(), **files, **adapters}),
        notes=result.notes,
        baseline=result.baseline,
        unmeasured=result.unmeasured,
        undrafted=result.undrafted,
        load_s=session.weights.load_s,
        measuring_s=session.costs.measured_s,
        memory=memory_of(models),
        rounding=str(session.costs.agreement or ""),
        machine=[*corpus, result.conditions],
    )
    print_report(record, verbose)


def show_answer(
    session: Session,
    answer: Generation,
    trace: TraceFile | None = None,
    shown: bool = True,
    quiet: bool = False,
    styles: Mapping[Origin, Style] | None = None,
) -> SpecdecError | BrokenPipeError | None:
    """Write an answer and show it. Returns the error that ended it early: the target failed, or the reader went away.

    shown: False if only the trace takes it. Raises Interrupted if Ctrl-C comes before the prompt is read.
    """
    from specdec_cli.display.live import LiveDisplay, on_stdout

    silent = quiet or not shown
    with status_line("measuring which passes round alike", silent or not session.settings.bitwise):
        answer.prepare()
    display = on_stdout(answer.result.settings.max_tokens, quiet, styles) if shown else None
    session.clock = session.interrupt.clock
    session.interrupt.stop_with(*([display.suspended] if isinstance(display, LiveDisplay) else []))
    displays: list[TraceFile | LiveDisplay | PlainDisplay] = [part for part in (trace, display) if part is not None]
    if display and not quiet:
        session.models.show_reading(display.reading)
    error: SpecdecError | BrokenPipeError | None = None
    try:
        try:
            for event in answer:
                for part in displays:
                    part.show(event)
        except SpecdecError as failure:
            error = failure
        finally:
            session.models.show_reading(None)  # later prompts are not of this answer
            if display is not None:
                display.close()
    except BrokenPipeError as gone:
        close(sys.stdout)
        error = error or gone
    return error
