"""Showing an answer as it comes, and what is wrong with it afterwards."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from specdec_cli.cli.error_reporting import close
from specdec_cli.decoding.errors import SpecdecError
from specdec_cli.display.terminal import StderrBar, status_line

if TYPE_CHECKING:
    from specdec_cli.cli.output import EventDisplay
    from specdec_cli.engine.engine import Engine
    from specdec_cli.engine.generation import Generation
    from specdec_cli.measure.traces import TraceWriter


def show_answer(
    engine: Engine,
    answer: Generation,
    trace: TraceWriter | None = None,
    as_json: bool = False,
    quiet: bool = False,
) -> SpecdecError | None:
    """Run the prompt and show it. A reader that goes away ends the answer; a target that fails is told at the end."""
    from specdec_cli.display.live import LiveDisplay, on_stdout

    silent = quiet or as_json
    with status_line("measuring which passes round alike", silent or not engine.settings.bitwise):
        answer.prepare()
    display = None if as_json else on_stdout(engine.settings.max_tokens, quiet)
    engine.clock = engine.interrupt.clock
    engine.interrupt.stop_with(*([display.suspended] if isinstance(display, LiveDisplay) else []))
    displays: list[EventDisplay] = [part for part in (trace, display) if part is not None]
    if not silent:
        bar = display if isinstance(display, LiveDisplay) else StderrBar()
        engine.models.show_reading(bar.reading)
    error: SpecdecError | None = None
    try:
        try:
            for event in answer:
                for part in displays:
                    part.show(event)
        except SpecdecError as failure:
            error = failure
        engine.models.show_reading(None)  # what else is read is not the prompt of this answer
        if display is not None:
            display.close()
    except BrokenPipeError:
        close(sys.stdout)
    return error
