"""The answer as plain text, streamed: for pipes, files and terminals that cannot do more; and who gets it."""

import os
import sys
from time import monotonic
from typing import TextIO

from rich.color import ColorSystem

from specdec_cli.decoding.types import Done, Event, Origin, Step
from specdec_cli.display.live import LiveDisplay
from specdec_cli.display.safe_console import SafeConsole
from specdec_cli.display.safe_streams import raw, safe
from specdec_cli.display.theme import STYLES, can_paint

_FLUSH_S = 0.03
"""Text is flushed at least this often, and not with each token of a fast model."""


class PlainDisplay:
    """Writes the answer and nothing else.

    out: what can be written to as it is, or a SafeStream. coloured: style each token by its origin (FORCE_COLOR).
    """

    def __init__(self, out: TextIO, coloured: bool = False) -> None:
        self._out = out
        self._coloured = coloured
        self._flushed = 0.0
        self._last = "\n"

    def show(self, event: Event) -> None:
        """Write what an event adds. Raises BrokenPipeError if nobody reads any more."""
        if isinstance(event, Step):
            for token in event.tokens:
                self._put(token.text, token.origin)
            now = monotonic()
            if now - self._flushed >= _FLUSH_S:
                self._out.flush()
                self._flushed = now
        elif isinstance(event, Done):
            self._put(event.tail)
            self.close()

    def _put(self, text: str, origin: Origin = "plain") -> None:
        if not text:
            return
        self._last = text
        if self._coloured:
            text = STYLES[origin].render(safe(text), color_system=ColorSystem.STANDARD)
        self._out.write(text)

    def close(self) -> None:
        """End the last line, also where no Done came. Raises BrokenPipeError if nobody reads any more."""
        if not self._last.endswith("\n"):
            self._put("\n")
        self._out.flush()


def on_stdout(max_tokens: int, quiet: bool = False) -> LiveDisplay | PlainDisplay:
    """The display for stdout: painted on a terminal that can, else plain text. quiet: plain text there too.

    NO_COLOR and FORCE_COLOR are obeyed. A file gets the text as it is.
    """
    console = SafeConsole()
    if can_paint(sys.stdout) and not quiet:
        return LiveDisplay(console, max_tokens)
    coloured = bool(os.environ.get("FORCE_COLOR")) and not console.no_color and not quiet
    return PlainDisplay(sys.stdout if sys.stdout.isatty() and not coloured else raw(sys.stdout), coloured)
