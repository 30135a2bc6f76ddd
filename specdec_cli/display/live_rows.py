"""The rows below the text of a live view: the last draft, how fast it goes, what is kept, what the styles mean."""

from __future__ import annotations

import re
from collections.abc import Sequence

from rich.cells import cell_len
from rich.text import Text

from specdec_cli.decoding.metrics import Metrics
from specdec_cli.decoding.statistics import Interval, geometric_interval
from specdec_cli.decoding.types import Step
from specdec_cli.display.grids import spark
from specdec_cli.display.theme import LABEL, REJECTED, STYLES, append_token, legend
from specdec_cli.engine.baseline import ProbedRatios

_WIDEST, _ROOMY = 76, 60
_REJECTED, _CORRECTION, _BONUS, _FORCED = "\u2717", "\u2192", "+", "="
_SIGNS = {"bonus": _BONUS, "forced": _FORCED}
_STEPS, _FEW = 40, 8
"""How many of the last passes the sparkline shows at most, and at least: where there is less room it is left out."""
_ECHO = 2
"""Cells of the ^C that a terminal echoes after the last row: it must not wrap."""
_GAP = "   "
_SPACES = re.compile(" {3,}")


class Panel:
    """The rows of one answer of at most so many tokens."""

    def __init__(self, max_tokens: int) -> None:
        self._max_tokens = max_tokens
        self._probed = ProbedRatios()
        self._known = 0
        self._speedup: Interval | None = None

    def add(self, step: Step) -> None:
        """Take the next step in."""
        self._probed.add(step)

    def rows(self, metrics: Metrics, step: Step | None, reading: str, width: int) -> list[Text]:
        """step: the last one. reading: the bar of a prompt that is being read."""
        rows = [Text("\u2500" * _room(width), LABEL)]
        if step is None:
            rows.append(Text(reading or "reading the prompt"))
        else:
            rows += [draft_row(step, width), *self.figures(metrics, width), _row([legend()], "^C stop", width)]
        for row in rows:
            row.rstrip()  # a terminal that rewraps it must see the width that was painted
            row.truncate(width - 1, overflow="ellipsis")
        rows[-1].truncate(max(width - 1 - _ECHO, 1), overflow="ellipsis")
        return rows

    def figures(self, metrics: Metrics, width: int) -> list[Text]:
        """How fast it goes, and the target alone; what was kept, and how far the answer is."""
        ratios = self._probed.ratios
        if len(ratios) != self._known:  # an interval takes a millisecond
            self._known, self._speedup = len(ratios), geometric_interval(ratios)
        return [speed_row(metrics, self._speedup, width), kept_row(metrics, self._max_tokens, width)]


def draft_row(step: Step, width: int) -> Text:
    """The last draft in the order of time: what was kept of it, what was rejected, what the target wrote then.

    Where it is too long, the first of the kept tokens are left out.
    """
    room, roomy = _room(width), width >= _ROOMY
    head, tail = Text(end=""), Text(end="")
    if step.drafted and roomy:
        head.append(f"{step.source} " if step.source else "", LABEL).append("drafted ", LABEL)
        head.append(f"{len(step.drafted)}").append(", kept ", LABEL).append(f"{step.accepted}{_GAP}")
    elif step.drafted:
        head.append("kept ", LABEL).append(f"{step.accepted} of {len(step.drafted)}  ")
    else:
        head.append("target alone", LABEL)
    for i, text in enumerate(step.rejected_text):
        before = Text("\u2502", LABEL) if i else Text(f" {_sign(_REJECTED, text)}")
        append_token(tail.append_text(before), _visible(text), REJECTED)
    kept = [token for token in step.tokens if token.origin == "accepted"]
    for token in step.tokens[len(kept) :]:
        sign = _sign(_SIGNS.get(token.origin, _CORRECTION), token.text)
        append_token(tail.append(f"  {sign}"), _visible(token.text), STYLES[token.origin])
    texts = [_visible(token.text) for token in kept]
    left = room - head.cell_len - tail.cell_len
    while texts and sum(map(cell_len, texts)) + len(texts) > left:
        texts.pop(0)
    head.append("\u2026" if len(texts) < len(kept) else "")
    for i, text in enumerate(texts):
        head.append("\u2502" if i else "", LABEL).append(text, STYLES["accepted"])
    return head.append_text(tail).append(f"{_GAP}{step.why}" if step.why and roomy else "", LABEL)


def speed_row(metrics: Metrics, speedup: Interval | None, width: int) -> Text:
    """How fast it goes, and how fast the target alone would, once that is known; the tokens of the last passes."""
    speed, alone = metrics.tokens_per_s, metrics.probed_tokens_per_s
    parts = []
    if speedup and speedup.bounds:
        parts.append(Text(str(speedup), "" if speedup.difference == "no measurable difference" else "bold"))
    parts += [Text(f"{_number(speed)} tok/s")] if speed else []
    parts += [Text(f"alone {_number(alone)}")] if alone else []
    row = _row(parts, "", width)
    more = [len(step.tokens) - 1 for step in metrics.history[-_STEPS:] if step.index]
    room = min(_STEPS, _room(width) - row.cell_len - len(f"{_GAP} last {_STEPS}"))
    if metrics.drafted and room >= _FEW:
        row.append(_GAP + spark(more[-room:])).append(f" last {min(len(more), room)}", LABEL)
    return row


def kept_row(metrics: Metrics, most: int, width: int) -> Text:
    """How much of what was drafted was kept, what a pass of the target yields, how far the answer is."""
    parts = []
    if metrics.acceptance_rate is not None:
        cells = 20 if width >= _ROOMY else 5
        full = round(cells * metrics.acceptance_rate)
        bar = Text("kept ", LABEL).append("\u2501" * full).append("\u2500" * (cells - full), LABEL)
        parts.append(bar.append(f" {metrics.acceptance_rate:.0%}"))
    if metrics.tokens_per_step:
        parts.append(Text(f"{metrics.tokens_per_step:.1f} tok/pass"))
    return _row(parts, f"{metrics.emitted}/{most}", width)


def _room(width: int) -> int:
    return max(min(width - 3, _WIDEST), 1)


def _row(parts: Sequence[Text], right: str, width: int) -> Text:
    """As many parts as fit, from the first on, and a text at the right end."""
    room = _room(width)
    row = Text(end="")
    for part in parts:
        gap = _GAP if row else ""
        if row and row.cell_len + len(gap) + part.cell_len + (len(right) + 1 if right else 0) > room:
            break
        row.append(gap).append_text(part)
    if right and row.cell_len + len(right) < room:
        row.append(" " * (room - row.cell_len - len(right))).append(right, LABEL)
    return row


def _sign(sign: str, text: str) -> str:
    """A sign before a token, a space from it."""
    return sign if text.startswith(" ") else f"{sign} "


def _number(value: float) -> str:
    return f"{value:,.0f}" if value >= 10 else f"{value:.1f}"


def _visible(text: str) -> str:
    """A token on one row: line breaks, tabs and long spaces as symbols."""
    return _SPACES.sub("\u2423", text.replace("\n", "\u23ce").replace("\t", "\u21e5"))
