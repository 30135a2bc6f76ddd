"""How tokens look, and on what."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, TextIO

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
"""Never colour alone: accepted is upright, a correction bold, a bonus underlined, a forced token italic, a rejected one
struck out.
"""

REJECTED = Style(color="red", strike=True)
LABEL = Style(dim=True)


def append_token(line: Text, text: str, style: Style) -> Text:
    """Append a token's text; spaces before it are neither underlined nor struck, which would look like other signs."""
    word = text.lstrip(" ")
    return line.append(text[: len(text) - len(word)]).append(word, style)


def legend() -> Text:
    """What the styles of tokens mean."""
    line = Text("kept", STYLES["accepted"], end="")
    line.append("  ").append("corrected", STYLES["correction"]).append("  ").append("bonus", STYLES["bonus"])
    return line.append("  ").append("rejected", REJECTED)


def can_paint(out: TextIO) -> bool:
    """Whether a stream is a terminal that can do more than print; FORCE_COLOR makes no terminal of a file."""
    if not out.isatty() or os.environ.get("TERM", "").lower() in ("dumb", "unknown"):
        return False
    from rich import console

    return not console.detect_legacy_windows()  # it would show our codes as characters
