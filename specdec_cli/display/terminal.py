"""Safe output on a terminal, and status lines.

Texts come from model files, recordings, the Hub, other packages and file names, and may contain control characters. So
stdout and stderr are wrapped once, and `SafeConsole` does the same for what Rich prints.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from time import monotonic
from typing import IO, Any, TextIO, cast

from rich.cells import chop_cells
from rich.console import Console, ConsoleOptions, RenderableType, detect_legacy_windows
from rich.segment import Segment
from rich.text import Text

_SILENT_S = 0.5
"""Seconds before the progress bar of a prompt appears."""
_CELLS = 12
_UNSAFE = {
    **{code: chr(0x2400 + code) for code in range(0x20) if chr(code) not in "\n\t"},
    0x7F: "\u2421",
    **dict.fromkeys(range(0x80, 0xA0), "\ufffd"),
    # Direction marks and unusual line separators could make one line look like another.
    **dict.fromkeys((0x61C, 0x200E, 0x200F, *range(0x2028, 0x202F), *range(0x2066, 0x206A)), "\ufffd"),
    # Not valid text: surrogates, which file names may contain, and what XML forbids.
    **dict.fromkeys((*range(0xD800, 0xE000), 0xFFFE, 0xFFFF), "\ufffd"),
}
_LIKE_A_FILE = {"flush", "isatty", "fileno", "encoding", "errors", "closed"}


def safe(text: str) -> str:
    """Replace each control character by a visible one, except line breaks and tabs. The length stays the same."""
    return text if text.isprintable() else text.translate(_UNSAFE)


class SafeStream:
    """Replaces stdout or stderr. It has no way to write bytes."""

    def __init__(self, raw: TextIO) -> None:
        self.rich_proxied_file = raw  # Rich looks for this name, and sends its own codes there

    def write(self, text: str) -> int:
        return self.rich_proxied_file.write(safe(text))

    def writelines(self, lines: Iterable[str]) -> None:
        self.write("".join(lines))

    def __getattr__(self, name: str) -> Any:
        if name in _LIKE_A_FILE:
            return getattr(self.rich_proxied_file, name)
        raise AttributeError(name)


def neutralise_streams() -> None:
    """Wrap stdout and stderr until the process ends: a traceback may contain any text."""
    for name in ("stdout", "stderr"):
        if not isinstance(stream := getattr(sys, name), SafeStream):
            setattr(sys, name, SafeStream(stream))


def raw(stream: TextIO) -> TextIO:
    """The stream without its wrapper: for our own control codes, and for answers that go to a file or a pipe."""
    return cast(TextIO, getattr(stream, "rich_proxied_file", stream))


def close(stream: TextIO) -> None:
    """Send the rest of a stream to nowhere, so that flushing it when Python exits raises nothing."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())


def can_paint(out: IO[str]) -> bool:
    """Whether a stream is a terminal that understands control codes. FORCE_COLOR doesn't change that."""
    if not out.isatty() or os.environ.get("TERM", "").lower() in ("dumb", "unknown"):
        return False
    return not detect_legacy_windows()  # an old Windows console prints control codes as characters


def _has_size(out: IO[str]) -> bool:
    """Whether a stream is a terminal that knows its size."""
    try:
        return os.get_terminal_size(out.fileno()).columns > 0
    except (AttributeError, OSError, ValueError):
        return False


class SafeConsole(Console):
    """A console that makes every text safe and takes none for markup.

    Everything that Rich prints, records or captures comes from `render`. Only Rich's own codes stay as they are. The
    cursor is never hidden, so the terminal needs no repair, however the process ends.
    """

    def __init__(self, *, stderr: bool = False, **options: Any) -> None:
        out = options.get("file") or raw(sys.stderr if stderr else sys.stdout)
        usual = {"file": out, "highlight": False, "markup": False, "emoji": False}
        if can_paint(out) and _has_size(out):  # COLUMNS may be another terminal's, or from before a resize
            usual["_environ"] = {name: text for name, text in os.environ.items() if name not in ("COLUMNS", "LINES")}
        super().__init__(**{**usual, **options})
        self._width = self._width or None  # COLUMNS=0 sets none; Rich would print nothing

    def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterable[Segment]:
        for segment in super().render(renderable, options):
            text, style, control = segment
            if control or (text.isprintable() and not (style and style.link)):
                yield segment
            else:
                yield Segment(safe(text), style and style.update_link(None))

    def render_str(self, text: str, **options: Any) -> Text:
        """A safe string, so that tables measure what is printed."""
        return super().render_str(safe(text), **options)

    def show_cursor(self, show: bool = True) -> bool:
        return False

    def on_broken_pipe(self) -> None:
        """Without a reader of stdout, raise BrokenPipeError. Without one of stderr, go on: the answer matters more."""
        if self.file is raw(sys.stdout):
            raise BrokenPipeError
        close(cast(TextIO, self.file))


@contextmanager
def status_line(what: str, silent: bool) -> Iterator[Callable[[str], None]]:
    """Show on stderr, if it is a terminal, what is being done, and erase it at the end.

    Yields a function that replaces the text.
    """
    show: Callable[[str], None] = (lambda _: None) if silent else write_over
    show(f"{what} ...")
    try:
        yield lambda now: show(f"{now} ...")
    finally:
        show("")


def write_over(line: str) -> None:
    """Replace the status line. Line breaks in it become spaces, because only one line can be erased."""
    if not can_paint(sys.stderr):
        return
    out = raw(sys.stderr)
    shown = safe(line).replace("\n", " ")
    width = max(SafeConsole(stderr=True).width - 1, 1)  # a wrapped line could not be erased
    out.write("\r\x1b[K" + (chop_cells(shown, width)[0] if shown else ""))
    out.flush()


class ReadingBar:
    """The text of the progress bar while a prompt is read. It appears after half a second."""

    def __init__(self) -> None:
        self._what = ""
        self._started = 0.0

    def line(self, what: str, done: int, total: int) -> str:
        """The bar after `done` of `total` tokens; empty at first. Another `what` starts a new bar."""
        now = monotonic()
        if done == 0 or what != self._what:
            self._what, self._started = what, now
        seconds = now - self._started
        if seconds < _SILENT_S or not 0 < done < total:
            return ""
        full = round(_CELLS * done / total)
        left = seconds * (total - done) / done
        return f"reading {what} {'━' * full}{'─' * (_CELLS - full)} {done:,}/{total:,}, {left:.0f} s left"
