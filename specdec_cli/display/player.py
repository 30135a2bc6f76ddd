"""A recorded run as one web page that plays it: from the file alone, and whole to read where scripts are off."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from markupsafe import Markup

from specdec_cli.decoding.types import Done, Event, Step, Token
from specdec_cli.display.charts import COLOURS
from specdec_cli.display.run_picture import report_html
from specdec_cli.display.run_report import settings_line
from specdec_cli.display.steps import LostToken, headline, lost_tokens
from specdec_cli.display.templates import render, scripted_page
from specdec_cli.measure.recorded_settings import RecordedSettings

_SPEEDS = (0.01, 0.03, 0.1, 0.25, 0.5, 1, 2, 4, 10)
_LEAST_S = 5
"""A run that took less is played slower at first, so that there is something to see."""
_TAGS = {"accepted": "i", "correction": "b", "bonus": "u", "plain": "span", "forced": "em"}


@dataclass(frozen=True, slots=True)
class _ShownToken:
    """A token of the page. told: what became of it, p and q."""

    tag: str
    text: str | Markup
    told: str


@dataclass(frozen=True, slots=True)
class _ShownStep:
    """times: seconds into the run at which the draft begins, is whole, and is judged."""

    times: str
    headline: str
    tokens: list[_ShownToken]


def html(settings: RecordedSettings, prompt: str | None, events: list[Event]) -> str:
    """The page. prompt: what was asked, if the recording tells."""
    report, report_styles = report_html(settings, events)
    took = events[-1].at if events else 0.0
    return scripted_page(
        "player.html",
        render("player.css", colours=COLOURS, report_styles=report_styles),
        ("tokens.js", "player.js"),
        described=settings_line(settings),
        prompt=prompt,
        steps=list(_steps(events)),
        report=Markup(report),
        speeds=_SPEEDS,
        usual=max((speed for speed in _SPEEDS if speed <= min(took / _LEAST_S, 1)), default=_SPEEDS[0]),
    )


def _steps(events: Iterable[Event]) -> Iterator[_ShownStep]:
    before = 0.0
    for event in events:
        if isinstance(event, Step):
            at = max(event.at, before)
            drafted = max(at - event.verify_s - event.sample_s, before)
            begun = max(drafted - event.draft_s, before)
            told = headline(event).replace(" ── ", "; ")
            yield _ShownStep(f"{begun:.4f} {drafted:.4f} {at:.4f}", told, list(_tokens(event)))
            before = at
        elif isinstance(event, Done) and event.tail:
            at = max(event.at, before)
            tail = _ShownToken("span", event.tail, "held back: it might have begun a stop string")
            yield _ShownStep(f"{at:.4f} {at:.4f} {at:.4f}", "the end: text that was held back", [tail])


def _tokens(step: Step) -> Iterator[_ShownToken]:
    """In the order in which they came: what was rejected before what stands in its place."""
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
    told = "the target alone" if token.origin == "plain" else token.origin
    text = _underlined(token.text) if token.origin == "bonus" else token.text
    return _ShownToken(_TAGS[token.origin], text, ", ".join([told, *chances]))


def _underlined(text: str) -> Markup:
    """Its words alone: an indent under which there is a line reads as underscores."""
    words = text.strip()
    before, _, after = text.partition(words) if words else (text, "", "")
    return Markup("{}<ins>{}</ins>{}").format(before, words, after)


def _struck(lost: LostToken) -> _ShownToken:
    """A rejected line break breaks no line; a part of a character has no text of its own."""
    text = lost.text.replace("\n", "⏎").replace("\t", "⇥") or "▯"
    return _ShownToken("del", text, lost.fate + (f", after {lost.after}" if lost.after else ""))
