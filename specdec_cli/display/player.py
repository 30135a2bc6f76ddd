"""A recorded run as a web page that plays it, and as a picture of a terminal.

The page is one file. Without scripts, it shows the whole answer.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from html import unescape
from io import StringIO

from markupsafe import Markup
from rich._export_format import CONSOLE_SVG_FORMAT
from rich.cells import cell_len
from rich.terminal_theme import TerminalTheme
from rich.text import Text
from rich.theme import Theme

from specdec_cli.decoding.metrics import Metrics
from specdec_cli.decoding.types import Done, Event, Step, Token
from specdec_cli.display.pages import scripted_page
from specdec_cli.display.parts import STYLES, legend
from specdec_cli.display.run_report import RunRecord, run_details, run_report, settings_line
from specdec_cli.display.steps import LostToken, headline, lost_tokens
from specdec_cli.display.terminal import SafeConsole
from specdec_cli.measure.recorded_settings import RecordedSettings

_SPEEDS = (0.01, 0.03, 0.1, 0.25, 0.5, 1, 2, 4, 10)
_TEXT_LENGTH = re.compile(r'textLength="[^"]*"([^>]*)>([^<]*)<')
_CELL_WIDTH = 12.2
"""Rich's, in the picture."""
_TAGS = {"accepted": "i", "correction": "b", "bonus": "u", "plain": "span", "forced": "em"}


@dataclass(frozen=True, slots=True)
class _ShownToken:
    """A token of the page. about: its result, p and q."""

    tag: str
    text: str | Markup
    about: str


@dataclass(frozen=True, slots=True)
class _ShownStep:
    """times: start of the draft, end of the draft and end of the step, in seconds since the start of the run.
    n_written: tokens that it adds to the answer.
    """

    times: str
    headline: str
    n_written: int
    tokens: list[_ShownToken]


def html(settings: RecordedSettings, prompt: str | None, events: list[Event]) -> str:
    """The page. prompt: None if the recording has none."""
    report, report_styles = _report_html(settings, events)
    return scripted_page(
        "player",
        ("tokens.js", "player.js"),
        report_styles=report_styles,
        described=settings_line(settings),
        prompt=prompt,
        steps=list(_steps(events)),
        report=Markup(report),
        speeds=_SPEEDS,
        sampled=any(token.p is not None for event in events if isinstance(event, Step) for token in event.tokens),
    )


def _steps(events: Iterable[Event]) -> Iterator[_ShownStep]:
    before = 0.0
    for event in events:
        if isinstance(event, Step):
            at = max(event.at, before)
            drafted = max(at - event.verify_s - event.sample_s, before)
            begun = max(drafted - event.draft_s, before)
            title = headline(event).replace(" ── ", "; ")
            yield _ShownStep(f"{begun:.4f} {drafted:.4f} {at:.4f}", title, len(event.tokens), list(_tokens(event)))
            before = at
        elif isinstance(event, Done) and event.tail:
            at = max(event.at, before)
            tail = _ShownToken("span", event.tail, "held back, because it could have been the start of a stop string")
            yield _ShownStep(f"{at:.4f} {at:.4f} {at:.4f}", "end: text that was held back", 0, [tail])


def _tokens(step: Step) -> Iterator[_ShownToken]:
    """All tokens of a step, rejected ones before those that replaced them."""
    lost = lost_tokens(step)
    for depth, token in enumerate(step.tokens, 1):
        ends = token.origin != "accepted"
        for each in [each for each in lost if ends or (each.depth, each.fate) == (depth, "rejected")]:
            lost.remove(each)
            yield _struck(each)
        yield _written(token)
    yield from map(_struck, lost)


def _written(token: Token) -> _ShownToken:
    chances = [f"{name} {value:.3f}" for name, value in (("p", token.p), ("q", token.q)) if value is not None]
    origin = "the target alone" if token.origin == "plain" else token.origin
    text = underlined(token.text) if token.origin == "bonus" else token.text
    return _ShownToken(_TAGS[token.origin], text, ", ".join([origin, *chances]))


def underlined(text: str) -> Markup:
    """Underline only the words: an underlined indent would look like underscores."""
    words = text.strip()
    before, _, after = text.partition(words) if words else (text, "", "")
    return Markup("{}<ins>{}</ins>{}").format(before, words, after)


def _struck(lost: LostToken) -> _ShownToken:
    """A rejected line break is shown as a symbol, and so is a token that is only a part of a character."""
    text = lost.text.replace("\n", "⏎").replace("\t", "⇥") or "▯"
    return _ShownToken("del", text, lost.fate + (f", after {lost.after}" if lost.after else ""))


def svg(settings: RecordedSettings, events: list[Event]) -> str:
    """The final screen as a picture of a terminal."""
    # Without Rich's web font and its comment, so that the picture refers to no other machine.
    code_format = re.sub(r"@font-face \{\{.*?\}\}\s*|<!--.*?-->\s*", "", CONSOLE_SVG_FORMAT, flags=re.DOTALL)
    code_format = code_format.replace("Fira Code", "ui-monospace, Menlo, Consolas, 'DejaVu Sans Mono'")
    console, run = _console(width=96), RunRecord.of_recording(Metrics.of(events), settings)
    console.print(_text(events), overflow="fold")
    console.print()
    if run.metrics.drafted:
        console.print(legend())
        console.print()
    for part in (run_report, run_details):
        console.print(part(run))
    svg = console.export_svg(title="specdec", theme=_theme(dark=True), code_format=code_format)
    return _TEXT_LENGTH.sub(_with_its_cells, svg)


def _with_its_cells(text: re.Match[str]) -> str:
    """A text of the picture, as wide as its cells; Rich counts characters, and so squeezes wide ones."""
    return f'textLength="{cell_len(unescape(text[2])) * _CELL_WIDTH:.1f}"{text[1]}>{text[2]}<'


def _report_html(settings: RecordedSettings, events: list[Event]) -> tuple[str, str]:
    """The report as the inside of a <pre>, and the CSS rules for it, light and dark."""
    console, run = _console(width=52), RunRecord.of_recording(Metrics.of(events), settings)
    for part in (run_report, run_details):
        console.print(part(run))
    code = console.export_html(code_format="{code}", clear=False)
    # Rich numbers its classes in the order of the text, so the rules of both themes have the same names.
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
        theme=Theme({"dim": "bright_black"}),  # our own grey: Rich's is too pale on paper
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
