"""A finished run as a picture: the coloured text, the legend, the report; and the report for a page."""

import re
from io import StringIO

from rich._export_format import CONSOLE_SVG_FORMAT
from rich.terminal_theme import TerminalTheme
from rich.text import Text
from rich.theme import Theme

from specdec_cli.decoding.metrics import Metrics
from specdec_cli.decoding.types import Done, Event, Step
from specdec_cli.display.run_report import RunRecord, run_details, run_report
from specdec_cli.display.safe_console import SafeConsole
from specdec_cli.display.theme import STYLES, legend
from specdec_cli.measure.recorded_settings import RecordedSettings


def svg(settings: RecordedSettings, events: list[Event]) -> str:
    """The final screen as a picture of a terminal."""
    # The web font and the comment that Rich puts in would make the picture name other machines.
    code_format = re.sub(r"@font-face \{\{.*?\}\}\s*|<!--.*?-->\s*", "", CONSOLE_SVG_FORMAT, flags=re.DOTALL)
    code_format = code_format.replace("Fira Code", "ui-monospace, Menlo, Consolas, 'DejaVu Sans Mono'")
    console, report = _console(width=96), Metrics.of(events)
    console.print(_text(events), overflow="fold")
    console.print()
    if report.drafted:
        console.print(legend())
        console.print()
    for part in (run_report, run_details):
        console.print(part(RunRecord(report, settings)))
    return console.export_svg(title="specdec", theme=_theme(dark=True), code_format=code_format)


def report_html(settings: RecordedSettings, events: list[Event]) -> tuple[str, str]:
    """The report as the inside of a <pre>, and the CSS rules for it, light and dark."""
    console = _console(width=52)
    for part in (run_report, run_details):
        console.print(part(RunRecord(Metrics.of(events), settings)))
    code = console.export_html(code_format="{code}", clear=False)
    # Rich numbers its classes in the order of the text, so the rules of both themes fit the same page.
    light = console.export_html(theme=_theme(dark=False), code_format="{stylesheet}", clear=False)
    dark = console.export_html(theme=_theme(dark=True), code_format="{stylesheet}")
    return code.rstrip(), f"{light}\n@media screen and (prefers-color-scheme: dark) {{\n{dark}\n}}"


def _text(events: list[Event]) -> Text:
    text = Text(tab_size=4)
    for event in events:
        if isinstance(event, Step):
            for token in event.tokens:
                text.append(token.text, STYLES[token.origin])
        elif isinstance(event, Done):
            text.append(event.tail)
    return text


def _console(width: int) -> SafeConsole:
    """A console that records what is printed on it."""
    return SafeConsole(
        record=True,
        width=width,
        file=StringIO(),
        force_terminal=True,
        color_system="standard",
        no_color=False,
        legacy_windows=False,
        theme=Theme({"dim": "bright_black"}),  # a grey of ours: half way to white is too pale on paper
        _environ={},
    )


def _theme(dark: bool) -> TerminalTheme:
    """Colours with a contrast of at least 4.5 to their background."""
    if dark:
        green, yellow, cyan, red = (126, 211, 124), (240, 200, 90), (110, 205, 215), (240, 120, 120)
        background, foreground, grey = (24, 26, 31), (242, 242, 242), (155, 160, 170)
    else:
        green, yellow, cyan, red = (20, 115, 45), (150, 85, 0), (0, 105, 125), (180, 30, 40)
        background, foreground, grey = (255, 255, 255), (0, 0, 0), (95, 95, 95)
    colours = [red, green, yellow, cyan, red, cyan, foreground]
    return TerminalTheme(background, foreground, [foreground, *colours], [grey, *colours])
