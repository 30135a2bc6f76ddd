"""`specdec replay`: plays a recorded run again, or writes it as a page or a picture. It needs no model."""

from __future__ import annotations

import math
import sys
from collections.abc import Callable
from pathlib import Path
from time import sleep
from typing import TYPE_CHECKING, Annotated

import typer

from specdec_cli.cli import options as opt
from specdec_cli.cli.output import print_parts, print_report, require_writable_file, write_file
from specdec_cli.decoding.errors import UsageError
from specdec_cli.display.terminal import SafeConsole, can_paint

if TYPE_CHECKING:
    from specdec_cli.decoding.metrics import Metrics
    from specdec_cli.decoding.types import Event
    from specdec_cli.display.live import LiveDisplay, PlainDisplay
    from specdec_cli.llama.interrupt import Interrupt
    from specdec_cli.measure.recorded_settings import RecordedSettings


def replay(
    file: Annotated[Path, typer.Argument(help="A run recorded with: specdec run --trace FILE")],
    speed: Annotated[float | None, typer.Option(help="Speed, relative to the run's own. \\[default: 1]")] = None,
    step: Annotated[
        bool, typer.Option("--step", help="Show one step for each key press: space continues, q quits.")
    ] = False,
    output: Annotated[
        list[Path] | None,
        typer.Option(
            "--output",
            "-o",
            metavar="FILE",
            help="Write a page that plays the run (.html) or a picture (.svg); may be repeated.",
        ),
    ] = None,
    verbose: opt.Verbose = False,
) -> None:
    """In a pipe, or with -o and without --speed, the whole run is shown at once."""
    from specdec_cli.display.steps import CAN_READ_KEYS
    from specdec_cli.measure.recorded_settings import RecordedSettings
    from specdec_cli.measure.traces import prompt_of, read_trace

    if speed is not None and not (math.isfinite(speed) and speed > 0):
        raise UsageError(f"the speed can't be {speed:g}", "Give a number above 0; 1 is the speed of the run.")
    if step and speed is not None:
        raise UsageError("--step waits for keys, so it has no speed", "Leave out --speed or --step.")
    if step and not CAN_READ_KEYS:
        raise UsageError("--step can't read single keys on this system", "Use --speed, or WSL.")
    if step and not (sys.stdin.isatty() and can_paint(sys.stdout)):
        raise UsageError("--step needs a terminal", "Leave it out in a pipe.")
    for path in output or ():
        if path.suffix not in (".html", ".svg"):
            raise UsageError(f"{path} is neither a page nor a picture", "Name a file ending in .html or .svg.")
    recorded, events = read_trace(file)
    settings = RecordedSettings.of(recorded)
    for path in output or ():
        from specdec_cli.display import player

        page = path.suffix == ".html"
        content = player.html(settings, prompt_of(recorded), events) if page else player.svg(settings, events)
        if path.exists() and path.samefile(file):
            raise UsageError(f"{path} is the recording itself", "Name another file.")
        require_writable_file(path)
        write_file(path, content)
    usual = math.inf if output else 1.0
    raise typer.Exit(_show(settings, events, usual if speed is None else speed, step, verbose))


def _show(settings: RecordedSettings, events: list[Event], speed: float, by_key: bool, verbose: bool) -> int:
    """Replay on stdout, with the report on stderr. Returns the exit code."""
    from specdec_cli.decoding.metrics import Metrics
    from specdec_cli.display.live import LiveDisplay, on_stdout
    from specdec_cli.display.parts import legend
    from specdec_cli.display.run_report import RunRecord
    from specdec_cli.llama.interrupt import Interrupt

    report, recorded = Metrics(), Metrics.of(events).emitted
    most = recorded if settings.max_tokens is None else settings.max_tokens
    with Interrupt() as interrupt:
        if by_key:
            from specdec_cli.display.steps import Keyboard, StepDisplay

            with Keyboard(interrupt.is_set) as keyboard:
                interrupt.stop_with(keyboard.suspended)  # before anything is shown that asks for a key
                display: LiveDisplay | PlainDisplay = (painted := StepDisplay(SafeConsole(), most))
                interrupt.stop_with(painted.suspended)
                finished = _play(events, report, display, keyboard.wait)
        else:
            display = on_stdout(most)
            if isinstance(display, LiveDisplay):
                interrupt.stop_with(display.suspended)
            else:
                speed = math.inf
            finished = _play(events, report, display, _clock(interrupt, speed))
        notes = None if finished else [f"you left early: the recording has {recorded} tokens"]
        if isinstance(display, LiveDisplay) and report.drafted:
            print_parts(legend(), stderr=True)
        print_report(RunRecord.of_recording(report, settings, notes), verbose)
        return interrupt.exit_code


def _play(
    events: list[Event], report: Metrics, display: LiveDisplay | PlainDisplay, wait: Callable[[Event], bool]
) -> bool:
    """Show each event when it's due. Returns False if `wait` does, which means that the user has seen enough."""
    try:
        for event in events:
            if not wait(event):
                return False
            report.add(event)
            display.show(event)
        return True
    finally:
        display.close()


def _clock(interrupt: Interrupt, speed: float) -> Callable[[Event], bool]:
    """A function that waits until an event is due; at infinite speed it doesn't wait."""
    started = interrupt.clock()

    def wait(event: Event) -> bool:
        due = started + event.at / speed
        while not interrupt.is_set() and (left := due - interrupt.clock()) > 0:
            sleep(min(left, interrupt.POLL_S))
        return not interrupt.is_set()

    return wait
