"""Parts of all displays: the styles of tokens, bars, durations."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from rich.style import Style
from rich.text import Text

if TYPE_CHECKING:
    from specdec_cli.decoding.types import Origin

STYLES: dict[Origin, Style] = {
    "accepted": Style(color="green"),
    "correction": Style(color="yellow", bold=True),
    "bonus": Style(color="cyan", underline=True),
    "plain": Style(),
    "forced": Style(italic=True),
}
"""Without colours, accepted tokens look like plain ones. Corrections are bold then, bonus tokens underlined, forced
tokens italic, and rejected ones struck out.
"""

_DIM = Style(dim=True)
EDIT_STYLES = {**STYLES, "accepted": _DIM, "bonus": _DIM, "plain": _DIM}
"""For edits: only tokens that differ from the draft stand out."""
REJECTED = Style(color="red", strike=True)
LABEL = Style(dim=True)


def append_token(line: Text, text: str, style: Style) -> Text:
    """Append a token's text. The style leaves out leading spaces: underlined ones would look like underscores."""
    word = text.lstrip(" ")
    return line.append(text[: len(text) - len(word)]).append(word, style)


def legend() -> Text:
    line = Text("kept", STYLES["accepted"], end="")
    line.append("  ").append("corrected", STYLES["correction"]).append("  ").append("bonus", STYLES["bonus"])
    return line.append("  ").append("rejected", REJECTED)


def duration(seconds: float) -> str:
    return f"{seconds:.2f} s" if seconds >= 0.9995 else f"{seconds * 1000:.3g} ms"


def rough_duration(seconds: float) -> str:
    return f"{seconds:,.0f} s" if seconds < 120 else f"{seconds / 60:,.0f} minutes"


def bar(share: float, cells: int) -> str:
    """A share from 0 to 1 as up to `cells` blocks, in eighths of a block; at least an eighth."""
    whole, eighths = divmod(max(round(8 * cells * share), 1), 8)
    return "█" * whole + " ▏▎▍▌▋▊▉"[eighths].strip()


def spark(values: Sequence[float], top: float | None = None) -> str:
    """Values from 0 up as blocks of eight heights. top: the value of the highest block; None: the highest value."""
    highest = top or max(values, default=0) or 1
    return "".join("▁▂▃▄▅▆▇█"[min(int(value / highest * 7.999), 7)] for value in values)
