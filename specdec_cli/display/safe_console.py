"""Rich's console for texts of any origin."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from typing import Any

from rich.console import Console, ConsoleOptions, RenderableType
from rich.segment import Segment
from rich.text import Text

from specdec_cli.display.safe_streams import raw, safe


class SafeConsole(Console):
    """Shows what a terminal would obey, in every text of every table. No text is taken for markup.

    All that Rich prints, records or captures comes out of `render`, so that is the place; only Rich's own codes are
    left alone. The cursor is never hidden, so that whatever ends or stops the process leaves a terminal as it was.
    """

    def __init__(self, *, stderr: bool = False, **options: Any) -> None:
        out = raw(sys.stderr if stderr else sys.stdout)
        super().__init__(**{"file": out, "highlight": False, "markup": False, "emoji": False, **options})

    def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterable[Segment]:
        for segment in super().render(renderable, options):
            text, style, control = segment
            if control or (text.isprintable() and not (style and style.link)):
                yield segment
            else:
                yield Segment(safe(text), style and style.update_link(None))

    def render_str(self, text: str, **options: Any) -> Text:
        """A string, shown as wide as tables measure it here."""
        return super().render_str(safe(text), **options)

    def show_cursor(self, show: bool = True) -> bool:
        return False
