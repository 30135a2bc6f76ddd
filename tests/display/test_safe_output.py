"""Whatever a text holds, no more than signs comes out: of the streams, and of Rich's console."""

import io
import os
import sys

import pytest
from hostile import obeyed
from rich.live import Live
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from specdec_cli.display.terminal import SafeConsole, SafeStream, neutralise_streams, raw, safe, status_line

EVERY = "".join(map(chr, range(0x110000)))
HOSTILE = "[b]:smile:\x1b]52;c;ZXZpbA==\x07\x1b[2J\x9b1m\r\x08\x00\u2028\u202e\u200e\u061c\udcff\x7f"


@pytest.mark.slow
def test_every_character_that_is_obeyed_is_replaced_and_no_other():
    shown = safe(EVERY)
    assert len(shown) == len(EVERY) and not obeyed(shown.replace("\r", "\x1b"))
    kept = {a for a, b in zip(EVERY, shown, strict=True) if a == b}
    assert set("\n\t a\u00e9\u4e2d\U0001f467\u200d\xad") <= kept and len(kept) == 0x110000 - 0x800 - 79
    shown.encode()


def test_a_stream_gives_no_way_around(monkeypatch):
    out = io.TextIOWrapper(io.BytesIO(), "utf-8")
    monkeypatch.setattr(sys, "stdout", out)
    neutralise_streams()
    neutralise_streams()
    assert isinstance(sys.stdout, SafeStream) and raw(sys.stdout) is out and raw(out) is out
    print(HOSTILE)
    sys.stdout.writelines([HOSTILE])
    sys.stdout.flush()
    assert not obeyed(out.buffer.getvalue().decode().replace("\r", "\x1b"))
    assert not hasattr(sys.stdout, "buffer") and not hasattr(sys.stdout, "detach")
    sys.stdout, sys.stderr = out, sys.stderr


@pytest.mark.parametrize("terminal", [True, False])
def test_rich_prints_signs_wherever_a_text_stands(terminal):
    console = SafeConsole(file=io.StringIO(), force_terminal=terminal, width=300, _environ={"TERM": "xterm"})
    table = Table(HOSTILE, title=HOSTILE, caption=HOSTILE)
    for cell in (HOSTILE, Text(HOSTILE, "red"), Text.from_markup("[link=https://x\x1b]52;c;y\x07]a[/link]")):
        table.add_row(cell)
    for part in (table, HOSTILE, Text(HOSTILE), Panel(Text(HOSTILE), subtitle=Text(HOSTILE))):
        console.print(part, style="bold")
    with Live(Text(HOSTILE), console=console, refresh_per_second=1), console.capture() as captured:
        console.print(HOSTILE)
    shown = console.file.getvalue() + captured.get()
    assert "[b]:smile:" in shown and "]8;" not in shown and "\x1b]" not in shown and "?25l" not in shown
    assert ("\x1b[" in shown) == terminal
    assert not obeyed(shown) - {"\x1b"} and "\x1b[2J" not in shown


def test_a_status_line_is_one_line(monkeypatch):
    class Screen(io.StringIO):
        def isatty(self):
            return True

    monkeypatch.setattr(sys, "stderr", screen := Screen())
    monkeypatch.setenv("TERM", "xterm")
    with status_line(f"loading a\nb{HOSTILE}", silent=False) as say:
        say(HOSTILE)
    codes, shown = screen.getvalue().count("\r\x1b[K"), screen.getvalue().replace("\r\x1b[K", "")
    assert codes == 3 and not obeyed(shown.replace("\r", "\x1b")) and "\n" not in shown and "loading a b" in shown


def test_a_terminal_is_as_wide_as_it_says_and_not_as_COLUMNS_says(monkeypatch):
    class Screen(io.StringIO):
        def fileno(self):
            return 1

        def isatty(self):
            return True

    monkeypatch.setenv("COLUMNS", "100")
    monkeypatch.setenv("TERM", "xterm")
    assert SafeConsole(file=io.StringIO()).width == 100
    monkeypatch.setattr(os, "get_terminal_size", lambda *_: os.terminal_size((60, 20)))
    monkeypatch.setattr(sys, "stdout", Screen())
    assert SafeConsole().size == (60, 20)


def test_a_width_of_0_hides_nothing():
    console = SafeConsole(file=io.StringIO(), _environ={"COLUMNS": "0"})
    console.print("text")
    assert console.file.getvalue() == "text\n"
