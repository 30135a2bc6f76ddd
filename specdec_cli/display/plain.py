"""The answer as plain text, streamed: for pipes, files and terminals that cannot do more."""

from __future__ import annotations

from time import monotonic
from typing import TextIO

from rich.color import ColorSystem

from specdec_cli.decoding.types import Done, Event, Step
from specdec_cli.display.theme import STYLES, safe

_FLUSH_S = 0.03
"""Text is flushed at least this often, and not with each token of a fast model."""


class PlainDisplay:
    """Writes the answer and nothing else.

    neutralise: replace control characters, because `out` is a terminal; a file gets the text as it is.
    coloured:   style each token by its origin (FORCE_COLOR).
    """

    def __init__(self, out: TextIO, neutralise: bool = False, coloured: bool = False) -> None:
        self._out = out
        self._neutralise = neutralise
        self._coloured = coloured
        self._flushed = 0.0
        self._last = "\n"

    def show(self, event: Event) -> None:
        """Write what an event adds. Raises BrokenPipeError if nobody reads any more."""
        match event:
            case Step():
                self._write(event)
            case Done():
                self._put(event.tail)
                self.close()

    def _write(self, step: Step) -> None:
        if self._coloured:
            for token in step.tokens:
                text = safe(token.text)
                self._put(STYLES[token.origin].render(text, color_system=ColorSystem.STANDARD), seen=token.text)
        else:
            text = "".join([token.text for token in step.tokens])
            self._put(safe(text) if self._neutralise else text)
        now = monotonic()
        if now - self._flushed >= _FLUSH_S:
            self._out.flush()
            self._flushed = now

    def _put(self, text: str, seen: str | None = None) -> None:
        if text:
            self._last = text if seen is None else seen or self._last
            self._out.write(text)

    def close(self) -> None:
        """End the last line, also where no Done came. Raises BrokenPipeError if nobody reads any more."""
        if not self._last.endswith("\n"):
            self._put("\n")
        self._out.flush()
