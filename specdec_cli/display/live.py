"""The live view: finished lines scroll away in their colours, a few rows below them show the work in progress.

The region is repainted at most 12 times a second in one write. Nothing about the terminal is changed (no
hidden cursor, no alternate screen), so there is nothing to restore, whatever ends the process.

In the region lines wrap between words. What scrolls away is wrapped by the terminal itself, so that it copies as it
was written, also a line of which only a part has scrolled away: its last character is written once more, in the last
column, and the text that follows wraps there.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from threading import Lock
from time import monotonic

from rich.cells import cell_len, chop_cells
from rich.console import Console
from rich.text import Text

from specdec_cli.decoding.metrics import Metrics
from specdec_cli.decoding.types import Done, Event, Step
from specdec_cli.display.live_rows import Panel
from specdec_cli.display.safe_streams import safe
from specdec_cli.display.status_line import ReadingBar
from specdec_cli.display.theme import STYLES, append_token

_INTERVAL_S = 1 / 12
_OPEN_ROWS, _KEPT_ROWS = 8, 3
"""Rows of the unfinished line in the region at most, and those left where some of them scroll away."""
_JOINT_HEIGHT = 4
"""On a lower screen the row above the region may be gone: a long line breaks there."""
_BEGIN, _END = "\x1b[?2026h", "\x1b[?2026l"  # synchronised output; terminals without it ignore both
_CLEAR, _CLEAR_LINE = "\x1b[J", "\x1b[K"


@dataclass(frozen=True, slots=True)
class _Joint:
    """Where a line goes on of which `rows` rows have scrolled away: its last character there, which ends in the cell
    before `column`, of a terminal so wide.
    """

    last: Text
    column: int
    rows: int
    width: int


class LiveDisplay:
    """Paints events on a terminal as they come.

    console: a Rich console on a real terminal; its width is read again for each repaint. The region is there from
    the start, since a long prompt takes long.
    """

    def __init__(self, console: Console, max_tokens: int) -> None:
        self._console = console
        self._rows = Panel(max_tokens)
        self._report = Metrics()
        self._fresh: list[Step] = []
        self._open = Text(end="")
        self._joint: _Joint | None = None
        self._step: Step | None = None
        self._painted: list[int] = []
        """Widths in cells of the region's rows as they were painted; the cursor stays at the end of the last."""
        self._next = 0.0
        self._bar = ReadingBar()
        self._reading = ""
        self._lock = Lock()
        """Ctrl-Z is handled in another thread."""
        self._repaint()

    def reading(self, what: str, done: int, total: int) -> None:
        """Show how much of the prompt has been read."""
        with self._lock:
            self._reading = self._bar.line(what, done, total)
            self._repaint()

    def show(self, event: Event) -> None:
        """Take an event in; repaint if it is time."""
        with self._lock:
            self._report.add(event)
            if isinstance(event, Done):
                self._finish(safe(event.tail))
                return
            if isinstance(event, Step):
                self._fresh.append(_shown(event))
                self._rows.add(event)
            else:  # the first token may have come during this long pause
                self._next = 0.0
            now = monotonic()
            if now >= self._next and self._fresh:
                self._repaint()
                self._next = now + _INTERVAL_S

    def close(self) -> None:
        """Leave the text so far on the screen and the cursor below it; no effect after a Done."""
        with self._lock:
            if self._painted or self._fresh or self._open:
                self._finish("")

    @contextmanager
    def suspended(self) -> Iterator[None]:
        """While the process is stopped, the shell has the screen; afterwards the region is painted below that."""
        with self._lock:
            shown = bool(self._painted)
            if shown:
                self._write("", [])
            self._joint = None
            yield
            if shown:
                self._repaint()

    def _finish(self, tail: str) -> None:
        self._take_in()
        self._open.append(tail)
        erased, rest, self._open = self._erase(self._console.width), self._open, Text(end="")
        if rest and not rest.plain.endswith("\n"):
            rest.append("\n")
        self._write(self._joined() + "".join(map(self._ansi, rest.split("\n", include_separator=True))), [], erased)
        self._joint = None

    def _repaint(self) -> None:
        self._take_in()
        width, height = max(self._console.width, 2), self._console.height
        erased = self._erase(width)
        panel = self._panel(width)[: max(height // 2, 1)]
        *finished, self._open = self._open.split("\n", allow_blank=True)
        scroll = self._joined()
        if finished:
            scroll += "".join(self._ansi(line) + "\n" for line in finished)
            self._joint = None
        rows = self._wrapped(width)
        if len(rows) > max(min(_OPEN_ROWS, height - 1 - len(panel)), 1):
            scroll += self._scroll_away(width, height)
            rows = self._wrapped(width)
        self._write(scroll, [*rows, *panel][-max(height - 1, 1) :], erased)

    def _wrapped(self, width: int) -> list[Text]:
        """The unfinished line in rows, between words where it can be; an empty one takes no row."""
        return list(self._open.wrap(self._console, width)) if self._open else []

    def _scroll_away(self, width: int, height: int) -> str:
        """The beginning of a line longer than the region, which cannot change any more, as full rows."""
        pieces = chop_cells(self._open.plain, width)
        pieces = pieces[: max(len(pieces) - min(_KEPT_ROWS, max(height // 3, 1)), 1)]
        gone, self._open = self._open.divide([len("".join(pieces))])
        if height < _JOINT_HEIGHT:
            return "".join(self._ansi(row) + "\n" for row in gone.divide([len(pieces[0])]) if row)
        at = len(gone) - 1
        while at and not cell_len(gone.plain[at:]):  # a sign that combines with the character before
            at -= 1
        rows = len(pieces) + (self._joint.rows if self._joint else 0)
        self._joint = _Joint(gone[at:], cell_len(pieces[-1]), rows, width)
        return self._ansi(gone)

    def _joined(self) -> str:
        """Write the character before the region again, so that what follows it wraps."""
        if (joint := self._joint) is None:
            return ""
        return f"\x1b[A\x1b[{joint.column - cell_len(joint.last.plain) + 1}G{self._ansi(joint.last)}"

    def _take_in(self) -> None:
        """Append the text of the steps since the last repaint to the open line."""
        for step in self._fresh:
            self._step = step
            for token in step.tokens:
                append_token(self._open, token.text.expandtabs(4), STYLES[token.origin])
        self._fresh.clear()

    def _panel(self, width: int) -> list[Text]:
        """The rows below the text."""
        return self._rows.rows(self._report, self._step, self._reading, width)

    def _ansi(self, text: Text) -> str:
        """Text as the console would print it: the line breaks are ours, the styles its own."""
        if not text:
            return ""
        with self._console.capture() as capture:
            self._console.print(text, end="", soft_wrap=True, highlight=False)
        return capture.get()

    def _write(self, scroll: str, region: list[Text], erased: str | None = None) -> None:
        """Erase the region, add to the scrollback, paint the new region; one write, so that nothing flickers."""
        erased = self._erase(max(self._console.width, 1)) if erased is None else erased
        body = "\n".join(self._ansi(row) for row in region)
        self._console.file.write(_BEGIN + erased + scroll + body + _END)
        self._console.file.flush()
        self._painted = [cell_len(row.plain) for row in region]

    def _erase(self, width: int) -> str:
        """Go to the start of the region, counting the rows it takes at the width the terminal has now."""
        if not self._painted:
            return ""
        before = 0
        if (joint := self._joint) and joint.width != width:
            # The terminal has wrapped the line anew, with what has scrolled away: it breaks where the region began.
            before, self._joint = joint.rows * joint.width % width, None
        rows = sum(max(1, -(-cells // width)) for cells in (before + self._painted[0], *self._painted[1:]))
        up = f"\x1b[{rows - 1}A" if rows > 1 else ""
        right = f"\x1b[{before}C" if before else ""
        # Where all of the screen is cleared at once, tmux keeps what was on it.
        below = f"\x1b[B{_CLEAR}\x1b[A" if rows > 1 else ""
        return f"\r{up}{below}{right}{_CLEAR_LINE}" + ("\n" if before else "")


def _shown(step: Step) -> Step:
    """A step whose texts are as wide as they will be shown, since their cells are counted."""
    tokens = tuple(replace(token, text=safe(token.text)) for token in step.tokens)
    rejected = tuple(map(safe, step.rejected_text))
    return replace(step, tokens=tokens, rejected_text=rejected, source=safe(step.source), why=safe(step.why))
