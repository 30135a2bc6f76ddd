"""What reaches a terminal: text that it cannot obey, tables, a line while something takes long, single keys.

Texts come from model files, recordings, the Hub, other packages and the names of files. So nothing that is printed is
trusted: the streams are wrapped, once, and `SafeConsole` does the same for what Rich prints.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from time import monotonic
from typing import Any, TextIO, cast

from rich.cells import chop_cells
from rich.console import Console, ConsoleOptions, RenderableType, detect_legacy_windows
from rich.segment import Segment
from rich.text import Text

_SILENT_S = 0.5
"""Seconds that a prompt may take without a bar."""
_CELLS = 12
_UNSAFE = {
    **{code: chr(0x2400 + code) for code in range(0x20) if chr(code) not in "\n\t"},
    0x7F: "\u2421",
    **dict.fromkeys(range(0x80, 0xA0), "\ufffd"),
    # Marks, overrides and isolates of direction, and other ends of lines, could make one line look like another.
    **dict.fromkeys((0x61C, 0x200E, 0x200F, *range(0x2028, 0x202F), *range(0x2066, 0x206A)), "\ufffd"),
    # No valid text: halves of characters, which names of files may hold, and what XML forbids.
    **dict.fromkeys((*range(0xD800, 0xE000), 0xFFFE, 0xFFFF), "\ufffd"),
}
_LIKE_A_FILE = {"flush", "isatty", "fileno", "encoding", "errors", "closed"}


def safe(text: str) -> str:
    """The text, as long, with each character that a terminal would obey replaced; line breaks and tabs stay."""
    return text if text.isprintable() else text.translate(_UNSAFE)


class SafeStream:
    """Stands in the place of stdout or stderr. It gives no way to write bytes."""

    def __init__(self, raw: TextIO) -> None:
        self.rich_proxied_file = raw  # by this name Rich finds the stream that it sends its own codes to

    def write(self, text: str) -> int:
        return self.rich_proxied_file.write(safe(text))

    def writelines(self, lines: Iterable[str]) -> None:
        self.write("".join(lines))

    def __getattr__(self, name: str) -> Any:
        if name in _LIKE_A_FILE:
            return getattr(self.rich_proxied_file, name)
        raise AttributeError(name)


def neutralise_streams() -> None:
    """Wrap stdout and stderr, for good: even a traceback may quote a text."""
    for name in ("stdout", "stderr"):
        if not isinstance(stream := getattr(sys, name), SafeStream):
            setattr(sys, name, SafeStream(stream))


def raw(stream: TextIO) -> TextIO:
    """The stream itself, for codes of our own, and for answers where they do not go to a terminal."""
    return cast(TextIO, getattr(stream, "rich_proxied_file", stream))


def write_lines(lines: Iterable[str]) -> None:
    """Write lines to stdout: as they are to a file or a pipe, made safe for a terminal."""
    (sys.stdout if sys.stdout.isatty() else raw(sys.stdout)).writelines(lines)


def can_paint(out: TextIO) -> bool:
    """Whether a stream is a terminal that can do more than print; FORCE_COLOR makes no terminal of a file."""
    if not out.isatty() or os.environ.get("TERM", "").lower() in ("dumb", "unknown"):
        return False
    return not detect_legacy_windows()  # it would show our codes as characters


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


@contextmanager
def status_line(what: str, silent: bool) -> Iterator[Callable[[str], None]]:
    """Show on stderr, if it is a terminal, what takes long, and erase it afterwards.

    Yields a function that shows another text instead.
    """
    shown = not silent and can_paint(sys.stderr)

    def show(text: str) -> None:
        if shown:
            _write_over(text)

    show(f"{what} ...")
    try:
        yield lambda now: show(f"{now} ...")
    finally:
        show("")


def _write_over(line: str) -> None:
    """Write a line over the last one, which a line break in a name would leave behind."""
    out = raw(sys.stderr)
    shown = safe(line).replace("\n", " ")
    width = max(SafeConsole(stderr=True).width - 1, 1)  # a line that wraps could not be written over
    out.write("\r\x1b[K" + (chop_cells(shown, width)[0] if shown else ""))
    out.flush()


class ReadingBar:
    """The bar's text, from half a second on. It begins anew with each thing that is read."""

    def __init__(self) -> None:
        self._what = ""
        self._started = 0.0

    def line(self, what: str, done: int, total: int) -> str:
        """The bar for `done` of `total` tokens, 0 being the beginning; empty at first."""
        now = monotonic()
        if done == 0 or what != self._what:
            self._what, self._started = what, now
        seconds = now - self._started
        if seconds < _SILENT_S or not 0 < done < total:
            return ""
        full = round(_CELLS * done / total)
        left = seconds * (total - done) / done
        return f"reading {what} {'━' * full}{'─' * (_CELLS - full)} {done:,}/{total:,}, {left:.0f} s left"


class StderrBar:
    """The bar on stderr, where the answer goes elsewhere; nothing where stderr is no terminal."""

    def __init__(self) -> None:
        self._bar = ReadingBar()
        self._shown = False

    def reading(self, what: str, done: int, total: int) -> None:
        """Show how far reading has come; nothing is left of it at the end."""
        line = self._bar.line(what, done, total)
        if can_paint(sys.stderr) and (line or self._shown):
            _write_over(line)
            self._shown = bool(line)
