"""An answer as it comes: the live view on a terminal that can paint, plain text elsewhere.

Finished lines scroll away in their colours, a few rows below them show the work in progress. The region is repainted
at most 12 times a second in one write. Nothing about the terminal is changed (no hidden cursor, no alternate screen),
so there is nothing to restore, whatever ends the process.

The region wraps lines between words. The terminal wraps what has scrolled away, so that it copies as it was written. If
only the first part of a line has scrolled away, its last character is written again in the last column, so that the
terminal wraps the text that follows. Lines with emoji made of several code points are broken instead: terminals differ
in how wide these are.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from itertools import accumulate
from threading import Lock
from time import monotonic
from typing import TextIO
from unicodedata import east_asian_width

from rich.cells import cell_len, chop_cells
from rich.color import ColorSystem
from rich.console import Console
from rich.style import Style
from rich.text import Text

from specdec_cli.decoding.metrics import Metrics
from specdec_cli.decoding.types import Done, Event, Origin, Step
from specdec_cli.display.parts import LABEL, REJECTED, STYLES, append_token, legend, spark
from specdec_cli.display.terminal import ReadingBar, SafeConsole, can_paint, raw, safe, write_over

_OPEN_ROWS, _KEPT_ROWS = 8, 3
"""Rows of the unfinished line in the region at most, and those left where some of them scroll away."""
_JOINT_HEIGHT = 4
"""On a lower screen the row above the region may be gone: a long line breaks there."""
_BEGIN, _END = "\x1b[?2026h", "\x1b[?2026l"  # synchronised output; terminals without it ignore both
_CLEAR, _CLEAR_LINE = "\x1b[J", "\x1b[K"
_WIDEST, _ROOMY = 76, 60
_REJECTED, _CORRECTION, _BONUS, _FORCED = "\u2717", "\u2192", "+", "="
_SIGNS = {"bonus": _BONUS, "forced": _FORCED}
_STEPS, _FEW = 40, 8
"""How many of the last passes the sparkline shows at most, and at least: where there is less room it is left out."""
_ECHO = 2
"""Cells of the ^C that a terminal echoes after the last row: it must not wrap."""
_GAP = "   "
_FLAG_LETTERS = frozenset(map(chr, range(0x1F1E6, 0x1F200)))
_SPACES = re.compile(" {3,}")
_FLUSH_S = 0.03
"""Plain text is flushed at least this often, and not with each token of a fast model."""


def on_stdout(
    max_tokens: int, quiet: bool = False, styles: Mapping[Origin, Style] | None = None
) -> LiveDisplay | PlainDisplay:
    """The display for stdout: painted on a terminal that can, else plain text. quiet: plain text there too. styles: of
    tokens on a terminal, if not the usual ones.

    NO_COLOR and FORCE_COLOR are obeyed. A file gets the text as it is.
    """
    console = SafeConsole()
    if can_paint(sys.stdout) and not quiet:
        return LiveDisplay(console, max_tokens, styles or STYLES)
    coloured = bool(os.environ.get("FORCE_COLOR")) and not console.no_color and not quiet
    return PlainDisplay(sys.stdout if sys.stdout.isatty() and not coloured else raw(sys.stdout), coloured)


class PlainDisplay:
    """Writes the answer as plain text.

    out: what can be written to as it is, or a SafeStream. coloured: style each token by its origin (FORCE_COLOR).
    """

    def __init__(self, out: TextIO, coloured: bool = False) -> None:
        self._out = out
        self._coloured = coloured
        self._flushed = 0.0
        self._last = "\n"
        self._bar = ReadingBar()
        self._reading = ""

    def reading(self, what: str, done: int, total: int) -> None:
        """Show on stderr, if that is a terminal, how much of the prompt has been read. At the end, erase that."""
        line = self._bar.line(what, done, total) if self._last.endswith("\n") else ""  # stderr may be on the same row
        before, self._reading = self._reading, line
        if before or self._reading:
            write_over(self._reading)

    def show(self, event: Event) -> None:
        """Write what an event adds. Raises BrokenPipeError if the reader has closed the pipe."""
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
        """End the last line, also where no Done came. Raises BrokenPipeError if the reader has closed the pipe."""
        self.reading("", 0, 0)  # the prompt may not have been read to its end
        if not self._last.endswith("\n"):
            self._put("\n")
        self._out.flush()


@dataclass(frozen=True, slots=True)
class _Joint:
    """Where a line continues after its first `rows` rows have scrolled away.

    last: the last character of those rows. column: the cell after it. width: that of the terminal then.
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

    _interval_s = 1 / 12
    """Seconds between repaints, at least."""

    def __init__(self, console: Console, max_tokens: int, styles: Mapping[Origin, Style] = STYLES) -> None:
        self._console = console
        self._max_tokens, self._styles = max_tokens, styles
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
            else:  # the first token may have come during this long pause
                self._next = 0.0
            now = monotonic()
            if now >= self._next and self._fresh:
                self._repaint()
                self._next = now + self._interval_s

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
        panel = self._panel(width, height)
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
        return _fitting(width, lambda room: [*self._open.wrap(self._console, room)]) if self._open else []

    def _scroll_away(self, width: int, height: int) -> str:
        """The beginning of a line longer than the region, which cannot change any more, as full rows."""
        line = self._open
        full = _fitting(width, lambda room: line.divide([*accumulate(map(len, chop_cells(line.plain, room)))])[:-1])
        full = full[: max(len(full) - min(_KEPT_ROWS, max(height // 3, 1)), 1)]
        gone, self._open = line.divide([sum(map(len, full))])
        if height < _JOINT_HEIGHT or _most_cells(line) != line.cell_len:
            self._joint = None
            return "".join(self._ansi(row) + "\n" for row in full)
        at = len(gone) - 1
        while at and not cell_len(gone.plain[at:]):  # a sign that combines with the character before
            at -= 1
        rows = len(full) + (self._joint.rows if self._joint else 0)
        self._joint = _Joint(gone[at:], full[-1].cell_len, rows, width)
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
                append_token(self._open, token.text.expandtabs(4), self._styles[token.origin])
        self._fresh.clear()

    def _panel(self, width: int, height: int) -> list[Text]:
        rows = [Text("\u2500" * _room(width), LABEL)]
        if self._step is None:
            rows.append(Text(self._reading or "reading the prompt"))
        else:
            rows += [draft_row(self._step, width), *self._figures(width), _row([legend()], "^C stop", width)]
        for row in rows:
            row.rstrip()  # a terminal that rewraps it must see the width that was painted
            row.truncate(width - 1, overflow="ellipsis")
        rows[-1].truncate(max(width - 1 - _ECHO, 1), overflow="ellipsis")
        return rows[: max(height // 2, 1)]

    def _figures(self, width: int) -> list[Text]:
        return [speed_row(self._report, width), kept_row(self._report, self._max_tokens, width)]

    def _ansi(self, text: Text) -> str:
        """Text as the console would print it: the line breaks are ours, the styles its own."""
        if not text:
            return ""
        with self._console.capture() as capture:
            self._console.print(text, end="", soft_wrap=True, highlight=False)
        return capture.get()

    def _write(self, scroll: str, region: list[Text], erased: str | None = None) -> None:
        """Erase the region, add to the scrollback, paint the new region; one write, so that nothing flickers."""
        erased = self._erase(self._console.width) if erased is None else erased
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


def _fitting(width: int, rows_of: Callable[[int], list[Text]]) -> list[Text]:
    """The rows of a text on a terminal of this width, whether or not it joins emoji. rows_of: breaks it at a width."""
    room = width
    while (most := max(map(_most_cells, rows := rows_of(room)))) > width and room > 2:
        room = max(min(room - 1, room * width // most), 2)
    return rows


def _most_cells(row: Text) -> int:
    """The cells that a row takes on a terminal that joins no emoji (families, skin tones, flags)."""
    text = row.plain
    if text.isascii():
        return len(text)
    return sum(2 if east_asian_width(sign) in "WF" or sign in _FLAG_LETTERS else cell_len(sign) for sign in text)


def _shown(step: Step) -> Step:
    """A step whose texts are as wide as they will be shown, since their cells are counted."""
    tokens = tuple(replace(token, text=safe(token.text)) for token in step.tokens)
    rejected = tuple(map(safe, step.rejected_text))
    return replace(step, tokens=tokens, rejected_text=rejected, source=safe(step.source), why=safe(step.why))


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


def speed_row(metrics: Metrics, width: int) -> Text:
    """How fast it goes, and how fast the target alone would, once that is known; the tokens of the last passes."""
    speed, speedup = metrics.tokens_per_s, metrics.probed_speedup
    alone = speed / speedup.mean if speed and speedup else None
    parts = []
    if speedup and speedup.excludes_one:
        parts.append(Text(str(speedup), "bold"))
    parts += [Text(f"{_number(speed)} tok/s")] if speed else []
    parts += [Text(f"alone {_number(alone)}")] if alone else []
    row = _row(parts, "", width)
    more = [len(step.tokens) - 1 for step in metrics.history[-_STEPS:] if step.index]
    room = min(_STEPS, _room(width) - row.cell_len - len(f"{_GAP} last {_STEPS}"))
    if metrics.drafted and room >= _FEW:
        row.append(_GAP + spark(more[-room:])).append(f" last {min(len(more), room)}", LABEL)
    return row


def kept_row(metrics: Metrics, most: int, width: int) -> Text:
    """How much of what was drafted was kept, how many tokens a step gives, how far the answer is."""
    parts = []
    if metrics.acceptance_rate is not None:
        cells = 20 if width >= _ROOMY else 5
        full = round(cells * metrics.acceptance_rate)
        bar = Text("kept ", LABEL).append("\u2501" * full).append("\u2500" * (cells - full), LABEL)
        parts.append(bar.append(f" {metrics.acceptance_rate:.0%}"))
    if metrics.tokens_per_step:
        parts.append(Text(f"{metrics.tokens_per_step:.1f} tok/step"))
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
