"""The live view: finished lines scroll away in their colours, a few rows below them show the work in progress.

The region is repainted at most 12 times a second in one write. Nothing about the terminal is changed (no
hidden cursor, no alternate screen), so there is nothing to restore, whatever ends the process.
"""

from itertools import accumulate
from time import monotonic

from rich.cells import cell_len, chop_cells
from rich.console import Console
from rich.text import Text

from specdec_cli.decoding.metrics import Metrics
from specdec_cli.decoding.types import Done, Event, Step
from specdec_cli.display.status_line import ReadingBar
from specdec_cli.display.theme import LABEL, REJECTED, STYLES, safe

_INTERVAL_S = 1 / 12
_OPEN_ROWS = 3
_BEGIN, _END = "\x1b[?2026h", "\x1b[?2026l"  # synchronised output; terminals without it ignore both
_CLEAR = "\x1b[J"
_ECHO = 2  # cells of the ^C that a terminal echoes after the last row: it must not wrap


class LiveDisplay:
    """Paints events on a terminal as they come.

    console: a Rich console on a real terminal; its width is read again for each repaint. The region is there from
    the start, since a long prompt takes long.
    """

    def __init__(self, console: Console, max_tokens: int) -> None:
        self._console = console
        self._max_tokens = max_tokens
        self._report = Metrics()
        self._fresh: list[Step] = []
        self._open = Text(end="")
        self._step: Step | None = None
        self._painted: list[int] = []
        """Widths in cells of the region's rows as they were painted; the cursor stays at the end of the last."""
        self._next = 0.0
        self._bar = ReadingBar()
        self._reading = ""
        self._repaint()

    def reading(self, what: str, done: int, total: int) -> None:
        """Show how much of the prompt has been read."""
        self._reading = self._bar.line(what, done, total)
        self._repaint()

    def show(self, event: Event) -> None:
        """Take an event in; repaint if it is time."""
        self._report.add(event)
        if isinstance(event, Done):
            self._finish(event.tail)
            return
        if isinstance(event, Step):
            self._fresh.append(event)
        else:  # the first token may have come during this long pause
            self._next = 0.0
        now = monotonic()
        if now >= self._next and self._fresh:
            self._repaint()
            self._next = now + _INTERVAL_S

    def close(self) -> None:
        """Leave the text so far on the screen and the cursor below it; no effect after a Done."""
        if self._painted or self._fresh or self._open:
            self._finish("")

    def _finish(self, tail: str) -> None:
        self._take_in()
        self._open.append(safe(tail))
        rest = self._open
        self._open = Text(end="")
        if rest and not rest.plain.endswith("\n"):
            rest.append("\n")
        self._write("".join(self._ansi(line) for line in rest.split("\n", include_separator=True)), [])

    def _repaint(self) -> None:
        self._take_in()
        width = max(self._console.width, 2)
        *finished, self._open = self._open.split("\n", allow_blank=True)
        rows = _rows(self._open, width)
        if len(rows) > _OPEN_ROWS:  # a line longer than the region: what cannot change any more scrolls away
            *more, self._open = rows
            finished, rows = finished + more, [self._open]
        scroll = "".join(self._ansi(line) + "\n" for line in finished)
        region = [*rows, *self._panel(width)]
        self._write(scroll, region[-max(self._console.height - 1, 1) :])

    def _take_in(self) -> None:
        """Append the text of the steps since the last repaint to the open line."""
        for step in self._fresh:
            self._step = step
            for token in step.tokens:
                self._open.append(safe(token.text).expandtabs(4), STYLES[token.origin])
        self._fresh.clear()

    def _panel(self, width: int) -> list[Text]:
        """The rows below the text: the last draft, the figures so far, where the time went."""
        rows = [self._draft_row(), self._figures(), self._time_row()]
        for row in rows:
            row.rstrip()  # a terminal that rewraps it must see the width that `_painted` has
            row.truncate(width - 1, overflow="ellipsis")
        rows[-1].truncate(max(width - 1 - _ECHO, 1), overflow="ellipsis")
        return rows

    def _draft_row(self) -> Text:
        row = Text("draft   ", LABEL, end="")
        step = self._step
        if step is None or not step.drafted:
            row.append("none", LABEL)
        else:
            row.append(f"{len(step.drafted)} ").append(f"{step.source}  ", LABEL)
            for token in step.tokens:
                row.append(_visible(token.text), STYLES[token.origin]).append("\u2502", LABEL)
            row.append(" \u2717 " if step.rejected_text else "", LABEL)
            for text in step.rejected_text:
                row.append(_visible(text), REJECTED).append(" ")
        return row.append(f"  {step.why}" if step and step.why else "", LABEL)

    def _figures(self) -> Text:
        report = self._report
        parts = [f"{report.emitted}/{self._max_tokens} tokens"]
        if report.tokens_per_s:
            parts.append(f"{report.tokens_per_s:,.1f} tokens/s")
        if report.acceptance_rate is not None:
            parts.append(f"accepted {report.acceptance_rate:.0%} of {report.drafted}")
        if report.tokens_per_step:
            parts.append(f"{report.tokens_per_step:.2f} tokens/step")
        return Text("so far  ", LABEL, end="").append("  ".join(parts))

    def _time_row(self) -> Text:
        report = self._report
        row = Text("time    ", LABEL, end="")
        if not report.decode_s:
            return row.append(self._reading or "reading the prompt" if not report.tokens else "", LABEL)
        shares = (("draft", report.draft_s), ("verify", report.verify_s), ("rest", report.sample_s + report.overhead_s))
        for (name, seconds), block in zip(shares, "\u2588\u2593\u2591", strict=True):
            share = seconds / report.decode_s
            row.append(f"{name} ", LABEL).append(block * round(share * 20)).append(f" {share:.0%}   ")
        return row

    def _ansi(self, text: Text) -> str:
        """Text as the console would print it: the line breaks are ours, the styles its own."""
        if not text:
            return ""
        with self._console.capture() as capture:
            self._console.print(text, end="", soft_wrap=True, highlight=False)
        return capture.get()

    def _write(self, scroll: str, region: list[Text]) -> None:
        """Erase the region, add to the scrollback, paint the new region; one write, so that nothing flickers."""
        body = "\n".join(self._ansi(row) for row in region)
        self._console.file.write(_BEGIN + self._erase() + scroll + body + _END)
        self._console.file.flush()
        self._painted = [cell_len(row.plain) for row in region]

    def _erase(self) -> str:
        """Go to the start of the region, counting the rows it takes at the width the terminal has now."""
        if not self._painted:
            return ""
        width = max(self._console.width, 1)
        rows = sum(max(1, -(-cells // width)) for cells in self._painted)
        return "\r" + (f"\x1b[{rows - 1}A" if rows > 1 else "") + _CLEAR


def _rows(line: Text, width: int) -> list[Text]:
    """A line cut where the terminal would wrap it; an empty one takes no row."""
    ends = list(accumulate(map(len, chop_cells(line.plain, width))))
    return list(line.divide(ends[:-1])) if ends else []


def _visible(text: str) -> str:
    """A token on one row: line breaks and tabs as symbols."""
    return safe(text).replace("\n", "\u23ce").replace("\t", "\u21e5")
