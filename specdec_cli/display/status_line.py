"""A line on a terminal while something takes long: what it is, or how much of a prompt has been read."""

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from time import monotonic

from specdec_cli.display.safe_streams import raw, safe
from specdec_cli.display.theme import can_paint

_SILENT_S = 0.5
"""Seconds that a prompt may take without a bar."""
_CELLS = 12


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
    """Write a line over the one that stands there, which a line break in a name would leave behind."""
    out = raw(sys.stderr)
    out.write("\r\x1b[K" + safe(line).replace("\n", " "))
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
